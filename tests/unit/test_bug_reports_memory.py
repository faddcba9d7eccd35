"""Kinds of bug reports of this trade, part 1: memory that is reused, freed or doubled when it must not be.

Each docstring names the reports of that kind. None of them may happen here.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked as blocked

from async_orch import Orchestrator, Slot, SlotRing, SlotSpec, StepHandle, StepProgram, open_backend
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import OrchError, StaleLease, StepCancelled
from async_orch.testing import Fault, FaultPlan, ManualBackend, leak_check, run_virtual
from tests.early_reuse import SumUp
from tests.programs import Square, settle
from tests.virtual_time import pass_time


@pytest.mark.parametrize("workers", [1, 2])
async def test_staging_is_overwritten_before_its_copy_has_finished(workers: int) -> None:
    """Builds run ahead of slow copies, yet every copy brings its own step's bytes
    (vLLM #25279, #47644, #54269, #29288; pytorch #126946)."""
    plan = FaultPlan(Fault(action="delay", operation="copy", stream="copy", delay_ns=2_000_000))
    backend = open_backend("sim:instant", faults=plan)
    async with Orchestrator(SumUp(), backend, slots=8, build_in="thread", build_workers=workers) as orch:
        assert [result.output async for result in orch.map(range(40))] == [(i, i) for i in range(40)]
    assert plan.struck["copy", "delay"] == 40
    backend.close()


async def test_a_queue_that_bounds_the_host_does_not_bound_the_device() -> None:
    """With a device that finishes nothing, no more steps are launched than there are slots, however many are wanted
    (vLLM #53057)."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=2, max_inflight=50, queue_depth=50) as orch:
        handles = [orch.submit_nowait(step) for step in range(50)]
        assert [handle.status for handle in handles].count("launched") == 2
        assert backend.compute.enqueued.count("launch") == 2
        while not handles[-1].done():
            backend.run()
            await settle()
            assert orch.statistics().on_device <= 2
        assert [(await handle).output for handle in handles] == [i * i for i in range(50)]


async def test_a_ring_wraps_silently() -> None:
    """A full ring makes the next step wait; when it wraps the generation tells, and whoever kept the old slot is told
    (sglang #13713, sglang-jax #1504)."""
    kept: list[Slot] = []

    class Keeps(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            kept.append(slot)
            return super().launch(step, slot, stream)

    backend = ManualBackend()
    async with Orchestrator(Keeps(), backend, slots=1) as orch:
        first, second = await orch.submit(1), await orch.submit(2)
        assert second.status == "built"
        for handle in (first, second):
            backend.run()
            await handle
        assert [((await h).slot, (await h).generation) for h in (first, second)] == [(0, 0), (0, 1)]
        for slot in kept:
            with pytest.raises(StaleLease):
                _ = slot.workspace


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_an_index_is_freed_while_the_forward_still_reads_it(how: str) -> None:
    """A step that is given up after its launch keeps its slot until its fence, and the next one keeps its place
    (sglang #18746)."""

    async def main() -> None:
        backend = ManualBackend()
        async with Orchestrator(Square(), backend, slots=1) as orch:
            first = await orch.submit(1, timeout_s=0.1 if how == "timeout" else None)
            second = await orch.submit(2)
            if how == "cancel":
                first.cancel()
            with pytest.raises(OrchError):
                await first
            assert (first.status, second.status) == ("detached", "built")
            assert orch.statistics().slots_leased == 1
            assert backend.compute.enqueued.count("launch") == 1
            backend.run()
            await settle()
            backend.run()
            assert (await second).output == 4

    run_virtual(main())


async def test_memory_is_freed_before_the_fence_in_flight_is_done() -> None:
    """Closing with a device that does not finish ends in time, and what the device may still write to stays mapped
    (vLLM #45357); nobody spins for a fence that never comes (vllm-ascend #16315)."""
    backend = ManualBackend()
    orch = Orchestrator(Square(), backend, slots=2, drain_timeout_s=0.02)
    with pytest.raises(TimeoutError):
        async with orch:
            await orch.submit(1)
    kept = {buffer.name for buffer in backend.live}
    assert {"slot.image", "slot.workspace", "slot.output", "slot.output_host"} <= kept
    assert len([buffer for buffer in backend.live if buffer.name == "slot.image"]) == 1
    assert orch.statistics().slots_leased == 1


def test_a_fence_that_waits_does_not_livelock() -> None:
    """While a device hangs, the pipeline does nothing at all until the time-out: no polling, no busy loop
    (vllm-ascend #16315)."""
    turns = 0

    async def main() -> None:
        nonlocal turns
        plan = FaultPlan(Fault(action="hang", operation="launch", nth=1))
        backend = open_backend("sim:instant", clock="virtual", faults=plan)
        async with Orchestrator(Square(), backend) as orch:
            handle = await orch.submit(3)
            pipeline = orch._opened.pipeline  # type: ignore[union-attr]
            pump = pipeline.pump

            def counted() -> None:
                nonlocal turns
                turns += 1
                pump()

            pipeline.pump = pipeline.waker._callback = counted  # type: ignore[method-assign]
            await pass_time(30)
            plan.release()
            assert (await handle).output == 9
        backend.close()

    run_virtual(main())
    assert turns < 10


async def test_an_aborted_step_frees_its_memory_twice() -> None:
    """Cancelled again and again, at every stage and by closing too, each slot is free once and granted to one
    (vLLM #33377)."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=2, queue_depth=4) as orch:
        for _ in range(3):
            handles = [await orch.submit(step) for step in range(4)]
            for handle in handles * 2:
                handle.cancel()
                handle.cancel()
            backend.run()
            await settle()
            assert orch.statistics().slots_leased == 0
        handles = [await orch.submit(step) for step in range(4)]
        assert [handle.status for handle in handles][:3] == ["launched", "launched", "built"]
        backend.run()
        await settle()
        backend.run()
        results = [await handle for handle in handles]
        assert [result.output for result in results] == [0, 1, 4, 9]
        assert {result.slot for result in results} == {0, 1}
    assert backend.live == []

    ring = SlotRing.adopt(["first", "second"])
    lease = ring.acquire_nowait()
    for _ in range(3):
        lease.release()
    assert sorted(ring.acquire_nowait().item for _ in range(2)) == ["first", "second"]
    with pytest.raises(anyio.WouldBlock):
        ring.acquire_nowait()


class _Payload:
    """A step that a weak reference can watch."""


class _Ignore(StepProgram[_Payload, None]):
    slot = SlotSpec(image_nbytes=8)

    def build(self, step: _Payload, image: ByteArray) -> int | None:
        return None

    def launch(self, step: _Payload, slot: Slot, stream: Stream) -> int | None:
        return None


async def test_slots_leak_on_abort_and_cancelled_ids_grow_without_bound() -> None:
    """After hundreds of cancels every lease is back, and nothing of the cancelled steps is kept
    (sglang #21652; TensorRT-LLM #8131)."""
    alive: list[weakref.ref[_Payload]] = []
    backend = ManualBackend()
    orch = Orchestrator(_Ignore(), backend, slots=2)
    with leak_check(orch):
        async with orch:
            for index in range(300):
                payload = _Payload()
                alive.append(weakref.ref(payload))
                handle: StepHandle[None] = await orch.submit(payload, step_id=f"request {index}")
                del payload
                if index % 3:
                    backend.run()
                handle.cancel()
                backend.run()
                await settle()
            statistics = orch.statistics()
            assert statistics.slots_leased == statistics.staging_leased == statistics.pending == 0
            assert set(statistics.queue_lengths.values()) == {0}
            gc.collect()
            assert sum(reference() is not None for reference in alive) <= 1  # that of the last handle


async def test_memory_is_pinned_on_the_hot_path() -> None:
    """No step allocates, neither device nor pinned memory: any allocation after opening would raise here
    (vLLM #37006)."""
    plan = FaultPlan(
        Fault(action="delay", operation="alloc", delay_ns=0), Fault(action="delay", operation="alloc_host", delay_ns=0)
    )
    backend = open_backend("sim:instant", faults=plan)
    async with Orchestrator(Square(), backend, slots=2) as orch:
        opened = dict(plan.struck)
        assert opened
        outputs = [result.output async for result in orch.map(range(100))]
        assert outputs == [i * i for i in range(100)]
        assert dict(plan.struck) == opened
        assert orch.statistics().step_path_allocs == 0
    backend.close()


async def test_pinned_memory_is_rounded_up_to_twice_its_size() -> None:
    """A ring takes what it was asked for, to the byte, also where that is just above a power of two
    (pytorch #95823)."""

    class Odd(SumUp):
        slot = SlotSpec(image_nbytes=2**20 + 8, workspace_nbytes=2**16 + 8, output_nbytes=4104)

    backend = ManualBackend()
    async with Orchestrator(Odd(), backend, slots=3, queue_depth=1) as orch:
        device = sum(buffer.nbytes for buffer in backend.live if not buffer.is_host)
        pinned = sum(buffer.nbytes for buffer in backend.live if buffer.is_host)
        assert device == 3 * (2**20 + 8 + 2**16 + 8 + 4104)
        assert pinned == orch.config.staging_count * (2**20 + 8) + 3 * 4104


async def test_an_aborted_build_shares_its_staging_with_the_next_step() -> None:
    """A build that is cancelled while its thread writes keeps its buffer until it returns (vLLM #29288)."""
    entered, go_on = threading.Event(), threading.Event()

    class Slow(SumUp):
        def build(self, step: int, image: Any) -> int | None:
            if step == 0:
                entered.set()
                go_on.wait(30)
            return super().build(step, image)

    async with Orchestrator(Slow(), "host", build_in="thread", build_workers=2) as orch:
        first = await orch.submit(0)
        while not entered.is_set():
            await anyio.to_thread.run_sync(entered.wait, 30)
        first.cancel()
        with pytest.raises(StepCancelled):
            await first
        outputs = [result.output async for result in orch.map(range(1, 20))]
        assert outputs == [(i, i) for i in range(1, 20)]
        assert orch.statistics().staging_leased == 1
        go_on.set()
        await blocked()
