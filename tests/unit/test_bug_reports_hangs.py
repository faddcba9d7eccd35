"""Kinds of bug reports of this trade, part 2: pipelines that hang, and time-outs that take everything with them.

Each docstring names the reports of that kind. Where nothing needs a thread, time is virtual, and a hang is an error.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, StepProgram, open_backend
from async_orch.abc import Backend, ByteArray, Fence, Stream
from async_orch.exceptions import DependencyFailed, DeviceError, OrchError, StepTimeout
from async_orch.testing import Fault, FaultPlan, ManualBackend, ManualFence, leak_check, run_virtual
from tests.programs import Hooked, Square, settle
from tests.sums import Sums


def virtual(**options: Any) -> Backend:
    """A simulated device on the running loop's clock."""
    return open_backend("sim:a5-report", clock="virtual", **options)


@pytest.mark.parametrize("fate", ["failed", "removed", "timed out before launch"])
def test_a_step_without_its_predecessors_result_kills_the_engine(fate: str) -> None:
    """Steps whose placeholder is never filled fail alone and say why; the engine goes on (vLLM #57562)."""

    async def main() -> None:
        plan = FaultPlan(Fault(action="raise", operation="launch", nth=2)) if fate == "failed" else FaultPlan()
        backend = virtual(faults=plan)
        async with Orchestrator(Sums(), backend, slots=1) as orch:
            await orch.submit(100)  # keeps the only slot, so that the next step is not launched yet
            first = await orch.submit(1, timeout_s=0.001 if fate == "timed out before launch" else None)
            second = await orch.submit(2, after=first)
            third = orch.submit(3, after=second)
            if fate == "removed":
                assert first.cancel()
            with pytest.raises(OrchError):
                await first
            for dependent in (second, await third):
                with pytest.raises(DependencyFailed) as caught:
                    await dependent
                assert caught.value.root_step_id == first.step_id
            assert (await orch.run(7)).output >= 7
        backend.close()

    run_virtual(main())


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_placeholder_of_a_step_that_was_given_up_after_its_launch_is_filled(how: str) -> None:
    """Detached, it is still collected for the step that needs it (vLLM #57562)."""

    async def main() -> None:
        backend = virtual()
        async with Orchestrator(Sums(), backend, slots=2) as orch:
            first = await orch.submit(1, timeout_s=0.001 if how == "timeout" else None)
            second = await orch.submit(2, after=first)
            assert first.status == "launched"
            if how == "cancel":
                first.cancel()
            with pytest.raises(OrchError):
                await first
            assert first.status == "detached"
            assert (await second).output == 3
        backend.close()

    run_virtual(main())


@pytest.mark.parametrize("slots", [1, 2])
def test_the_preparation_of_one_step_waits_for_the_result_of_another(slots: int) -> None:
    """A consumer that submits the next step only when it has a result, a chain with late input, and a consumer that
    calls run() while it iterates all end, also with one slot (vllm-qaic #40)."""

    async def main() -> None:
        backend = virtual()
        async with Orchestrator(Sums(), backend, slots=slots, max_inflight=4) as orch:
            results = asyncio.Queue[int]()

            async def source() -> AsyncIterator[int]:
                yield 1
                for _ in range(5):
                    yield await results.get()

            seen = []
            async for result in orch.map(source()):
                seen.append(result.output)
                results.put_nowait(result.output + 1)
            assert seen == [1, 2, 3, 4, 5, 6]
            sums = []
            async for result in orch.map([1, 2, 3, 4], chain=True):
                sums.append(result.output)
                assert (await orch.run(100)).output >= 100
            assert sums == [1, 3, 6, 10]
        backend.close()

    run_virtual(main())


@pytest.mark.parametrize("mode", ["pipelined", "ring", "naive"])
@pytest.mark.parametrize("hook", ["build", "launch", "kernel", "collect"])
def test_a_stage_that_raises_hangs_the_pipeline(hook: str, mode: Any) -> None:
    """Whatever hook raises, and however often in a row, all other steps complete and leaving ends
    (pypeln #110, #118)."""

    async def main() -> tuple[int, int]:
        backend = virtual()
        failing = {0, 1, 5, 6, 7, 8, 9, 19}
        with leak_check(backend) as leaks:
            async with leaks.watch(Orchestrator(Hooked(**{hook: failing}), backend, mode=mode)) as orch:
                for step in range(20):
                    await orch.submit(step)
        backend.close()
        return orch.statistics().completed, orch.statistics().failed

    assert run_virtual(main()) == (12, 8)


