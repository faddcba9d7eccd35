"""Images in memory that device and host share: kernels read them where they were built, and all else is as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from anyio import wait_all_tasks_blocked
from async_orch_backends._late import SCRIBBLE

from async_orch import Built, Orchestrator, Slot, SlotSpec, open_backend
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import BuildError, ConfigurationError, LaunchError, OutOfDeviceMemory
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend, ManualFence
from tests.programs import Square
from tests.sharing import NBYTES, copies, image, outputs, share_memory, shared
from tests.uploads import Echo, Mirror


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


async def test_a_program_that_keeps_addresses_is_refused() -> None:
    """Also one that would be told of growth: here an image moves in every step."""

    class Keeps(Square):
        slot = SlotSpec(image=Square.slot.image, workspace_nbytes=64, output_nbytes=8, image_at="shared")
        keeps_addresses = True

        def slots_changed(self, slots: Any) -> None:
            """Defined, which is enough for growth; never called."""

    with pytest.raises(ConfigurationError, match=r"image_at='shared' .* Keeps keeps addresses; use image_at='slot'"):
        Orchestrator(Keeps(), "host")


def test_an_image_of_no_size_cannot_be_shared() -> None:
    """There is nothing that could be."""
    with pytest.raises(ConfigurationError, match="image_at='shared' needs an image: image_nbytes is 0"):
        SlotSpec(image_nbytes=0, image_at="shared")
