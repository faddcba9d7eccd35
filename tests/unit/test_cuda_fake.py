"""The backend ``cuda`` on the fake ``cuda.core``, beyond the conformance suite: tested against a fake."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from async_orch_backends._cuda_queue import cuda_error
from async_orch_backends.cuda_driver import Launch
from async_orch_backends.cuda_driver import open_backend as open_cuda
from async_orch_backends.host import open_backend as open_host

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import DeviceError, DeviceLost, LaunchError, OutOfDeviceMemory
from tests.fakes.fake_cuda import FakeCuda, Graph, Kernel, LaunchConfig
from tests.fakes.fake_cuda_device import CUDAError, CUresult, FakeGpu

PATIENCE_S = 30.0
CONFIG = LaunchConfig(grid=1, block=1)
FAILS = Launch(Kernel(lambda: None, CUresult.CUDA_ERROR_ILLEGAL_ADDRESS), CONFIG)


def _copy_64(target: int, source: int) -> None:
    ctypes.memmove(target, source, 64)


COPY_64 = Launch(Kernel(_copy_64), CONFIG)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A fake that must be clean in the end."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    yield fake.gpu
    fake.gpu.check_clean()


class Echo(StepProgram[int, int]):
    """Gives back what was built, by a kernel."""

    slot = SlotSpec(image_nbytes=64, output_nbytes=64)

    def build(self, step: int, image: Any) -> None:
        image[:] = step % 256

    def launch(self, step: int, slot: Any, stream: Stream) -> None:
        stream.launch(COPY_64, slot.output, slot.image)

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output[63])


@pytest.mark.parametrize("launch_in", ["inline", "thread"])
def test_steps_have_their_results_and_device_times(gpu: FakeGpu, launch_in: Literal["inline", "thread"]) -> None:
    """On whichever thread a step is launched, the context is current there, and its times are the device's."""

    async def main() -> list[int | None]:
        async with Orchestrator(Echo(), "cuda", slots=3, launch_in=launch_in) as orch:
            results = [result async for result in orch.map(range(50))]
        assert [result.output for result in results] == list(range(50))
        return [result.timings.device_ns for result in results]

    times = asyncio.run(main())
    assert all(time_ns is not None and time_ns >= 0 for time_ns in times)


def test_the_device_says_what_it_is(gpu: FakeGpu) -> None:
    """Name, memory, driver, and how far the support goes."""
    backend = open_backend("cuda:0")
    info = backend.info
    assert (info.device, info.driver, info.memory_nbytes) == ("Fake GPU", "CUDA driver API 13.0", 2**34)
    assert (info.support, info.device_clock, info.pinned) == (
        "tested against a fake; on a GPU not run",
        "anchored",
        True,
    )
    buffer = backend.alloc(4096)
    assert backend.free_nbytes() == 2**34 - 4096
    buffer.free()
    backend.close()


def test_a_stream_of_another_library_is_adopted_by_the_protocol(gpu: FakeGpu) -> None:
    """Work goes to its queue, and our own streams speak the protocol too; closing leaves the foreign one open."""
    handle = gpu.new_queue()

    class Foreign:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, handle

    backend = open_cuda(compute_stream=Foreign())
    compute: Any = backend.create_stream("compute")
    copy: Any = backend.create_stream("copy")
    assert compute.__cuda_stream__() == (0, handle) == (0, compute.handle)
    assert copy.handle not in (0, handle)
    compute.synchronize(PATIENCE_S)
    backend.close()
    assert list(gpu.queues) == [handle]
    gpu.queues.pop(handle).stop()


