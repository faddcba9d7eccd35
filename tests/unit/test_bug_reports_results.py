"""Kinds of bug reports of this trade, part 3: failures and items that get lost, bounds ignored, a blocked loop.

Each docstring names the reports of that kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest
import structlog
from anyio import wait_all_tasks_blocked as blocked

from async_orch import Orchestrator, Slot, open_backend
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import BuildError, OrchError
from async_orch.logs import StepRecord
from async_orch.testing import Fault, FaultPlan, ManualBackend, ManualFence, run_virtual
from tests.programs import Hooked, Square, settle
from tests.sums import Sums

DONE = ManualFence()
DONE.finish()


@pytest.mark.parametrize("order", ["cancel first", "failure first"])
async def test_a_failure_is_lost_when_a_cancel_races_the_end(order: str) -> None:
    """An awaiter cancelled in the tick in which its step fails does not take the failure along (SPDL #1572)."""
    backend = ManualBackend()
    async with Orchestrator(Hooked(kernel={1}), backend) as orch:
        handle = await orch.submit(1)
        waiter = asyncio.ensure_future(handle)
        await blocked()
        acts = [waiter.cancel, backend.run]
        for act in acts if order == "cancel first" else reversed(acts):
            act()
        await asyncio.wait([waiter])
        await settle()
        assert (handle.status, orch.statistics().failed) == ("failed", 1)
        error = handle.exception()
        assert error is not None
        assert "kernel of 1" in str(error)


@pytest.mark.parametrize("hook", ["build", "launch", "kernel", "collect"])
async def test_exceptions_are_reported_only_sometimes(hook: str) -> None:
    """A hundred runs report a hundred failures, each to its own step, whatever goes on beside (pypeln #119)."""
    async with Orchestrator(Hooked(**{hook: set(range(0, 200, 2))}), "host", slots=3) as orch:
        outcomes = await asyncio.gather(*(orch.run(step) for step in range(200)), return_exceptions=True)
    for step, outcome in enumerate(outcomes):
        if step % 2:
            assert not isinstance(outcome, BaseException)
            assert outcome.output == step * step
        else:
            assert isinstance(outcome, OrchError)
            assert f"{hook} of {step}" in str(outcome)


async def test_the_bound_is_ignored_when_pipelines_are_chained() -> None:
    """A pipeline that feeds another reads its source no further ahead than both windows together (pypeln #111)."""
    taken = 0

    def source() -> Iterator[int]:
        nonlocal taken
        for step in range(100):
            taken += 1
            yield step

    async with (
        Orchestrator(Square(), "host", max_inflight=2) as first,
        Orchestrator(Square(), "host", max_inflight=3) as second,
    ):

        async def squares() -> AsyncIterator[int]:
            async for result in first.map(source()):
                yield result.output

        consumed = 0
        async for result in second.map(squares()):
            assert result.output == consumed**4
            consumed += 1
            await settle()
            assert taken <= consumed + 2 + 3 + 3  # both windows, and one item in each hand between them


async def test_an_item_is_lost_on_a_cancelled_get() -> None:
    """A cancelled wait for the next result leaves the result where it is, in whatever tick the cancel comes
    (python/asyncio #201, #343)."""
    for ticks in range(6):
        backend = ManualBackend()
        async with Orchestrator(Square(), backend) as orch:
            results = orch.map(range(3))
            waiter = asyncio.ensure_future(anext(results))
            await blocked()
            backend.run()
            for _ in range(ticks):
                await anyio.lowlevel.checkpoint()
            got = []
            if not waiter.cancel() or waiter.done():
                got.append(waiter.result().output)
            else:
                with contextlib.suppress(asyncio.CancelledError):
                    got.append((await waiter).output)
            backend.run()
            got.extend([result.output async for result in results])
            assert got == [0, 1, 4], f"cancelled after {ticks} ticks"


async def test_one_blocking_copy_stalls_the_loop() -> None:
    """While a copy hangs, other tasks run, submits return, and builds go on as far as there is room (sglang #28491)."""
    plan = FaultPlan(Fault(action="hang", operation="copy", stream="copy", nth=1))
    backend = open_backend("sim:instant", faults=plan)
    async with Orchestrator(Square(), backend, slots=2) as orch:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while plan.hanging:
                turns += 1
                await anyio.lowlevel.checkpoint()

        handles = [await orch.submit(step) for step in range(3)]
        assert plan.hanging == 1
        task = asyncio.create_task(other())
        while turns < 100:
            await anyio.lowlevel.checkpoint()
        assert [handle.status for handle in handles] == ["launched", "launched", "built"]
        plan.release()
        assert [(await handle).output for handle in handles] == [0, 1, 4]
        await task
    backend.close()


FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "log": ({"step_log": lambda record: None}, {}),
    "observers": ({"observers": [lambda record: None]}, {}),
    "threads": ({"build_in": "thread", "launch_in": "thread", "collect_in": "thread"}, {}),
    "timeout": ({}, {"timeout_s": 60}),
    "attrs": ({}, {"attrs": {"a": 1}}),
    "retries": ({}, {"retries": 2}),
    "wait_for": ({}, {"wait_for": [DONE]}),
}
"""Options of the orchestrator, and of submit."""


