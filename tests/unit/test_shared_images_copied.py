"""Where images are copied although their program would share them: no such memory, or none left, or no use for it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import OutOfDeviceMemory
from async_orch.testing import ManualBackend
from tests.sharing import NBYTES, copies, image, outputs, shared
from tests.uploads import Echo


class Imageless(StepProgram[bytes, bytes]):
    """Has an output of no bytes, and no image."""

    slot = SlotSpec(image_nbytes=0, output_nbytes=8)

    def launch(self, step: bytes, slot: Slot, stream: Stream) -> int | None:
        return 0

    def collect(self, step: bytes, output: ByteArray) -> bytes:
        return b""


async def test_a_device_without_shared_memory_copies() -> None:
    """``image_at="shared"`` asks for what may not be there; the program need not know."""
    backend = ManualBackend()
    async with Orchestrator(shared(), backend) as orch:
        assert await outputs(orch, backend, [image(1), image(2)]) == [image(1), image(2)]
    assert copies(backend) == 2


@pytest.mark.parametrize("options", [{"mode": "naive"}, {"upload": "delta"}], ids=["naive", "delta"])
async def test_modes_that_need_an_image_of_the_slot_copy(options: dict[str, Any]) -> None:
    """Mode naive allocates for each step, and a delta upload compares with what the slot's image holds."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(), backend, **options) as orch:
        assert await outputs(orch, backend, [image(1), image(2)]) == [image(1), image(2)]
    assert copies(backend) == 2
    assert backend.live == []


@pytest.mark.skipif(sys.platform != "linux", reason="worker processes share memory on Linux only")
async def test_images_of_worker_processes_are_copied() -> None:
    """They are built in memory that the processes share, which the device does not."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(), backend, build_in="process", build_workers=1) as orch:
        handle = await orch.submit(image(1))
        while handle.status in ("queued", "building"):
            await wait_all_tasks_blocked()
        backend.run()
        assert (await handle).output == image(1)
    assert copies(backend) == 1


@pytest.mark.parametrize("other", ["slot", "fixed"])
async def test_one_program_that_does_not_share_makes_all_copy(other: Any) -> None:
    """It may rely on where its slots' images lie, and the slots are the same."""
    backend = ManualBackend(shares_memory=True)
    programs = {"one": shared(), "other": Echo(NBYTES, image_at=other)}
    async with Orchestrator(programs, backend, slots=1) as orch:
        for number, name in enumerate(("one", "other", "one")):
            handle = await orch.submit(image(number), program=name)
            backend.run()
            await wait_all_tasks_blocked()
            assert (await handle).output == image(number)
    assert copies(backend) == 3


async def test_a_program_without_an_image_does_not_stand_in_the_way() -> None:
    """Only those that have one must share it."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator({"one": shared(), "other": Imageless()}, backend, slots=1) as orch:
        for number, name in enumerate(("one", "other", "one")):
            handle = await orch.submit(image(number), program=name)
            backend.run()
            await wait_all_tasks_blocked()
            assert (await handle).output == (image(number) if name == "one" else b"")
    assert backend.copy.enqueued == []


@pytest.mark.parametrize("left", [0, 1, 3, 5])
async def test_what_does_not_get_shared_memory_is_copied(left: int) -> None:
    """Shared memory for some of the buffers only: results are right, and with none everything is copied."""

    class Little(ManualBackend):
        left = 0

        def alloc_mapped(self, nbytes: int, *, name: str = "") -> tuple[Buffer, Buffer] | None:
            if name == "slot.output":
                return None
            self.left -= 1
            return super().alloc_mapped(nbytes, name=name) if self.left >= 0 else None

    backend = Little(shares_memory=True)
    backend.left = left
    steps = [image(number) for number in range(24)]
    async with Orchestrator(shared(), backend, slots=2) as orch:
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 24 if left < 3 else 0 < copies(backend) < 24
    assert backend.live == []


async def test_memory_that_the_slots_need_is_not_taken_for_staging() -> None:
    """A ring that fits with copies opens; staging shares what is left, and the rest of it is ordinary host memory."""
    backend = ManualBackend(2 * NBYTES + NBYTES // 2, shares_memory=True)
    steps = [image(number) for number in range(8)]
    async with Orchestrator(Echo(NBYTES, image_at="shared"), backend, slots=1) as orch:
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 8
    assert backend.live == []


async def test_a_ring_that_does_not_fit_is_refused_for_its_slots() -> None:
    """Whatever staging would have shared."""
    backend = ManualBackend(3 * NBYTES, shares_memory=True)
    with pytest.raises(OutOfDeviceMemory, match=f"slot 2 of 2 does not fit: each needs {2 * NBYTES} B"):
        async with Orchestrator(Echo(NBYTES, image_at="shared"), backend, slots=2):
            pass
    assert backend.live == []


async def test_a_slot_can_share_where_staging_does_not() -> None:
    """What replaces a lost staging buffer may be ordinary memory: from it images are copied, from the others not."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(), backend, slots=1) as orch:
        backend.shares_memory = False
        opened: Any = orch._opened
        opened.pipeline.memory.replace_staging()
        steps = [image(number) for number in range(10)]
        assert await outputs(orch, backend, steps) == steps
    assert 0 < copies(backend) < 10
    assert backend.live == []


async def test_programs_without_an_image_share_none() -> None:
    """Nobody asked for it, whatever the slot classes have room for."""
    backend = ManualBackend(shares_memory=True)
    classes = [(SlotSpec(image_nbytes=16, output_nbytes=8), 1)]
    async with Orchestrator(Imageless(), backend, slot_classes=classes):
        assert not [buffer for buffer in backend.live if buffer.name == "image"]
