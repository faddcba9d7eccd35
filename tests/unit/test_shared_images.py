"""Images in memory that device and host share: kernels read them where they were built, and all else is as it was."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from async_orch_backends._late import SCRIBBLE

from async_orch import Built, Orchestrator, Slot, SlotSpec, StepProgram, open_backend
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import BuildError, ConfigurationError, CopyError, LaunchError, OutOfDeviceMemory
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend, ManualFence
from tests.programs import Square
from tests.sharing import outputs, share_memory
from tests.uploads import Echo, Mirror

NBYTES = 32


def shared(nbytes: int = NBYTES, *, grows: bool = False) -> Mirror:
    """A program whose steps say what their kernels read."""
    return Mirror(nbytes, grows=grows, image_at="shared")


def image(number: int, nbytes: int = NBYTES) -> bytes:
    """The image of a step: its number, all over."""
    return bytes([number % 251 + 1]) * nbytes


class Imageless(StepProgram[bytes, bytes]):
    """Has an output of no bytes, and no image."""

    slot = SlotSpec(image_nbytes=0, output_nbytes=8)

    def launch(self, step: bytes, slot: Slot, stream: Stream) -> int | None:
        return 0

    def collect(self, step: bytes, output: ByteArray) -> bytes:
        return b""


def copies(backend: ManualBackend) -> int:
    """How many copies were ever enqueued for images."""
    return backend.copy.enqueued.count("copy")


@pytest.mark.parametrize("kind", [Echo, Mirror])
@pytest.mark.parametrize("mode", ["pipelined", "ring"])
@pytest.mark.parametrize("build_in", ["inline", "thread"])
@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_nothing_is_copied(kind: type[Echo], mode: Any, build_in: Any, launch_in: Any) -> None:
    """The copy stream gets nothing at all, kernels read what was built, and the records tell of no copy."""
    backend, records = ManualBackend(shares_memory=True), list[StepRecord]()
    options: dict[str, Any] = {"mode": mode, "build_in": build_in, "launch_in": launch_in}
    steps = [image(number) for number in range(9)]
    program = kind(NBYTES, image_at="shared")  # steps that have sizes of their own take the queues
    orch: Orchestrator[bytes, bytes] = Orchestrator(program, backend, slots=2, step_log=records.append, **options)
    async with orch:
        handles = []
        for step in steps:
            handles.append(await orch.submit(step))
            while not backend.compute.ops:
                await wait_all_tasks_blocked()
            backend.run()
            await wait_all_tasks_blocked()
        assert [(await handle).output for handle in handles] == steps
    assert backend.copy.enqueued == []
    assert {(r.h2d_start_ns, r.h2d_ns, r.h2d_graph_ns, r.h2d_sm_ns, r.copy_nbytes) for r in records} == {
        (None, None, None, None, 0)
    }
    assert backend.live == []


@pytest.mark.parametrize("build_in", ["inline", "thread"])
@pytest.mark.parametrize("tells", [False, True])
async def test_none_of_the_task_table_is_copied_either(build_in: Any, tells: bool) -> None:
    """Of no copied bytes the table has 0, if the program tells its size, and otherwise it is not known."""

    class Tells(Echo):
        def build(self, step: bytes, image: ByteArray) -> Any:
            used = super().build(step, image)
            return Built(used, 8) if tells else used

    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(Tells(NBYTES, image_at="shared"), backend, build_in=build_in) as orch:
        handle = await orch.submit(image(1))
        while not backend.compute.ops:
            await wait_all_tasks_blocked()
        backend.run()
        timings = (await handle).timings
    assert (timings.copy_nbytes, timings.sm_nbytes) == (0, 0 if tells else None)


async def test_images_are_built_ahead_while_the_device_reads_earlier_ones() -> None:
    """With every kernel waiting, as many steps are on the device as there are slots, and more are built."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(), backend, slots=3, queue_depth=2, max_inflight=8) as orch:
        handles = [orch.submit_nowait(image(number)) for number in range(8)]
        assert orch.statistics().on_device == 3
        assert [handle.status for handle in handles[3:]] == ["built", "built", "built", "queued", "queued"]
        for number, handle in enumerate(handles):
            backend.compute.run_step()
            await wait_all_tasks_blocked()
            assert (await handle).output == image(number)


