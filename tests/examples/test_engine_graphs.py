"""Captured graphs behind the orchestrator: right in every case, on graphs that refuse addresses that changed."""

from __future__ import annotations

import pytest

from async_orch import Layout, Orchestrator, SlotSpec
from async_orch.exceptions import BuildError, DeviceLost, LaunchError, StepCancelled
from async_orch.logs import StepRecord
from examples.engines.captured_graphs import BUCKETS, GraphedModel, warm_up
from examples.engines.fake_graphs import AddressChanged
from tests.examples.engine_support import BATCHES, assert_all_back, following, no_thread_is_left

__all__ = ["no_thread_is_left"]


@pytest.mark.parametrize("backend", ["host", "sim:instant"])
async def test_graphs_are_captured_once_a_bucket_and_replayed_from_one_address(backend: str) -> None:
    """Batches of all sizes come out right from slots that differ, with one capture for each size of batch."""
    program, records = GraphedModel(), list[StepRecord]()
    async with Orchestrator(program, backend=backend, slots=3, step_log=records.append) as orch:
        await warm_up(orch)
        captured = dict(program.graphs)
        assert tuple(captured) == BUCKETS
        results = [r async for r in orch.map(BATCHES)]
        assert [r.output for r in results] == [following(b) for b in BATCHES]
        assert {r.slot for r in results} == {0, 1, 2}
        assert program.graphs == captured
    assert_all_back(orch)
    assert all(r.d2d_ns is not None for r in records)


async def test_a_failing_replay_leaves_the_others_alone() -> None:
    """A batch larger than every bucket fails in build, a bad token in the replay; each alone."""
    async with Orchestrator(GraphedModel(), backend="host", slots=3) as orch:
        handles = [await orch.submit(batch) for batch in ([1], [2] * 9, [3], [-1], [5])]
        with pytest.raises(BuildError, match="a batch of 9 is larger than the largest captured one, 8"):
            await handles[1]
        with pytest.raises(LaunchError, match="kernels failed"):
            await handles[3]
        assert [(await handles[i]).output for i in (0, 2, 4)] == [[4], [10], [16]]
    assert_all_back(orch)


async def test_a_cancelled_replay_does_not_disturb_the_ones_behind() -> None:
    """A replay cannot be taken back: it ends, its slot returns, and the steps behind it are right."""
    program = GraphedModel()
    async with Orchestrator(program, backend="host", slots=3) as orch:
        await warm_up(orch)
        program.running.clear()
        handles = [await orch.submit(batch) for batch in BATCHES[:5]]
        await handles[2].launched
        assert handles[1].cancel()
        assert handles[4].cancel()
        program.running.set()
        for i in (1, 4):
            with pytest.raises(StepCancelled):
                await handles[i]
        assert [(await handles[i]).output for i in (0, 2, 3)] == [following(BATCHES[i]) for i in (0, 2, 3)]
        assert [handles[i].status for i in (1, 4)] == ["detached", "cancelled"]
    assert_all_back(orch)


async def test_a_replay_that_hangs_loses_the_device() -> None:
    """Past fence_timeout_s every step fails; the thread inside the replay is counted until it comes back."""
    program = GraphedModel()
    async with Orchestrator(program, backend="host", slots=3, fence_timeout_s=0.05, drain_timeout_s=0.05) as orch:
        program.running.clear()
        for handle in [await orch.submit(batch) for batch in BATCHES[:2]]:
            with pytest.raises(DeviceLost, match="device lost at step 0"):
                await handle
    assert orch.statistics().threads_abandoned == 1
    assert orch.statistics().slots_leased == 2
    program.running.set()


async def test_breaking_out_of_map_ends_the_replays_on_the_device() -> None:
    """Early exit: what was launched ends, what was not is removed."""
    async with Orchestrator(GraphedModel(), backend="host", slots=3) as orch:
        async for result in orch.map(BATCHES):
            if result.seq == 4:
                break
    assert_all_back(orch)


class Unfixed(GraphedModel):
    """Forgets that graphs need fixed addresses."""

    slot = SlotSpec(image=Layout(tokens=("i4", (8,))), output_nbytes=32)


async def test_fake_graphs_refuse_an_image_that_moved() -> None:
    """Without image_at="fixed" the second slot's image lies elsewhere than the captured one."""
    async with Orchestrator(Unfixed(), backend="sim:instant", slots=2) as orch:
        assert (await orch.run([1])).output == [4]
        with pytest.raises(LaunchError, match="AddressChanged: captured address 0x") as caught:
            await orch.run([1])
        assert isinstance(caught.value.__cause__, AddressChanged)
