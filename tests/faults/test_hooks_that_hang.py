"""Hooks off the loop that do not return, met with cancels and time limits."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Stream
from async_orch.exceptions import StepCancelled, StepTimeout
from async_orch.testing import ManualBackend
from tests.faults.support import Records, assert_balanced, assert_no_threads, eventually
from tests.programs import Square


class Stuck(Square):
    """The hook named in ``where`` does not return for the step -1 until the test lets it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.entered, self.release = threading.Event(), threading.Event()
        self.built: list[int] = []

    def _maybe(self, hook: str, step: int) -> None:
        if hook == self.where and step == -1:
            self.entered.set()
            self.release.wait(30)

    def build(self, step: int, image: Any) -> int | None:
        self.built.append(step)
        self._maybe("build", step)
        return super().build(step, image)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self._maybe("launch", step)
        return super().launch(step, slot, stream)

    def collect(self, step: int, output: Any) -> int:
        self._maybe("collect", step)
        return super().collect(step, output)


@pytest.mark.parametrize("hook", ["build", "collect"])
async def test_a_stuck_hook_of_a_cancelled_step_is_given_up_all_the_same(hook: str) -> None:
    """Cancelling a step whose hook hangs does not switch the hook's time limit off: the next steps go on."""
    program = Stuck(hook)
    options: Any = {f"{hook}_in": "thread", f"{hook}_timeout_s": 0.05}
    async with Orchestrator(program, "sim:instant", drain_timeout_s=5, **options) as orch:
        handle = await orch.submit(-1)
        await asyncio.to_thread(program.entered.wait, 20)
        assert handle.cancel()
        with pytest.raises(StepCancelled):
            await handle
        assert (await asyncio.wait_for(orch.run(3), 20)).output == 9
        statistics = orch.statistics()
        assert statistics.staging_quarantined + statistics.slots_quarantined == 1
    program.release.set()


async def test_builds_that_queue_behind_a_stuck_one_keep_their_time() -> None:
    """build_timeout_s runs from the start of a build, so one that hangs costs its own step and buffer only."""
    program = Stuck("build")
    orch = Orchestrator(
        program, "sim:instant", build_in="thread", build_timeout_s=0.1, max_quarantined=1, drain_timeout_s=5
    )
    async with orch:
        stuck, second, third = [await orch.submit(i) for i in (-1, 2, 3)]
        with pytest.raises(StepTimeout):
            await stuck
        assert [(await h).output for h in (second, third)] == [4, 9]
        assert orch.statistics().staging_quarantined == 1
    program.release.set()


async def test_a_step_that_times_out_before_its_build_began_costs_no_buffer() -> None:
    """Nobody has written to its staging, so nothing is quarantined; its build is not called any more."""
    program = Stuck("build")
    async with Orchestrator(program, "sim:instant", build_in="thread", drain_timeout_s=5) as orch:
        first = await orch.submit(-1)
        await asyncio.to_thread(program.entered.wait, 20)
        behind = [await orch.submit(i, timeout_s=0.02) for i in (2, 3)]
        for handle in behind:
            with pytest.raises(StepTimeout, match="timed out in building"):
                await handle
        program.release.set()
        assert (await first).output == 1
        assert (await orch.run(4)).output == 16
        assert orch.statistics().staging_quarantined == 0
        assert program.built == [-1, 4]
    assert_balanced(orch)


class NoImage(StepProgram[int, int]):
    """Builds without staging: only the engine bounds how many builds wait for the worker."""

    slot = SlotSpec(image_nbytes=0)

    def __init__(self) -> None:
        self.release = threading.Event()

    def build(self, step: int, image: Any) -> int | None:
        self.release.wait(30)
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        return None


async def test_cancelled_builds_do_not_pile_up_behind_a_stuck_worker() -> None:
    """However many steps are submitted and cancelled, the line in front of the workers stays bounded."""
    program = NoImage()
    async with Orchestrator(program, "sim:instant", build_in="thread", drain_timeout_s=5) as orch:
        for i in range(50):
            (await orch.submit(i)).cancel()
        workers = orch._pipeline().build.workers
        assert workers is not None
        assert workers.pool.busy <= orch._pipeline().build.limit
        program.release.set()
        await orch.run(1)
    assert_balanced(orch)


async def test_a_launch_that_hangs_has_its_record_when_the_orchestrator_is_left() -> None:
    """A step that sits in its launch hook at the end is detached, recorded once, and its slot stays mapped."""
    program, records, backend = Stuck("launch"), Records(), ManualBackend()
    orch = Orchestrator(program, backend, launch_in="thread", step_log=records, drain_timeout_s=0.05)
    with pytest.raises(TimeoutError):
        async with orch:
            await orch.submit(-1)
            await eventually(program.entered.is_set)
    records.assert_one_a_step(1)
    assert orch.statistics().threads_abandoned == 1
    assert orch.statistics().slots_leased == 1
    assert [b.name for b in backend.live if not b.is_host] == ["slot.image", "slot.workspace", "slot.output"]
    program.release.set()


@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
def test_a_hook_that_returns_after_its_loop_was_closed_harms_nobody(hook: str) -> None:
    """The thread that was abandoned in it ends quietly: there is no loop left to wake."""
    program = Stuck(hook)
    options: Any = {f"{hook}_in": "thread"}

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with Orchestrator(program, "sim:instant", drain_timeout_s=0.05, **options) as orch:
                await orch.submit(-1)
                await eventually(program.entered.is_set)

    asyncio.run(main())
    program.release.set()
    assert_no_threads()