def test_memory_is_lent_by_dlpack_and_by_the_array_interface(gpu: FakeGpu) -> None:
    """Device memory names CUDA as its device, page-locked memory CUDA's host memory; the interface has the address."""
    backend = open_cuda()
    device: Any = backend.alloc(64)
    host: Any = backend.alloc_host(64)
    assert device.__dlpack_device__() == (2, 0)
    assert host.__dlpack_device__() == (3, 0)
    assert type(device.__dlpack__()).__name__ == "PyCapsule"
    interface = device.__cuda_array_interface__
    assert (interface["shape"], interface["typestr"], interface["data"]) == ((64,), "|u1", (device.handle, False))
    with pytest.raises(AttributeError, match="use the buffer protocol"):
        _ = host.__cuda_array_interface__
    with pytest.raises(DeviceError, match="which the host cannot address"):
        _ = device.array
    backend.close()
    with pytest.raises(DeviceError, match="freed"):
        device.__dlpack__()


def test_captured_graphs_and_callables_are_launched_on_the_stream(gpu: FakeGpu) -> None:
    """A graph by its launch, a callable with stream and buffers of cuda.core; numbers go through as they are."""
    backend = open_cuda()
    stream, memory, host = backend.create_stream("compute"), backend.alloc(64), backend.alloc_host(64)

    def fill(address: int, value: int) -> None:
        ctypes.memset(address, value, 32)

    graph = Graph(gpu, Kernel(lambda address: ctypes.memset(address + 32, 7, 32)), memory.native)
    stream.launch(graph)
    seen: list[Any] = []

    def enqueue(native: Any, buffer: Any, value: Any) -> None:
        seen.append((native, buffer, value))
        Graph(gpu, Kernel(fill), buffer, int(value)).launch(native)

    stream.launch(enqueue, memory, np.int32(9))
    stream.copy(host, memory, 64)
    stream.synchronize(PATIENCE_S)
    assert host.array.tolist() == [9] * 32 + [7] * 32
    assert seen == [(stream.native, memory.native, np.int32(9))]
    with pytest.raises(DeviceError, match=r"kernel\(stream, \*args\), not int"):
        stream.launch(3)
    backend.close()


def test_an_argument_that_no_kernel_takes_fails_its_step_alone(gpu: FakeGpu) -> None:
    """What cuda.core refuses never ran: the device goes on."""

    class Refused(Echo):
        def launch(self, step: int, slot: Any, stream: Stream) -> None:
            stream.launch(COPY_64, slot.output, "text" if step == 1 else slot.image)

    async def main() -> None:
        async with Orchestrator(Refused(), "cuda") as orch:
            handles = [await orch.submit(step) for step in range(3)]
            with pytest.raises(LaunchError, match="launching a kernel failed: the argument is of unsupported type"):
                await handles[1]
            assert [(await handles[step]).output for step in (0, 2)] == [0, 2]

    asyncio.run(main())