@pytest.mark.parametrize("hook", ["build", "collect"])
def test_the_process_cannot_end_because_a_worker_is_stuck(hook: str) -> None:
    """With a hook that never returns, leaving is bounded, and so is the end of the interpreter
    (torchdata #1176, pytorch #39570, Ray #45099, #50851)."""
    code = f"""
        import asyncio, threading
        from async_orch import Orchestrator
        from tests.programs import Square

        class Stuck(Square):
            def {hook}(self, step, data):
                entered.set()
                threading.Event().wait()

        entered = threading.Event()

        async def main():
            orch = Orchestrator(Stuck(), "host", {hook}_in="thread", drain_timeout_s=0.1)
            try:
                async with orch:
                    await orch.submit(1)
                    await asyncio.to_thread(entered.wait)
            except TimeoutError:
                print("abandoned", orch.statistics().threads_abandoned)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["abandoned", "1"]


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("max_inflight", [1, 2, None])
@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_fewer_steps_than_the_depth_or_a_depth_of_one_get_stuck(
    slots: int, max_inflight: int | None, count: int
) -> None:
    """Any number of steps ends for any depth (DALI #2551, #688)."""

    async def main() -> list[int]:
        backend = virtual()
        async with Orchestrator(Square(), backend, slots=slots, queue_depth=1, max_inflight=max_inflight) as orch:
            outputs = [result.output async for result in orch.map(range(count))]
        backend.close()
        return outputs

    assert run_virtual(main()) == [step * step for step in range(count)]


def test_one_time_out_poisons_everything() -> None:
    """A step that takes too long costs itself; those before and behind it have their results (simpler #2028, #1918)."""

    async def main() -> list[object]:
        plan = FaultPlan(Fault(action="delay", operation="launch", nth=3, delay_ns=2_000_000_000))
        backend = virtual(faults=plan)
        async with Orchestrator(Square(), backend) as orch:
            handles = [await orch.submit(step, timeout_s=1.0 if step == 2 else None) for step in range(5)]
            outcomes: list[object] = []
            for handle in handles:
                try:
                    outcomes.append((await handle).output)
                except StepTimeout as exc:
                    outcomes.append(exc.step_id)
        backend.close()
        return outcomes

    assert run_virtual(main()) == [0, 1, 2, 9, 16]


@pytest.mark.parametrize("when", ["before the launch", "after the launch"])
async def test_a_failed_dependency_leaves_its_waiters_without_a_word(when: str) -> None:
    """A step that waits for another stream's fence settles when that fails, as a failure that names the cause
    (pocl #1430)."""
    fence = ManualFence()
    if when == "before the launch":
        fence.finish(DeviceError("their kernel failed"))
    async with Orchestrator(Square(), "host") as orch:
        handle = await orch.submit(3, wait_for=[fence])
        behind = await orch.submit(4)
        if when == "after the launch":
            fence.finish(DeviceError("their kernel failed"))
        with pytest.raises(OrchError, match="their kernel failed"):
            await handle
        assert (await behind).output == 16
        assert orch.statistics().slots_leased == 0


@pytest.mark.parametrize("backend", ["host", "sim:instant", "sim:adversary"])
async def test_a_result_comes_only_when_something_else_is_enqueued(backend: str) -> None:
    """A single step completes on its own, without a flush, a poll or a later submit (pyopencl #188)."""
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(6)
        assert (await handle).output == 36


class _DriverLock:
    """A lock that a driver holds while it calls back. Taking it again is the deadlock, and raises here."""

    def __init__(self) -> None:
        self._held_by: int | None = None

    def calling_back(self, callback: Any) -> None:
        self._held_by = threading.get_ident()
        try:
            callback()
        finally:
            self._held_by = None

    def enter_driver(self) -> None:
        if self._held_by == threading.get_ident():
            raise RuntimeError("a driver call from within a driver's callback: this would be a deadlock")


async def test_a_drivers_callback_calls_into_the_driver_or_into_the_callers_code() -> None:
    """What runs on the thread of a completion callback only wakes the loop: no driver call, no hook of the program
    (LMCache #2952, TensorRT-LLM #15855, numba-cuda #317)."""
    lock, hooks_on = _DriverLock(), set[int]()

    class Locked(ManualFence):
        def query(self) -> bool:
            lock.enter_driver()
            return super().query()

        def notify(self, callback: Any) -> None:
            super().notify(lambda: lock.calling_back(callback))

    class Program(StepProgram[int, int]):
        slot = Square.slot

        def build(self, step: int, image: Any) -> int | None:
            hooks_on.add(threading.get_ident())
            return Square.build(Square(), step, image)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            lock.enter_driver()
            hooks_on.add(threading.get_ident())
            slot.hold(fences[step])
            return Square.launch(Square(), step, slot, stream)

        def collect(self, step: int, output: ByteArray) -> int:
            hooks_on.add(threading.get_ident())
            return Square.collect(Square(), step, output)

    fences: list[Fence] = [Locked() for _ in range(3)]
    backend = ManualBackend()
    async with Orchestrator(Program(), backend, slots=1) as orch:
        handles = [await orch.submit(step) for step in range(3)]
        for step, handle in enumerate(handles):
            backend.run()
            assert (await handle).output == step * step
            assert orch.statistics().slots_leased == 1
            fence = fences[step]
            assert isinstance(fence, ManualFence)
            await asyncio.to_thread(fence.finish)
            await settle()
    assert hooks_on == {threading.get_ident()}
