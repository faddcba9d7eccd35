"""A cancel at every suspension and at every pump of everything that a caller can await: nothing leaks, nothing hangs.

Not by luck: each scenario is run once to count its suspensions and pumps, and then once for each of them. On the
simulated device this happens in virtual time, where a pipeline that is stuck ends the loop with `LoopStuck`.
`ASYNC_ORCH_PROOFS=full` adds ring sizes, moments and modes that take minutes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import anyio
import pytest
from async_orch_backends.host import HostBackend
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import Orchestrator, StepHandle
from async_orch.abc import ByteArray
from async_orch.exceptions import OrchError, StepCancelled
from async_orch.testing import run_virtual
from tests.faults.driving import Moment, Suspensions, at_pump
from tests.faults.support import Records, assert_balanced, assert_no_tasks, assert_no_threads, no_log_thread
from tests.faults.test_after_and_barrier import Fed

FULL = os.environ.get("ASYNC_ORCH_PROOFS") == "full"
Orch = Orchestrator[int, int]
Scenario = Callable[[Orch, list[StepHandle[int]]], Awaitable[None]]


async def run(orch: Orch, handles: list[StepHandle[int]]) -> None:
    for i in range(3):
        assert (await orch.run(i)).output == i * i


async def submit(orch: Orch, handles: list[StepHandle[int]]) -> None:
    handles += [await orch.submit(i, step_id=f"name {i}", timeout_s=60.0) for i in range(5)]
    for i, handle in enumerate(handles):
        assert (await handle).output == i * i


async def chain(orch: Orch, handles: list[StepHandle[int]]) -> None:
    for i in range(4):
        handles.append(await orch.submit(i, after=handles[-1] if handles else None))
    await handles[-1].launched
    assert (await handles[-1]).output == 9


async def iterate(orch: Orch, handles: list[StepHandle[int]]) -> None:
    assert [r.output async for r in orch.map(range(5))] == [0, 1, 4, 9, 16]


async def iterate_async(orch: Orch, handles: list[StepHandle[int]]) -> None:
    async def source() -> AsyncIterator[int]:
        for i in range(4):
            await asyncio.sleep(0)
            yield i

    assert [r.output async for r in orch.map(source(), chain=True)] == [0, 1, 4, 9]


async def drain(orch: Orch, handles: list[StepHandle[int]]) -> None:
    handles += [await orch.submit(i) for i in range(3)]
    await orch.drain()
    assert all(handle.done() for handle in handles)


async def barrier(orch: Orch, handles: list[StepHandle[int]]) -> None:
    handles += [await orch.submit(i) for i in range(2)]

    async def swap() -> int:
        await asyncio.sleep(0)
        assert all(handle.done() for handle in handles)
        return 7

    assert await orch.barrier(swap, rebuild=True) == 7
    assert (await orch.run(4)).output == 16


async def leave(orch: Orch, handles: list[StepHandle[int]]) -> None:
    handles += [await orch.submit(i) for i in range(3)]


async def nested(orch: Orch, handles: list[StepHandle[int]]) -> None:
    async for result in orch.map(range(3)):
        assert (await orch.run(result.output)).output == result.output**2


SCENARIOS: list[Scenario] = [run, submit, chain, iterate, iterate_async, drain, barrier, leave, nested]


def make_backend(kind: str) -> SimBackend | HostBackend:
    """Costs that make every fence pending once; small, because host runs in real time."""
    if kind == "host":
        return HostBackend()
    profile = SimProfile(name="proof", copy_fixed_ns=1_000_000, launch_ns=0, kernel_ns=2_000_000)
    return SimBackend(profile, clock="virtual")


class Trial:
    """One run of a scenario with one cancel in it, and what must hold afterwards."""

    def __init__(self, kind: str, slots: int, scenario: Scenario, **options: Any) -> None:
        self.kind, self.slots, self.scenario, self.options = kind, slots, scenario, options
        self.handles: list[StepHandle[int]] = []
        self.records = Records()
        self.entered = False

    async def body(self) -> None:
        self.program = Fed()
        self.orch: Orch = Orchestrator(
            self.program, self.backend, slots=self.slots, queue_depth=1, step_log=self.records, **self.options
        )
        async with self.orch:
            self.entered = True
            await self.scenario(self.orch, self.handles)

    async def cancelled_at(self, suspension: int, pump: int, moment: Moment, *, native: bool) -> tuple[int, int, bool]:
        """Run it; the numbers of suspensions and pumps, and whether it was cancelled."""
        self.backend = make_backend(self.kind)
        scope = anyio.CancelScope()
        task: asyncio.Task[None] | None = None

        def strike() -> None:
            if native:
                assert task is not None
                task.cancel()
            else:
                scope.cancel()

        suspensions = Suspensions(self.body(), suspension, strike, moment)

        async def main() -> None:
            with scope:
                await suspensions

        with no_log_thread(), at_pump(pump, strike) as pumps:
            task = asyncio.ensure_future(main())
            with suppress(asyncio.CancelledError):
                await task
        await self.check()
        return suspensions.count, len(pumps), task.cancelled() or scope.cancelled_caught

    async def check(self) -> None:
        if self.entered:
            assert_balanced(self.orch)
            statistics = self.orch.statistics()
            assert statistics.failed == statistics.threads_abandoned == 0
            assert self.program.calls == ["open", "close"]
            self.records.assert_one_a_step(statistics.submitted)
            for i, handle in enumerate(self.handles):
                assert handle.done()
                error = handle.exception()
                assert error is None or isinstance(error, StepCancelled), error
                assert error is not None or handle.result().output == i * i
        assert self.backend.allocated_nbytes == 0
        self.backend.close()
        assert_no_tasks()


def execute(kind: str, work: Coroutine[Any, Any, Any]) -> Any:
    """In virtual time for the simulated device, on a plain loop for threads."""
    return run_virtual(work) if kind == "sim" else asyncio.run(work)


async def every_cancel(kind: str, slots: int, scenario: Scenario, moments: list[Moment], **options: Any) -> int:
    """One trial for each suspension, pump, kind of cancel and moment; their number."""
    suspensions, pumps, _ = await Trial(kind, slots, scenario, **options).cancelled_at(0, 0, "now", native=True)
    trials = 0
    for native in (True, False):
        for moment in moments:
            for n in range(1, suspensions + 1):
                await Trial(kind, slots, scenario, **options).cancelled_at(n, 0, moment, native=native)
                trials += 1
        for n in range(1, pumps + 1):
            await Trial(kind, slots, scenario, **options).cancelled_at(0, n, "now", native=native)
            trials += 1
    return trials


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_cancel_at_every_suspension_and_pump_in_virtual_time(scenario: Scenario, slots: int) -> None:
    """Both kinds of cancel, all moments, on the simulated device: leases back, one record a step, no byte left."""
    moments: list[Moment] = ["now", "next tick", "as it completes"] if FULL or slots == 1 else ["as it completes"]
    assert execute("sim", every_cancel("sim", slots, scenario, moments)) > 0
    assert_no_threads()


@pytest.mark.parametrize("slots", [1, 2, 3, 4] if FULL else [2])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_cancel_at_every_suspension_and_pump_with_threads(scenario: Scenario, slots: int) -> None:
    """On host, with every hook on its thread: the same, and no thread is left."""
    moments: list[Moment] = ["now", "next tick", "as it completes"] if FULL else ["now"]
    options: Any = {"build_in": "thread", "build_workers": 2, "launch_in": "thread", "collect_in": "thread"}
    assert execute("host", every_cancel("host", slots, scenario, moments, **options)) > 0
    assert_no_threads()


@pytest.mark.parametrize("mode", ["ring", "naive"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.__name__)
def test_cancel_at_every_suspension_and_pump_in_serial_modes(scenario: Scenario, mode: str) -> None:
    """Modes ring and naive take the same code path and keep the same promises."""
    assert execute("sim", every_cancel("sim", 2, scenario, ["now"], mode=mode)) > 0


class CancelsItself(Fed):
    """A hook of the step n cancels the handle of the step m, for every pair."""

    def __init__(self, hook: str, when: int, target: int) -> None:
        super().__init__()
        self.hook, self.when, self.target = hook, when, target
        self.handles: list[StepHandle[int]] = []

    def _maybe(self, hook: str, step: int) -> None:
        if hook == self.hook and step == self.when and self.target < len(self.handles):
            self.handles[self.target].cancel()

    def build(self, step: int, image: Any) -> int | None:
        self._maybe("build", step)
        return super().build(step, image)

    def feed(self, step: int, previous: Any, feed: ByteArray) -> int | None:
        self._maybe("feed", step)
        return super().feed(step, previous, feed)

    def launch(self, step: int, slot: Any, stream: Any) -> int | None:
        self._maybe("launch", step)
        return super().launch(step, slot, stream)

    def collect(self, step: int, output: ByteArray) -> int:
        self._maybe("collect", step)
        return super().collect(step, output)


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("hook", ["build", "feed", "launch", "collect"])
def test_cancel_of_any_step_from_inside_any_hook_of_any_other(hook: str, chained: bool) -> None:
    """A handle cancelled in the middle of a pump, its own hook included, leaves everything in order."""

    async def main() -> None:
        for slots in (1, 2, 3):
            for when, target in itertools.product(range(4), range(4)):
                with no_log_thread():
                    program = CancelsItself(hook, when, target)
                    backend, records = make_backend("sim"), Records()
                    async with Orchestrator(program, backend, slots=slots, queue_depth=1, step_log=records) as orch:
                        for i in range(4):
                            after = program.handles[-1] if chained and program.handles else None
                            program.handles.append(await orch.submit(i, after=after))
                        for i, handle in enumerate(program.handles):
                            with suppress(OrchError):
                                assert (await handle).output == i * i
                    assert_balanced(orch)
                    records.assert_one_a_step(4)
                    assert backend.allocated_nbytes == 0
                    backend.close()

    run_virtual(main())