async def test_memory_is_allocated_and_touched_at_open_and_no_more_than_for_copies() -> None:
    """As many pieces as there are slots and staging buffers, all resident before the first step, none on its way."""
    backend, plain = ManualBackend(shares_memory=True), ManualBackend()
    touched: list[Buffer] = []
    touch = backend.touch

    def note(buffer: Buffer) -> None:
        touched.append(buffer)
        touch(buffer)

    backend.touch = note  # type: ignore[method-assign]
    async with Orchestrator(shared(), backend, slots=2) as orch, Orchestrator(Echo(NBYTES), plain, slots=2):
        images = [buffer for buffer in backend.live if buffer.name == "image"]
        assert {id(buffer) for buffer in images} <= {id(buffer) for buffer in touched}
        others = [buffer for buffer in plain.live if buffer.name.startswith(("staging", "slot.image"))]
        pieces = {buffer.handle for buffer in images}
        assert len(pieces) == len(others)
        before = list(backend.live)
        await outputs(orch, backend, [image(number) for number in range(20)])
        assert backend.live == before
        assert orch.statistics().step_path_allocs == 0
    assert backend.live == plain.live == []


async def test_a_held_slot_keeps_its_image() -> None:
    """Until the other stream's fence is done nobody builds where it reads."""
    backend, other, seen = ManualBackend(shares_memory=True), ManualFence(), list[Buffer]()

    class Holds(Echo):
        def launch(self, step: bytes, slot: Slot, stream: Stream) -> int | None:
            if step == image(0):
                slot.hold(other)
                seen.append(slot.image)
            return super().launch(step, slot, stream)

    async with Orchestrator(Holds(NBYTES, image_at="shared"), backend, slots=2) as orch:
        for number in range(12):
            await outputs(orch, backend, [image(number)])
            assert seen[0].array.tobytes() == image(0)
        other.finish()
        for number in range(12, 24, 2):
            handles = [orch.submit_nowait(image(number)), orch.submit_nowait(image(number + 1))]
            backend.run()
            await wait_all_tasks_blocked()
            assert [(await handle).output for handle in handles] == [image(number), image(number + 1)]
        assert seen[0].array.tobytes() != image(0)


async def test_a_launch_that_failed_keeps_its_image_from_the_next_build() -> None:
    """What it had enqueued reads the image as it was; the slot, and the memory with it, comes back behind a fence."""
    backend, seen = ManualBackend(shares_memory=True), list[bytes]()

    class Fails(Echo):
        def launch(self, step: bytes, slot: Slot, stream: Stream) -> int | None:
            if step != image(0):
                return super().launch(step, slot, stream)
            stream.launch(lambda array: seen.append(array.tobytes()), slot.image)
            raise ArithmeticError("half of it is enqueued")

    async with Orchestrator(Fails(NBYTES, image_at="shared"), backend, slots=2, max_inflight=9) as orch:
        failed = orch.submit_nowait(image(0))
        with pytest.raises(LaunchError):
            await failed
        handles = [orch.submit_nowait(image(number)) for number in range(1, 7)]
        await wait_all_tasks_blocked()
        while not all(handle.done() for handle in handles):
            backend.compute.run(1)
            await wait_all_tasks_blocked()
        assert seen == [image(0)]
        assert [(await handle).output for handle in handles] == [image(number) for number in range(1, 7)]