@pytest.mark.parametrize("feature", ["none", "after", *FEATURES])
async def test_overlap_is_silently_off_with_a_feature_on(feature: str) -> None:
    """Whatever is switched on, step N+1 is built and its copy enqueued while step N is on the device
    (sglang #14096, simpler #2201)."""
    options, how = FEATURES.get(feature, ({}, {}))
    backend = ManualBackend()
    async with Orchestrator(Sums(), backend, slots=2, **options) as orch:
        first = await orch.submit(1, **how)
        if feature == "after":
            second = await orch.submit(2, after=first)
        else:
            second = await orch.submit(2, **how)
        expected = "acquired" if feature == "after" else "launched"
        while second.status != expected:
            await anyio.lowlevel.checkpoint()
        assert first.status == "launched"
        assert backend.copy.enqueued.count("copy") == 2
        for handle in (first, second):
            while not handle.done():
                backend.run()
                await anyio.lowlevel.checkpoint()
        if feature == "after":
            assert (await second).output == 3


@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
async def test_synchronous_work_of_a_hook_blocks_the_loop(hook: str) -> None:
    """On a thread of its own a hook may take as long as it likes: other tasks run meanwhile (vLLM #1629)."""
    entered, go_on = threading.Event(), threading.Event()

    class Busy(Square):
        def _work(self, here: str) -> None:
            if here == hook:
                entered.set()
                go_on.wait(30)

        def build(self, step: int, image: Any) -> int | None:
            self._work("build")
            return super().build(step, image)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            self._work("launch")
            return super().launch(step, slot, stream)

        def collect(self, step: int, output: ByteArray) -> int:
            self._work("collect")
            return super().collect(step, output)

    options: Any = {f"{hook}_in": "thread"}
    async with Orchestrator(Busy(), "host", **options) as orch:
        handle = await orch.submit(3)
        await asyncio.to_thread(entered.wait, 30)
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert not handle.done()
        go_on.set()
        assert (await handle).output == 9


def test_an_inline_hook_that_blocks_the_loop_says_so() -> None:
    """Inline it does block, and one warning names the hook and the time (vLLM #1629)."""

    async def main() -> list[Any]:
        backend = open_backend("sim:instant", clock="virtual")

        class Busy(Square):
            def build(self, step: int, image: Any) -> int | None:
                asyncio.get_running_loop().jump(0.005)  # type: ignore[attr-defined]
                return super().build(step, image)

        with structlog.testing.capture_logs() as events:
            async with Orchestrator(Busy(), backend) as orch:
                await orch.run(1)
        backend.close()
        return [(e["hook"], e["ns"]) for e in events if e["event"] == "loop.blocked"]

    assert run_virtual(main()) == [("build", 5_000_000)]


async def test_a_failure_is_missing_from_the_log() -> None:
    """Each accepted step has one record with its outcome, also those that failed or were cancelled (pypeln #119)."""
    records: list[StepRecord] = []
    async with Orchestrator(Hooked(build={1}), "host", observers=[records.append]) as orch:
        handles = [await orch.submit(step) for step in range(4)]
        handles[3].cancel()
        with pytest.raises(BuildError):
            await handles[1]
    assert sorted(record.seq for record in records) == [0, 1, 2, 3]
    assert next(record.event for record in records if record.seq == 1) == "step.failed"
