"""Time-outs of steps and stages, retries, quarantine."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from async_orch import Orchestrator
from async_orch.abc import ByteArray
from async_orch.exceptions import BuildError, ConfigurationError, DeviceLost, PipelineFailed, StepTimeout
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend, run_virtual
from tests.programs import Hooked, Square, settle
from tests.virtual_time import pass_time


class StuckBuild(Square):
    """Builds of the steps in ``stuck`` return only when the test lets them."""

    def __init__(self, *stuck: int) -> None:
        super().__init__()
        self.stuck = set(stuck)
        self.release = threading.Event()
        self.entered = threading.Event()

    def build(self, step: int, image: Any) -> int | None:
        if step in self.stuck:
            self.entered.set()
            self.release.wait(30)
        return super().build(step, image)


class StuckCollect(Square):
    """Collects of the steps in ``stuck`` return only when the test lets them."""

    def __init__(self, *stuck: int) -> None:
        super().__init__()
        self.stuck = set(stuck)
        self.release = threading.Event()

    def collect(self, step: int, output: ByteArray) -> int:
        if step in self.stuck:
            self.release.wait(30)
        return super().collect(step, output)


def test_a_launched_step_times_out_like_a_cancel() -> None:
    """The handle gets StepTimeout, a TimeoutError, after timeout_s; the slot waits for its fence."""

    async def main() -> None:
        backend = ManualBackend()
        records: list[StepRecord] = []
        async with Orchestrator(Square(), backend) as orch:
            handle = await orch.submit(1, timeout_s=0.5)
            start = asyncio.get_running_loop().time()
            with pytest.raises(StepTimeout, match=r"timed out in launched after 0\.5 s") as caught:
                await handle
            assert isinstance(caught.value, TimeoutError)
            assert asyncio.get_running_loop().time() - start == pytest.approx(0.5)
            assert (handle.status, orch.statistics().slots_leased) == ("detached", 1)
            backend.copy.run()
            backend.compute.run()
            await settle()
            assert orch.statistics().slots_leased == 0
        assert records == []

    run_virtual(main())


def test_a_queued_step_times_out_and_the_others_go_on() -> None:
    """A step that never got to the device is removed at its time-out; the ones before and behind complete."""

    async def main() -> None:
        backend = ManualBackend()
        async with Orchestrator(Square(), backend, slots=1) as orch:
            first = await orch.submit(1)
            second = await orch.submit(2, timeout_s=1.0)
            third = await orch.submit(3)
            with pytest.raises(StepTimeout, match="timed out in built"):
                await second
            for _ in range(2):
                backend.copy.run()
                backend.compute.run()
                await settle()
            assert ((await first).output, (await third).output) == (1, 9)
            assert orch.statistics().cancelled == 1

    run_virtual(main())


async def test_a_settled_step_leaves_no_timer() -> None:
    """A time limit that was not reached is forgotten with its step."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        await orch.run(1, timeout_s=3600)
        loop: Any = asyncio.get_running_loop()
        assert not [t for t in loop._scheduled if not t.cancelled() and "_expire" in repr(t)]


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", True])
async def test_a_time_limit_must_be_a_finite_positive_number(value: Any) -> None:
    """Anything else is refused at submit, with argument and value."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        with pytest.raises(ConfigurationError, match="timeout_s"):
            await orch.submit(1, timeout_s=value)
        assert orch.statistics().submitted == 0


def test_stage_time_limits_need_their_hook_off_the_loop() -> None:
    """An inline build or collect cannot be interrupted: the option is refused before opening."""
    with pytest.raises(ConfigurationError, match=r"build_timeout_s=1\.0 needs build_in='thread'"):
        Orchestrator(Square(), "sim:instant", build_timeout_s=1.0)
    with pytest.raises(ConfigurationError, match=r"collect_timeout_s=1\.0 needs collect_in='thread'"):
        Orchestrator(Square(), "sim:instant", collect_timeout_s=1.0)


async def test_a_stuck_build_costs_its_step_and_its_staging_only() -> None:
    """The staging is quarantined and replaced, another thread takes over, later steps complete."""
    program = StuckBuild(0)
    orch = Orchestrator(program, "sim:instant", build_in="thread", build_timeout_s=0.02, drain_timeout_s=5)
    async with orch:
        handle = await orch.submit(0)
        with pytest.raises(StepTimeout, match=r"build did not return within build_timeout_s=0\.02 s") as caught:
            await handle
        assert caught.value.stage == "build"
        assert [(await orch.run(i)).output for i in range(1, 8)] == [i * i for i in range(1, 8)]
        statistics = orch.statistics()
        assert (statistics.staging_quarantined, statistics.staging_leased) == (1, 0)
    assert orch.statistics().threads_abandoned == 1
    program.release.set()


async def test_too_many_stuck_builds_fail_the_pipeline_instead_of_emptying_the_ring() -> None:
    """After max_quarantined replacements nobody waits on an empty ring: the pipeline fails with that reason."""
    program = StuckBuild(0, 1)
    orch = Orchestrator(
        program, "sim:instant", build_in="thread", build_timeout_s=0.02, max_quarantined=1, drain_timeout_s=5
    )
    async with orch:
        first, second = await orch.submit(0), await orch.submit(1)
        with pytest.raises(StepTimeout):
            await first
        with pytest.raises(StepTimeout):
            await second
        with pytest.raises(PipelineFailed, match="max_quarantined=1 buffers are lost"):
            await orch.submit(2)
    program.release.set()


async def test_a_step_time_limit_on_a_stuck_build_quarantines_too() -> None:
    """The step's own timeout_s says as well that its build does not return."""
    program = StuckBuild(0)
    async with Orchestrator(program, "sim:instant", build_in="thread", drain_timeout_s=5) as orch:
        with pytest.raises(StepTimeout, match="timed out in building"):
            await orch.run(0, timeout_s=0.02)
        assert (await orch.run(3)).output == 9
        assert orch.statistics().staging_quarantined == 1
    program.release.set()