async def test_a_build_that_is_given_up_is_followed_by_shared_memory() -> None:
    """The buffer that a hanging build may still write to stays out of use, and what replaces it is shared as well."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(), backend, slots=2) as orch:
        opened: Any = orch._opened
        memory = opened.pipeline.memory
        memory.replace_staging()
        memory.replace_slot(memory.classes[0].ring)
        steps = [image(number) for number in range(30)]
        assert await outputs(orch, backend, steps) == steps
        assert all(staging.device is not None for staging in memory.staging.items)
    assert copies(backend) == 0
    assert backend.live == []


async def test_a_failed_build_and_a_retry_leave_the_memory_where_it_is() -> None:
    """Only the step that fails is concerned."""
    backend, program = ManualBackend(shares_memory=True), shared()
    async with Orchestrator(program, backend, slots=1) as orch:
        program.fails[image(1)] = "build"
        assert await outputs(orch, backend, [image(0)]) == [image(0)]
        with pytest.raises(BuildError):
            await orch.run(image(1), retries=2)
        assert await outputs(orch, backend, [image(2), image(3)]) == [image(2), image(3)]
    assert copies(backend) == 0


async def test_memory_that_was_given_back_is_undefined_at_once() -> None:
    """On the adversary a slot's image is scribbled over as soon as the slot is free, whoever gets the memory next."""
    backend = share_memory(open_backend("sim:adversary", clock="virtual", loop=asyncio.get_running_loop()))
    program = Echo(NBYTES, image_at="shared")
    async with Orchestrator(program, backend, slots=2) as orch:
        for number in range(6):
            assert (await orch.run(image(number))).output == image(number)
            opened: Any = orch._opened
            memory = opened.pipeline.memory
            pieces = [*memory.classes[0].memories, *memory.staging.items]
            held = [(piece.staged if hasattr(piece, "staged") else piece).buffer.array for piece in pieces]
            assert all(np.all((array == SCRIBBLE) | (array == 0)) for array in held)
    backend.close()


# -- where images are copied all the same ------------------------------------------------------------------


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


# -- sizes -------------------------------------------------------------------------------------------------


async def test_images_that_grow_are_shared_as_well() -> None:
    """Staging and slots get larger pieces one by one; none is copied between pieces of different sizes."""
    backend = ManualBackend(shares_memory=True)
    sizes = [16, 32, 100, 16, 100, 200, 16, 16, 16, 200, 32, 16, 200, 200, 200, 200, 16, 200]
    steps = [image(number, nbytes) for number, nbytes in enumerate(sizes)]
    async with Orchestrator(shared(grows=True), backend, slots=2, grow="high_water") as orch:
        assert await outputs(orch, backend, steps) == steps
        pieces = {b.handle: b.nbytes for b in backend.live if b.name == "image"}
        assert len(pieces) == 6
        assert max(pieces.values()) == 200
    assert copies(backend) == 0
    assert backend.live == []


@pytest.mark.parametrize("part", ["output", "workspace"])
async def test_an_image_stays_shared_where_another_part_of_its_slot_grows(part: str) -> None:
    """Only what is too small is allocated anew."""

    class Works(Echo):
        def sizes(self, step: bytes) -> SlotSpec | None:
            output_nbytes, workspace_nbytes = (100, 8) if part == "output" else (NBYTES, 100)
            return SlotSpec(image_nbytes=NBYTES, output_nbytes=output_nbytes, workspace_nbytes=workspace_nbytes)

    backend = ManualBackend(shares_memory=True)
    program = Works(NBYTES, image_at="shared", workspace_nbytes=8)
    async with Orchestrator(program, backend, slots=1, grow="high_water") as orch:
        pieces = {b.handle for b in backend.live if b.name == "image"}
        steps = [image(number) for number in range(6)]
        assert await outputs(orch, backend, steps) == steps
        assert {b.handle for b in backend.live if b.name == "image"} == pieces
    assert copies(backend) == 0
    assert backend.live == []


