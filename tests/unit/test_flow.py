"""The way of a step, with every fence under the test's control."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked as blocked
from anyio.lowlevel import checkpoint

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Stream
from async_orch.exceptions import StaleLease
from async_orch.testing import ManualBackend
from tests.programs import Square


async def settle() -> None:
    """Let wake-ups that the test's fences posted run."""
    for _ in range(3):
        await checkpoint()


async def test_a_step_goes_through_all_stages_and_its_handle_settles_at_the_last_fence() -> None:
    """Status follows the device: launched until the output's fence, completed right after it."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(7)
        assert handle.status == "launched"
        backend.copy.run()
        backend.compute.run(5)
        await settle()
        assert not handle.done()
        backend.compute.run()
        await settle()
        assert handle.status == "completed"
        result = await handle
        assert (result.output, result.seq, result.slot, result.generation) == (49, 0, 0, 0)


async def test_kernels_are_enqueued_behind_the_copy_without_waiting_for_it() -> None:
    """The launch does not wait on the host: the compute stream waits on the copy's fence."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(3)
        assert backend.copy.enqueued == ["isolate", "record", "copy", "record"]
        assert backend.compute.enqueued == ["isolate", "wait", "record", "launch", "record", "copy", "record"]
        backend.compute.run()
        await settle()
        assert not handle.done()
        backend.copy.run()
        backend.compute.run()
        assert (await handle).output == 9


async def test_later_steps_are_built_and_copied_while_the_device_is_busy() -> None:
    """With three slots three steps are on the device and the next two are built, before any fence is done."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=3, queue_depth=2) as orch:
        handles = [await orch.submit(i) for i in range(5)]
        assert [h.status for h in handles] == ["launched", "launched", "launched", "built", "queued"]
        statistics = orch.statistics()
        assert (statistics.on_device, statistics.in_flight, statistics.slots_leased) == (3, 5, 3)
        backend.copy.run()
        backend.compute.run()
        await settle()
        backend.copy.run()
        backend.compute.run()
        assert [(await h).output for h in handles] == [0, 1, 4, 9, 16]


async def test_staging_is_not_reused_before_its_copy_is_done() -> None:
    """With every copy pending the builds stop at the number of staging buffers (vLLM #25279, #47644)."""
    backend = ManualBackend()
    results: list[int] = []
    async with Orchestrator(Square(), backend, slots=8, queue_depth=1, max_inflight=8) as orch:
        async with anyio.create_task_group() as tasks:

            async def client(i: int) -> None:
                results.append((await orch.run(i)).output)

            for i in range(6):
                tasks.start_soon(client, i)
            await blocked()
            # build_workers + queue_depth + 1 = 3 staging buffers, all being copied.
            assert orch.statistics().on_device == 3
            assert orch.statistics().staging_leased == 3
            while len(results) < 6:
                backend.copy.run()
                backend.compute.run()
                await settle()
        assert sorted(results) == [0, 1, 4, 9, 16, 25]


async def test_a_slot_is_not_reused_before_its_output_was_collected() -> None:
    """With one slot the second launch comes after the first collect (vLLM #53057, sglang #18746)."""
    order: list[str] = []

    class Ordered(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            order.append(f"launch {step}")
            return super().launch(step, slot, stream)

        def collect(self, step: int, output: Any) -> int:
            order.append(f"collect {step}")
            return super().collect(step, output)

    backend = ManualBackend()
    async with Orchestrator(Ordered(), backend, slots=1) as orch:
        handles = [await orch.submit(i) for i in range(2)]
        assert order == ["launch 0"]
        for _ in range(2):
            backend.copy.run()
            backend.compute.run()
            await settle()
        assert [(await h).output for h in handles] == [0, 1]
    assert order == ["launch 0", "collect 0", "launch 1", "collect 1"]


async def test_launches_happen_in_seq_order_even_if_builds_end_out_of_order() -> None:
    """Two build workers may finish in any order; the device sees the caller's order."""
    release = [threading.Event() for _ in range(2)]
    launched: list[int] = []

    class Slow(Square):
        def build(self, step: int, image: Any) -> int | None:
            release[step].wait(20)
            return super().build(step, image)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            launched.append(step)
            return super().launch(step, slot, stream)

    async with Orchestrator(Slow(), "sim:instant", build_in="thread", build_workers=2) as orch:
        first, second = await orch.submit(0), await orch.submit(1)
        release[1].set()
        while second.status != "built":
            await checkpoint()
        assert launched == []
        release[0].set()
        assert ((await first).output, (await second).output) == (0, 1)
    assert launched == [0, 1]


async def test_a_slot_kept_after_launch_cannot_reach_memory_once_the_step_gave_it_back() -> None:
    """A program that stores its slot gets StaleLease instead of another step's bytes."""
    kept: list[Slot] = []

    class Keeps(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            kept.append(slot)
            return super().launch(step, slot, stream)

    async with Orchestrator(Keeps(), "sim:instant") as orch:
        await orch.run(1)
        with pytest.raises(StaleLease):
            _ = kept[0].image


async def test_a_program_without_image_copies_nothing() -> None:
    """image_nbytes=0 enqueues no copy and needs no build."""

    class Bare(StepProgram[int, int]):
        slot = SlotSpec(image_nbytes=0, output_nbytes=8)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            stream.launch(_write, slot.output, step)
            return 4

        def collect(self, step: int, output: Any) -> int:
            return int(output.sum() + 1000 * output.nbytes)

    def _write(output: Any, step: int) -> None:
        output[:] = step

    backend = ManualBackend()
    async with Orchestrator(Bare(), backend) as orch:
        handle = await orch.submit(2)
        assert backend.copy.enqueued == []
        backend.compute.run()
        result = await handle
        assert result.output == 4 * 2 + 4000
        assert result.timings.h2d_ns is None


async def test_awaiting_a_handle_twice_and_from_two_tasks_gives_the_same_result() -> None:
    """A handle can be awaited any number of times by any number of tasks."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(5)
        waiters = [asyncio.ensure_future(handle) for _ in range(3)]
        await blocked()
        backend.copy.run()
        backend.compute.run()
        outputs = [(await w).output for w in waiters] + [(await handle).output]
        assert outputs == [25] * 4


async def test_cancelling_one_awaiter_leaves_the_step_and_the_others_alone() -> None:
    """A cancelled ``await handle`` is that task's matter only."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(5)
        lost, kept = asyncio.ensure_future(handle), asyncio.ensure_future(handle)
        await blocked()
        lost.cancel()
        await blocked()
        backend.copy.run()
        backend.compute.run()
        assert (await kept).output == 25
        assert lost.cancelled()


async def test_timings_give_the_device_time_and_the_bubble_between_steps() -> None:
    """device_ns is the span of the kernels; the bubble is the gap to the end of the step before."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        first = await orch.submit(1)
        backend.copy.run()
        backend.compute.run()
        await first
        backend.compute.clock_ns += 5000
        second = await orch.submit(2)
        backend.copy.run()
        backend.compute.run()
        timings = [(await h).timings for h in (first, second)]
        assert [t.device_ns for t in timings] == [200, 200]
        assert timings[0].bubble_ns is None
        assert timings[1].bubble_ns == 5000 + 300
