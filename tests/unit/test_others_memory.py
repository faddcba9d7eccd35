"""Streams, fences and memory that belong to somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from anyio import wait_all_tasks_blocked as blocked

from async_orch import Orchestrator, Slot, SlotRing, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Fence, Stream
from async_orch.exceptions import BuildError, ConfigurationError, StaleLease
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend, ManualFence
from tests.programs import Hooked, Square, settle


async def test_hold_keeps_the_slot_until_a_foreign_fence_too() -> None:
    """The slot is not reused while another stream still reads it, though the step has long settled."""
    foreign = ManualFence()

    class Holds(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            slot.hold(foreign)
            return super().launch(step, slot, stream)

    backend = ManualBackend()
    async with Orchestrator(Holds(), backend, slots=1) as orch:
        first = await orch.submit(2)
        second = await orch.submit(3)
        backend.copy.run()
        backend.compute.run()
        assert (await first).output == 4
        assert (second.status, orch.statistics().slots_leased) == ("built", 1)
        foreign.finish()
        await settle()
        assert second.status == "launched"
        backend.copy.run()
        backend.compute.run()
        assert (await second).output == 9


async def test_hold_after_the_slot_was_given_back_raises() -> None:
    """A hold that comes too late is an error, not a silent no-op."""
    kept: list[Slot] = []

    class Keeps(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            kept.append(slot)
            return super().launch(step, slot, stream)

    async with Orchestrator(Keeps(), "sim:instant") as orch:
        await orch.run(1)
        with pytest.raises(StaleLease, match="came after its step had given it back"):
            kept[0].hold(ManualFence())


async def test_wait_for_makes_the_compute_stream_wait_before_the_launch() -> None:
    """The step's kernels start only after the given fences; the host does not wait."""
    backend, foreign = ManualBackend(), ManualFence()
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(2, wait_for=[foreign])
        assert handle.status == "launched"
        assert backend.compute.enqueued[:3] == ["isolate", "wait", "wait"]
        backend.copy.run()
        backend.compute.run()
        assert backend.compute.ops
        foreign.finish()
        backend.compute.run()
        assert (await handle).output == 4
        with pytest.raises(TypeError, match="wait_for must hold Fences, got int"):
            await orch.submit(1, wait_for=[3])  # type: ignore[list-item]


async def test_launched_gives_the_fence_behind_the_kernels() -> None:
    """Other streams can wait for a step's kernels as soon as they are enqueued."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=1) as orch:
        first, second = await orch.submit(1), await orch.submit(2)
        fence = await first.launched
        assert not fence.query()
        waiting = asyncio.ensure_future(_fence_of(second))
        await blocked()
        assert not waiting.done()
        backend.copy.run()
        backend.compute.run(5)
        assert fence.query()
        backend.compute.run()
        later = await waiting
        assert not later.query()
        backend.copy.run()
        backend.compute.run()
        await second
        assert (await second.launched).query(), "a step that is over gives a done fence"


async def _fence_of(handle: Any) -> Fence:
    fence: Fence = await handle.launched
    return fence


async def test_launched_raises_the_failure_of_a_step_that_never_gets_there() -> None:
    """Who waits for the launch of a step that fails before it gets that failure."""
    async with Orchestrator(Hooked(build={1}), "sim:instant") as orch:
        handle = await orch.submit(1)
        with pytest.raises(BuildError):
            await handle.launched


class Fixed(StepProgram[int, int]):
    """Reads its image at one address for all steps, as a captured graph does."""

    slot = SlotSpec(image_nbytes=8, output_nbytes=8, image_at="fixed")

    def __init__(self) -> None:
        self.addresses: set[int] = set()

    def build(self, step: int, image: ByteArray) -> int | None:
        image.view(np.int64)[0] = step
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self.addresses.add(slot.image.handle)
        stream.launch(_copy, slot.image, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view(np.int64)[0])


def _copy(source: ByteArray, destination: ByteArray) -> None:
    destination[:8] = source[:8]


@pytest.mark.parametrize("backend", ["host", "sim:instant"])
async def test_image_at_fixed_gives_every_step_the_same_address(backend: str) -> None:
    """The image is copied once more on the device, to one region; d2d_ns is recorded; results stay right."""
    program, records = Fixed(), list[StepRecord]()
    async with Orchestrator(program, backend, step_log=records.append) as orch:
        assert [r.output async for r in orch.map(range(20))] == list(range(20))
    assert len(program.addresses) == 1
    assert all(r.d2d_ns is not None for r in records)


def test_image_at_is_checked() -> None:
    """An unknown place, or a fixed place for no image, is refused."""
    with pytest.raises(ConfigurationError, match="must be 'slot', 'fixed' or 'shared'"):
        SlotSpec(image_nbytes=8, image_at="here")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs an image"):
        SlotSpec(image_nbytes=0, image_at="fixed")


async def test_an_adopted_ring_owns_indices_and_fences_the_caller_the_memory() -> None:
    """SlotRing.adopt leases the caller's buffers by index and generation, and never frees them."""
    buffers = [np.zeros(8, np.uint8) for _ in range(2)]
    ring = SlotRing.adopt(buffers)
    first = ring.acquire_nowait()
    second = ring.acquire_nowait()
    assert first.item is buffers[first.index]
    fence = ManualFence()
    first.release(fence)
    waiting = asyncio.ensure_future(ring.acquire())
    await blocked()
    assert not waiting.done()
    fence.finish()
    third = await waiting
    assert (third.index, third.generation) == (first.index, 1)
    with pytest.raises(StaleLease):
        _ = first.item
    second.release()
    assert (len(ring), ring.free, ring.leased) == (2, 1, 1)


async def test_who_waits_for_an_adopted_ring_is_served_in_order_and_can_give_up() -> None:
    """Waiters are first come first served; a cancelled one is forgotten and loses no buffer."""
    ring = SlotRing.adopt(["only"])
    lease = ring.acquire_nowait()
    waiters = [asyncio.ensure_future(ring.acquire()) for _ in range(3)]
    await blocked()
    waiters[0].cancel()
    await blocked()
    lease.release()
    second = await waiters[1]
    assert not waiters[2].done()
    second.release()
    (await waiters[2]).release()
    assert ring.free == 1


@pytest.mark.parametrize("name", ["host", "sim:instant"])
async def test_a_numpy_view_shares_the_slots_address(name: str) -> None:
    """Buffers of software devices are reachable through dlpack without a copy."""
    seen: list[tuple[int, int]] = []

    class Looks(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            buffer: Buffer = slot.image
            view: Any = np.from_dlpack(buffer)  # type: ignore[arg-type]
            seen.append((buffer.handle, view.ctypes.data))
            return super().launch(step, slot, stream)

    async with Orchestrator(Looks(), name) as orch:
        await orch.run(1)
    assert seen[0][0] == seen[0][1]
