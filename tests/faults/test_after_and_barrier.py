"""`after` and barriers against steps that are already over, and launches on another thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepHandle
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import DependencyFailed, DeviceLost
from async_orch.testing import ManualBackend, ManualStream, run_virtual
from tests.faults.support import assert_balanced, eventually
from tests.programs import Square, settle


class Fed(Square):
    """A `Square` that notes what it was fed with."""

    slot = SlotSpec(image=Square.slot.image, workspace_nbytes=64, output_nbytes=8, feed_nbytes=8)

    def __init__(self) -> None:
        super().__init__()
        self.fed: list[Any] = []

    def feed(self, step: int, previous: Any, feed: ByteArray) -> int | None:
        self.fed.append(previous)
        return None


def test_a_step_after_a_detached_one_that_is_over_fails_instead_of_waiting_for_ever() -> None:
    """The output of the earlier step was never collected and never will be."""

    async def main() -> None:
        backend = ManualBackend()
        async with Orchestrator(Fed(), backend) as orch:
            root = await orch.submit(1)
            root.cancel()
            backend.copy.run()
            backend.compute.run()
            await settle()
            assert orch.statistics().slots_leased == 0
            late = await orch.submit(2, after=root)
            with pytest.raises(DependencyFailed, match="which was removed"):
                await late
        assert_balanced(orch)

    run_virtual(main())


class SlowLaunch(Fed):
    """Launches of -1 wait for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()
        self.launching = False

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        if step == -1:
            self.launching = True
            self.entered.set()
            self.release.wait(30)
            self.launching = False
        return super().launch(step, slot, stream)


async def test_a_barrier_waits_for_a_launch_that_still_runs_although_its_step_was_cancelled() -> None:
    """The function runs with the device at rest: no launch of an earlier step is under way on the device thread."""
    program = SlowLaunch()
    async with Orchestrator(program, "sim:instant", launch_in="thread") as orch:
        handle = await orch.submit(-1)
        await eventually(program.entered.is_set)
        assert handle.cancel()
        barrier = asyncio.ensure_future(orch.barrier(lambda: program.launching))
        for _ in range(20):
            await settle()
        program.release.set()
        assert await barrier is False
    assert_balanced(orch)


async def test_a_task_started_in_a_barrier_may_submit_after_it() -> None:
    """Calling back is refused inside the function only, not for ever in what it has started."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        ended = asyncio.Event()

        async def later() -> int:
            await ended.wait()
            return (await orch.run(3)).output

        tasks: list[asyncio.Task[int]] = []
        await orch.barrier(lambda: tasks.append(asyncio.ensure_future(later())))
        ended.set()
        assert await tasks[0] == 9


class HeldStream(ManualStream):
    """Its first `isolate` on another thread waits for the test."""

    entered = threading.Event()
    release = threading.Event()

    def isolate(self) -> None:
        if threading.current_thread().name.startswith("async_orch-device") and len(self.enqueued) > 3:
            self.entered.set()
            self.release.wait(30)
        super().isolate()


class HeldBackend(ManualBackend):
    """Its compute stream is a `HeldStream`."""

    def create_stream(self, name: str) -> Stream:
        stream = self.streams[name] = HeldStream(name) if name == "compute" else ManualStream(name)
        return stream


async def test_a_step_cancelled_while_its_launch_begins_is_still_fed_for_its_dependents() -> None:
    """A dependent collects from it, so the detached step must run on its input, not on what the slot held before."""
    backend, program = HeldBackend(), Fed()
    async with Orchestrator(program, backend, launch_in="thread") as orch:
        root = await orch.submit(3)
        await eventually(lambda: root.status == "launched")
        middle = await orch.submit(4, after=root)
        last = await orch.submit(5, after=middle)
        backend.copy.run()
        backend.compute.run()
        await eventually(HeldStream.entered.is_set)
        assert middle.cancel()
        HeldStream.release.set()

        def last_is_done() -> bool:
            backend.copy.run()
            backend.compute.run()
            return last.done()

        await eventually(last_is_done)
        assert (await last).output == 25
        assert program.fed == [9, 16]
    assert_balanced(orch)


async def test_the_end_of_the_whole_is_the_same_for_steps_that_need_each_other() -> None:
    """Closing cancels, and a loss fails, each step of a chain for that reason, not because of the step before it."""
    backend = ManualBackend()
    orch = Orchestrator(Fed(), backend, slots=2, drain_timeout_s=0.01)
    chained: list[StepHandle[int]] = []
    with pytest.raises(KeyError):
        async with orch:
            for i in range(3):
                chained.append(await orch.submit(i, after=chained[-1] if chained else None))
            raise KeyError
    assert [handle.status for handle in chained] == ["detached", "cancelled", "cancelled"]
    backend = ManualBackend()
    async with Orchestrator(Fed(), backend, slots=2, drain_timeout_s=0.01) as orch:
        chained = []
        for i in range(3):
            chained.append(await orch.submit(i, after=chained[-1] if chained else None))
        backend.lose(DeviceLost("gone"))
        for handle in chained:
            with pytest.raises(DeviceLost, match="lost at step 0"):
                await handle