async def test_a_slot_knows_the_size_of_what_it_got() -> None:
    """After an exchange with a smaller piece it has to grow again, also where nothing is shared any more."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(grows=True), backend, slots=1, grow="high_water") as orch:
        steps = [image(1, 100), image(2, 16)]
        assert await outputs(orch, backend, steps) == steps
        backend.shares_memory = False
        steps = [image(3, 100), image(4, 100)]
        assert await outputs(orch, backend, steps) == steps
    assert backend.live == []


async def test_views_of_a_slot_that_grew_travel() -> None:
    """Steps without sizes of their own build in what a grown slot has left to staging."""

    class Some(Echo):
        def sizes(self, step: bytes) -> SlotSpec | None:
            return None if len(step) <= NBYTES else SlotSpec(image_nbytes=len(step), output_nbytes=len(step))

    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(Some(NBYTES, image_at="shared"), backend, slots=1, grow="high_water") as orch:
        steps = [image(1, 100), *(image(number) for number in range(2, 10))]
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 0
    assert backend.live == []


async def test_one_class_exchanges_whatever_the_sizes() -> None:
    """A single class is as good as none: its staging is never too small for another."""
    backend = ManualBackend(shares_memory=True)
    classes = [(SlotSpec(image_nbytes=NBYTES, output_nbytes=NBYTES), 2)]
    sizes = [16, 100, 16, 16, 100, 16, 16, 16]
    steps = [image(number, nbytes) for number, nbytes in enumerate(sizes)]
    async with Orchestrator(shared(grows=True), backend, slot_classes=classes, grow="high_water") as orch:
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 0


async def test_growth_goes_on_where_shared_memory_has_run_out() -> None:
    """What grew into memory of the device's own is copied to from then on."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(grows=True), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [image(1)]) == [image(1)]
        backend.shares_memory = False
        large = [image(number, 100) for number in range(8)]
        assert await outputs(orch, backend, large) == large
        assert copies(backend) == 8
    assert backend.live == []


async def test_growth_that_does_not_fit_fails_its_step_only() -> None:
    """The slot and its image stay as they are."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(grows=True), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [image(1)]) == [image(1)]
        backend.capacity_nbytes = backend.allocated_nbytes + 100  # for staging's new piece, not for the slot's
        with pytest.raises(CopyError, match="its slot could not be allocated"):
            await orch.run(image(2, 100))
        backend.capacity_nbytes = 1 << 30
        steps = [image(number, nbytes) for number, nbytes in enumerate((32, 16, 100, 32))]
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 0
    assert backend.live == []


async def test_small_classes_copy_so_that_staging_stays_large_enough() -> None:
    """A step of the largest class finds staging of its size, whatever came before; its image is not copied."""
    backend = ManualBackend(shares_memory=True)
    classes = [(SlotSpec(image_nbytes=16, output_nbytes=100), 2), (SlotSpec(image_nbytes=100, output_nbytes=100), 1)]
    sizes = [16, 16, 100, 16, 16, 16, 16, 100, 100]
    steps = [image(number, nbytes) for number, nbytes in enumerate(sizes)]
    async with Orchestrator(shared(16, grows=True), backend, slot_classes=classes) as orch:
        assert await outputs(orch, backend, steps) == steps
        opened: Any = orch._opened
        assert {staging.buffer.nbytes for staging in opened.pipeline.memory.staging.items} == {100}
    assert copies(backend) == sizes.count(16)
    assert backend.live == []


async def test_memory_that_cannot_be_touched_is_refused_at_open() -> None:
    """The error says what does not fit, and everything is freed."""

    class Untouchable(ManualBackend):
        def touch(self, buffer: Buffer) -> None:
            if buffer.name == "image" and buffer.is_host:
                raise OutOfDeviceMemory("no memory for image")
            super().touch(buffer)

    backend = Untouchable(shares_memory=True)
    with pytest.raises(OutOfDeviceMemory, match=r"slot 1 of 3 does not fit.*no memory for image"):
        async with Orchestrator(shared(), backend):
            pass
    assert backend.live == []


# -- what is refused ---------------------------------------------------------------------------------------


async def test_a_program_that_keeps_addresses_is_refused() -> None:
    """Also one that would be told of growth: here an image moves in every step."""

    class Keeps(Square):
        slot = SlotSpec(image=Square.slot.image, workspace_nbytes=64, output_nbytes=8, image_at="shared")
        keeps_addresses = True

        def slots_changed(self, slots: Any) -> None:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match=r"image_at='shared' .* Keeps keeps addresses; use image_at='slot'"):
        Orchestrator(Keeps(), "host")


def test_an_image_of_no_size_cannot_be_shared() -> None:
    """There is nothing that could be."""
    with pytest.raises(ConfigurationError, match="image_at='shared' needs an image: image_nbytes is 0"):
        SlotSpec(image_nbytes=0, image_at="shared")