async def test_a_stuck_collect_costs_its_step_and_its_slot_only() -> None:
    """The slot is quarantined and replaced; later steps complete."""
    program = StuckCollect(1)
    orch = Orchestrator(program, "host", collect_in="thread", collect_timeout_s=0.02, slots=1, drain_timeout_s=5)
    async with orch:
        handle = await orch.submit(1)
        with pytest.raises(StepTimeout, match="collect did not return within"):
            await handle
        assert [(await orch.run(i)).output for i in range(2, 6)] == [4, 9, 16, 25]
        statistics = orch.statistics()
        assert (statistics.slots_quarantined, statistics.slots_leased, statistics.slots_total) == (1, 0, 2)
    assert orch.statistics().threads_abandoned == 1
    program.release.set()


async def test_leaving_with_a_stuck_build_ends_in_time_and_counts_the_thread() -> None:
    """A thread stuck in code of the caller is abandoned and counted, its staging kept."""
    program = StuckBuild(0)
    orch = Orchestrator(program, "host", build_in="thread", drain_timeout_s=0.02)
    with pytest.raises(TimeoutError, match="was still building"):
        async with orch:
            await orch.submit(0)
            await asyncio.to_thread(program.entered.wait, 20)
    statistics = orch.statistics()
    assert (statistics.threads_abandoned, statistics.staging_leased) == (1, 1)
    program.release.set()


def test_an_overdue_fence_poisons_the_device() -> None:
    """fence_timeout_s runs from the launch; past it everyone gets DeviceLost that names the step."""

    async def main() -> None:
        backend = ManualBackend()
        orch = Orchestrator(Square(), backend, fence_timeout_s=2.0, drain_timeout_s=0.5)
        async with orch:
            first, second = await orch.submit(1), await orch.submit(2)
            for handle in (first, second):
                with pytest.raises(DeviceLost, match=r"lost at step 0 \(seq 0\): no fence within fence_timeout_s=2\.0"):
                    await handle
        assert orch.statistics().slots_leased == 2

    run_virtual(main())


def test_each_fence_has_its_own_time() -> None:
    """The limit runs from the fence before it on the stream: a long queue on the device is no hang."""

    async def main() -> None:
        backend = ManualBackend()
        async with Orchestrator(Square(), backend, fence_timeout_s=2.0) as orch:
            handles = [await orch.submit(i) for i in range(3)]
            backend.copy.run()
            for handle in handles:
                await pass_time(1.5)
                backend.compute.run_step()
                assert (await handle).seq == handle.seq

    run_virtual(main())


@pytest.mark.parametrize("build_in", ["inline", "thread"])
async def test_a_build_that_raised_is_tried_again(build_in: Any) -> None:
    """retries=2 calls build up to three times, with the same seq and staging, before the slot is acquired."""
    attempts: list[int] = []

    class Flaky(Square):
        def build(self, step: int, image: Any) -> int | None:
            attempts.append(step)
            if attempts.count(step) < 3:
                raise ArithmeticError("not yet")
            return super().build(step, image)

    async with Orchestrator(Flaky(), "sim:instant", build_in=build_in) as orch:
        result = await orch.run(4, retries=2)
        assert (result.output, result.seq) == (16, 0)
        with pytest.raises(BuildError, match="not yet"):
            await orch.run(5, retries=1)
        assert attempts == [4, 4, 4, 5, 5]
        assert orch.statistics().staging_leased == 0


async def test_wrong_retries_are_refused() -> None:
    """A negative number, no int, or a program that is not repeatable: refused at submit."""

    class Once(Square):
        repeatable = False

    async with Orchestrator({"once": Once(), "hooked": Hooked()}, "sim:instant") as orch:
        with pytest.raises(ConfigurationError, match="retries=-1 must be >= 0"):
            await orch.submit(1, program="hooked", retries=-1)
        with pytest.raises(TypeError, match=r"retries must be an int, got 1\.5"):
            await orch.submit(1, program="hooked", retries=1.5)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="program 'once' says that it is not repeatable"):
            await orch.submit(1, program="once", retries=1)
