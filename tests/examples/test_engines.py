"""Engines behind the orchestrator: right in every case, on fakes that would show it otherwise."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from async_orch import Orchestrator
from async_orch.exceptions import BuildError, DeviceLost, LaunchError, StepTimeout
from async_orch.logs import StepRecord
from examples.engines.fake_device import FakeDevice
from examples.engines.fake_worker import PLACEHOLDER, FakeWorker
from examples.engines.persistent_inputs import SLOTS, ModelRunner
from examples.engines.serving_loop import IN_FLIGHT, Serving, generate
from tests.examples.engine_support import BATCHES, assert_all_back, following, no_thread_is_left

__all__ = ["no_thread_is_left"]


# -- persistent inputs -------------------------------------------------------------------------------------


def assert_runner_clean(orch: Orchestrator[Any, Any], device: FakeDevice) -> None:
    """No buffer was reused early, and none is pinned any more."""
    assert_all_back(orch)
    assert (device.early_reuses, device.pinned_buffers) == (0, 0)


@pytest.mark.parametrize("build_in", ["inline", "thread"])
@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_runner_gives_each_batch_its_own_tokens(build_in: Any, launch_in: Any) -> None:
    """Batches of all sizes come out right and in order, wherever the hooks run."""
    device = FakeDevice()
    async with Orchestrator(ModelRunner(device), slots=SLOTS, build_in=build_in, launch_in=launch_in) as orch:
        assert [r.output async for r in orch.map(BATCHES)] == [following(b) for b in BATCHES]
    assert_runner_clean(orch, device)


async def test_runner_waits_for_buffers_that_a_late_device_has_not_read() -> None:
    """While the device has read nothing, only as many steps are prepared as there are buffers."""
    device = FakeDevice()
    device.running.clear()
    async with Orchestrator(ModelRunner(device), slots=SLOTS) as orch:
        handles = [await orch.submit(batch) for batch in BATCHES[: SLOTS + 2]]
        await handles[SLOTS - 1].launched
        assert [h.status for h in handles] == ["launched"] * SLOTS + ["queued"] * 2
        device.running.set()
        assert [(await h).output for h in handles] == [following(b) for b in BATCHES[: SLOTS + 2]]
    assert_runner_clean(orch, device)


async def test_a_failing_batch_leaves_the_others_alone() -> None:
    """A batch too large for the buffers fails in prepare, a bad token on the device; each alone."""
    device = FakeDevice()
    async with Orchestrator(ModelRunner(device), slots=SLOTS) as orch:
        batches = [[1], [2] * 9, [3], [-1], [5]]
        handles = [await orch.submit(batch) for batch in batches]
        with pytest.raises(BuildError, match="could not broadcast"):
            await handles[1]
        with pytest.raises(LaunchError, match="token -1 is not in the vocabulary"):
            await handles[3]
        assert [(await handles[i]).output for i in (0, 2, 4)] == [[4], [10], [16]]
    assert_runner_clean(orch, device)


async def test_a_cancelled_batch_keeps_its_buffers_until_the_device_is_done() -> None:
    """Cancelled after dispatch: the buffers are not given out again before the device has read and written them."""
    device = FakeDevice()
    device.running.clear()
    async with Orchestrator(ModelRunner(device), slots=SLOTS) as orch:
        handles = [await orch.submit(batch) for batch in BATCHES[: SLOTS + 1]]
        assert handles[0].cancel()
        assert handles[SLOTS].cancel()
        assert [h.status for h in handles] == ["detached", "launched", "launched", "cancelled"]
        later = await orch.submit([100])
        await wait_all_tasks_blocked()
        assert later.status == "queued"
        device.running.set()
        assert [(await h).output for h in (*handles[1:SLOTS], later)] == [*map(following, BATCHES[1:SLOTS]), [301]]
    assert_runner_clean(orch, device)


async def test_a_runner_that_hangs_is_lost_and_keeps_its_pinned_memory() -> None:
    """Past fence_timeout_s every step fails, and close unpins nothing that the device may still touch."""
    device = FakeDevice()
    device.running.clear()
    async with Orchestrator(ModelRunner(device), slots=SLOTS, fence_timeout_s=0.05) as orch:
        for handle in [await orch.submit(batch) for batch in BATCHES[:2]]:
            with pytest.raises(DeviceLost, match="device lost at step 0"):
                await handle
        with pytest.raises(DeviceLost):
            await orch.submit([1])
    assert_all_back(orch)
    assert device.pinned_buffers == 2 * SLOTS


@pytest.mark.parametrize("how", ["break", "raise"])
async def test_leaving_early_gives_every_buffer_of_the_runner_back(how: str) -> None:
    """Breaking out of map, or an exception in the body, ends what was dispatched before close runs."""
    device = FakeDevice()
    orch = Orchestrator(ModelRunner(device), slots=SLOTS)
    with suppress(KeyError):
        async with orch:
            async for result in orch.map(BATCHES):
                if result.seq == 4 and how == "raise":
                    raise KeyError(how)
                if result.seq == 4:
                    break
    assert_runner_clean(orch, device)


# -- serving loop ------------------------------------------------------------------------------------------


def serving(worker: FakeWorker, **options: Any) -> Orchestrator[int, int]:
    """The orchestrator that the loop runs on."""
    return Orchestrator(Serving(worker), slots=IN_FLIGHT, policy="discard_dependents", **options)


def assert_worker_clean(orch: Orchestrator[Any, Any], worker: FakeWorker) -> None:
    """The worker was never misused, and has nothing left to end."""
    assert_all_back(orch)
    assert worker.misuses == []
    assert worker.in_flight == 0
    assert worker.max_in_flight <= IN_FLIGHT


TOKENS = [100 + 7 * i for i in range(1, 41)]


@pytest.mark.parametrize("build_in", ["inline", "thread"])
@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_loop_decodes_through_placeholders(build_in: Any, launch_in: Any) -> None:
    """Tokens follow each other through placeholders, wherever the hooks run, and the worker is never misused."""
    worker = FakeWorker(IN_FLIGHT)
    async with serving(worker, build_in=build_in, launch_in=launch_in) as orch:
        assert await generate(orch, 100, 40) == TOKENS
    assert_worker_clean(orch, worker)


async def test_a_failed_step_takes_the_later_one_along_and_its_stale_result_is_dropped() -> None:
    """The run behind a failed one gives garbage, which nobody sees; the loop goes on from the last good token."""
    worker, records = FakeWorker(IN_FLIGHT, fail={100}), list[StepRecord]()
    worker.running.clear()
    async with serving(worker, step_log=records.append) as orch, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(generate(orch, 100, 40))
        await wait_all_tasks_blocked()
        assert worker.in_flight == IN_FLIGHT
        worker.running.set()
        assert await task == TOKENS
    assert_worker_clean(orch, worker)
    assert worker.garbage == 1
    assert orch.statistics().failed_unretrieved == 0
    failed = {r.seq: str(r.error) for r in records if r.event == "step.failed"}
    assert sorted(failed) == [0, 1]
    assert "failed at token 100" in failed[0]
    assert "needs the output of step 0" in failed[1]


async def test_a_failure_that_comes_back_is_raised() -> None:
    """After the given number of restarts the caller gets the failure itself."""
    worker = FakeWorker(IN_FLIGHT, fail={100})
    async with serving(worker) as orch:
        with pytest.raises(LaunchError, match="failed at token 100"):
            await generate(orch, 100, 5, restarts=0)
        assert await generate(orch, 100, 5) == TOKENS[:5]
    assert_worker_clean(orch, worker)


async def test_a_cancelled_loop_aborts_what_is_in_flight() -> None:
    """When the caller goes away both steps are dropped, and the next request starts from its own token."""
    worker = FakeWorker(IN_FLIGHT)
    worker.running.clear()
    async with serving(worker) as orch:
        task = asyncio.create_task(generate(orch, 5000, 40))
        await wait_all_tasks_blocked()
        assert worker.in_flight == IN_FLIGHT
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert orch.statistics().cancelled == IN_FLIGHT
        worker.running.set()
        assert await generate(orch, 100, 40) == TOKENS
    assert_worker_clean(orch, worker)


async def test_a_step_that_times_out_aborts_the_later_ones() -> None:
    """timeout_s acts as a cancel: the loop raises, and the worker ends both runs before their slots serve others."""
    worker = FakeWorker(IN_FLIGHT)
    worker.running.clear()
    async with serving(worker) as orch:
        with pytest.raises(StepTimeout):
            await generate(orch, 5000, 40, restarts=0, timeout_s=0.05)
        worker.running.set()
        assert await generate(orch, 100, 40) == TOKENS
    assert_worker_clean(orch, worker)


async def test_a_worker_that_hangs_fails_every_step() -> None:
    """A wait past fence_timeout_s raises DeviceLost from the loop, and from every later one."""
    worker = FakeWorker(IN_FLIGHT)
    worker.running.clear()
    async with serving(worker, fence_timeout_s=0.05) as orch:
        for _ in range(2):
            with pytest.raises(DeviceLost):
                await generate(orch, 100, 40)
    assert_all_back(orch)
    assert worker.misuses == []


async def test_leaving_with_steps_in_flight_ends_their_runs() -> None:
    """An exception in the body comes out unchanged, after the worker has ended what it had."""
    worker = FakeWorker(IN_FLIGHT)
    orch = serving(worker)
    with pytest.raises(KeyError):
        async with orch:
            await orch.submit(100)
            await orch.submit(PLACEHOLDER)
            raise KeyError
    assert_worker_clean(orch, worker)