def test_memory_of_others_is_not_copied(gpu: FakeGpu) -> None:
    """It is not page-locked, and such a copy would block."""
    backend, other = open_cuda(), open_host()
    stream, memory = backend.create_stream("copy"), backend.alloc(64)
    with pytest.raises(DeviceError, match="allocate it with this backend"):
        stream.copy(memory, other.alloc_host(64), 64)
    other.close()
    backend.close()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_failed_kernel_loses_the_device_for_good(gpu: FakeGpu, forgets: bool) -> None:
    """Fences raise `DeviceLost` on every stream, also where the driver no longer tells what went well before."""
    gpu.forgets_success = forgets
    backend = open_cuda()
    stream, other = backend.create_stream("compute"), backend.create_stream("copy")
    memory = backend.alloc(64)
    stream.launch(FAILS)
    with pytest.raises(DeviceLost, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        stream.synchronize(PATIENCE_S)
    with pytest.raises(DeviceLost):
        other.synchronize(PATIENCE_S)
    with pytest.raises(DeviceLost, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        backend.alloc(64)
    assert backend.free_nbytes() is None
    assert not backend.reset()
    backend.close()
    assert memory.nbytes == 64


@pytest.mark.parametrize("call", ["launch", "cuMemcpyAsync", "Stream.record", "Stream.wait"])
def test_a_loss_that_shows_at_an_enqueue_is_told_by_the_fence(gpu: FakeGpu, call: str) -> None:
    """Which call is first to return the error of earlier work is chance: none raises, and the fence behind it does."""
    backend = open_cuda()
    stream, other = backend.create_stream("compute"), backend.create_stream("copy")
    memory, host = backend.alloc(64), backend.alloc_host(64)
    gate = threading.Event()
    other.launch(Launch(Kernel(lambda: gate.wait(PATIENCE_S)), CONFIG))
    pending = other.record()
    gpu.fail_next[call] = CUresult.CUDA_ERROR_LAUNCH_FAILED
    stream.launch(COPY_64, memory, memory)
    stream.copy(memory, host, 64)
    stream.wait(pending)
    fence = stream.record()
    gate.set()
    with pytest.raises(DeviceLost, match="CUDA_ERROR_LAUNCH_FAILED"):
        fence.synchronize(PATIENCE_S)
    pending.synchronize(PATIENCE_S)
    backend.close()


def test_a_driver_that_is_out_of_memory_says_what_is_free(gpu: FakeGpu) -> None:
    """Its own refusal has the same text as ours; nothing stays allocated."""
    backend = open_cuda()
    for call, alloc in (("cuMemAllocAsync", backend.alloc), ("cuMemAllocHost", backend.alloc_host)):
        gpu.fail_next[call] = CUresult.CUDA_ERROR_OUT_OF_MEMORY
        with pytest.raises(OutOfDeviceMemory, match=r"for kv: needed 64 B, free \d+ B of .*CUDA_ERROR_OUT_OF_MEMORY"):
            alloc(64, name="kv")
    assert backend.allocated_nbytes == 0
    backend.close()


def test_a_driver_that_fails_at_open_is_one_error(gpu: FakeGpu) -> None:
    """It names the device and the driver's error, though that is no RuntimeError."""
    gpu.fail_next["cuStreamCreate"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match="opening cuda:0 failed: CUDA_ERROR_INVALID_VALUE"):
        open_cuda()


@pytest.mark.parametrize("call", ["cuMemGetInfo", "cuStreamCreate", "Stream.record"])
def test_a_failed_opening_leaves_nothing_behind(gpu: FakeGpu, call: str) -> None:
    """Whichever call fails, the stream that was created goes back, and opening again succeeds."""
    gpu.fail_next[call] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        open_cuda()
    gpu.check_clean()
    open_cuda().close()


def test_a_hung_device_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close returns in time, fences fail, and the memory is not taken from under the kernel."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    backend = open_cuda()
    backend.close_timeout_s = 0.05
    stream, memory, gate = backend.create_stream("compute"), backend.alloc(64), threading.Event()
    stream.launch(Launch(Kernel(lambda address: gate.wait(PATIENCE_S)), CONFIG), memory)
    fence = stream.record()
    backend.close()
    assert backend.threads_abandoned() == 1
    with pytest.raises(DeviceError, match="not over in time"):
        fence.synchronize(PATIENCE_S)
    assert len(fake.gpu.memory) == 1
    assert fake.gpu.misuses == []
    gate.set()


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (CUDAError("CUDA_ERROR_OUT_OF_MEMORY: no memory"), OutOfDeviceMemory),
        (CUDAError("CUDA_ERROR_ILLEGAL_ADDRESS: an invalid value or handle, not supported"), DeviceLost),
        (CUDAError("CUDA_ERROR_INVALID_HANDLE: not valid"), DeviceError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("cudaErrorInvalidConfiguration: too many threads"), DeviceError),
        (RuntimeError("cudaErrorMemoryAllocation: out of memory"), OutOfDeviceMemory),
        (RuntimeError("shapes do not match"), DeviceError),
        (KeyError("weights"), DeviceError),
        (MemoryError(), OutOfDeviceMemory),
    ],
)
def test_what_loses_the_device_is_an_error_of_cuda(exc: Exception, kind: type[DeviceError]) -> None:
    """By the name of the driver's error, not by what is said about it; a mistake of the caller's loses nothing."""
    assert type(cuda_error(exc, "this")) is kind
