"""The part of cuda-core 1.2 and cuda-bindings 13 that the backend ``cuda`` uses, on a device that fails on misuse.

Names, parameters, results and errors are those of the installed packages, which ``tests/unit/test_fake_cuda.py``
compares where they are there; what a call needs and may return is from the CUDA Driver API reference (13.0). What a
driver would let pass and then corrupt, stall or leak raises `CudaMisuse` and stays in ``gpu.misuses``: a call without a
current context, a closed stream (its handle is 0, the default stream), event or buffer, a copy from or to memory that
is not page-locked, a wait that spins, a time asked of an event without timing, memory freed under enqueued work,
anything left over at the end.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.fakes.fake_cuda_device import MEMORY_NBYTES, CUresult, FakeGpu
from tests.fakes.fake_cuda_stream import Event, EventOptions, Stream

__all__ = [
    "Buffer",
    "Device",
    "Event",
    "EventOptions",
    "FakeCuda",
    "Graph",
    "Kernel",
    "LaunchConfig",
    "LegacyPinnedMemoryResource",
    "Stream",
]

DLPACK_CUDA, DLPACK_CUDA_HOST = 2, 3


@dataclass
class LaunchConfig:
    """As in cuda.core, as far as it is needed."""

    grid: int
    block: int


class Buffer:
    """Memory of the device, or page-locked memory of the host."""

    def __init__(self, gpu: FakeGpu, address: int, size: int, *, is_host: bool) -> None:
        self._gpu = gpu
        self._address = address
        self._is_host = is_host
        self.size = size

    @property
    def is_closed(self) -> bool:
        return not self._address

    @property
    def handle(self) -> int:
        if not self._address:
            self._gpu.misuse("a buffer is used after close: its address would be 0")
        return self._address

    def close(self, stream: Stream | None = None) -> None:
        if not self._address:
            return
        self._gpu.need_context("Buffer.close")
        if stream is not None:
            self._gpu.queue(int(stream.handle)).drain()
        self._gpu.release(self._address)
        self._address = 0
        self._gpu.failure.raise_if_failed()

    def fill(self, value: int, *, stream: Stream) -> None:
        self._gpu.enter("Buffer.fill")
        address, size = self.handle, self.size
        self._gpu.enqueue(int(stream.handle), lambda: ctypes.memset(address, value, size), [address])

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        if dl_device is not None or copy is True:
            raise BufferError("Sorry, not supported: dl_device other than None")
        memory = (ctypes.c_uint8 * self.size).from_address(self.handle)
        return np.ctypeslib.as_array(memory).__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (DLPACK_CUDA_HOST if self._is_host else DLPACK_CUDA), 0


class Kernel:
    """Takes addresses and numbers. With a ``failure`` it loses the context when it runs."""

    def __init__(self, function: Callable[..., object], failure: CUresult = CUresult.CUDA_SUCCESS) -> None:
        self.function = function
        self.failure = failure


class Graph:
    """A captured graph: one kernel with its arguments."""

    def __init__(self, gpu: FakeGpu, kernel: Kernel, *args: Any) -> None:
        self._gpu = gpu
        self._kernel = kernel
        self._args = args

    def launch(self, stream: Stream) -> None:
        self._gpu.enter("Graph.launch")
        _enqueue(self._gpu, stream, self._kernel, self._args)


def _enqueue(gpu: FakeGpu, stream: Stream, kernel: Kernel, args: tuple[Any, ...]) -> None:
    for arg in args:
        if not isinstance(arg, Buffer | int | float | np.generic):
            raise TypeError(f"the argument is of unsupported type: {type(arg)}")
    uses = [arg.handle for arg in args if isinstance(arg, Buffer)]
    plain = [arg.handle if isinstance(arg, Buffer) else arg for arg in args]
    gpu.enqueue(int(stream.handle), lambda: kernel.function(*plain), uses, kernel.failure)


class LegacyPinnedMemoryResource:
    """Page-locked host memory."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu

    def allocate(self, size: int, *, stream: Stream | None = None) -> Buffer:
        self._gpu.enter("cuMemAllocHost")
        return Buffer(self._gpu, self._gpu.allocate(size, is_host=True), size, is_host=True)


class Device:
    """The device with an ordinal."""

    def __init__(self, gpu: FakeGpu, device_id: int) -> None:
        self._gpu = gpu
        self.device_id = device_id
        self.name = "Fake GPU"

    def set_current(self, ctx: object | None = None) -> None:
        self._gpu.make_current()

    def create_stream(self, obj: Any = None, options: object | None = None) -> Stream:
        self._gpu.enter("cuStreamCreate")
        if obj is None:
            return Stream(self._gpu, self._gpu.new_queue())
        version, handle = obj.__cuda_stream__()
        if version != 0:
            raise RuntimeError(f"The protocol version {version} is not supported")
        self._gpu.queue(handle)
        return Stream(self._gpu, handle, owner=obj)

    def allocate(self, size: int, *, stream: Stream) -> Buffer:
        self._gpu.enter("cuMemAllocAsync")
        self._gpu.queue(int(stream.handle))
        return Buffer(self._gpu, self._gpu.allocate(size, is_host=False), size, is_host=False)


class CudaErrorT(IntEnum):
    """``cudaError_t`` of the runtime."""

    cudaSuccess = 0  # noqa: N815 - the runtime's name


class FakeCuda:
    """The modules. `install` them, and call ``gpu.check_clean()`` when everything is closed."""

    def __init__(self, *, devices: int = 1) -> None:
        self.gpu = FakeGpu()
        self.devices = devices

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put the modules where an import finds them."""
        names = ("cuda", "cuda.core", "cuda.bindings", "cuda.bindings.driver", "cuda.bindings.runtime")
        modules: dict[str, Any] = {name: ModuleType(name) for name in names}
        core, driver = modules["cuda.core"], modules["cuda.bindings.driver"]
        core.Device = lambda device_id=0: Device(self.gpu, device_id)
        core.LegacyPinnedMemoryResource = lambda: LegacyPinnedMemoryResource(self.gpu)
        core.EventOptions, core.LaunchConfig, core.launch = EventOptions, LaunchConfig, self._launch
        driver.cuMemGetInfo = self._mem_get_info
        driver.cuDriverGetVersion = lambda: (CUresult.CUDA_SUCCESS, 13000)
        driver.cuMemcpyAsync = self._memcpy_async
        modules["cuda.bindings.runtime"].cudaGetDeviceCount = lambda: (CudaErrorT.cudaSuccess, self.devices)
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)

    def _launch(self, stream: Stream, config: LaunchConfig, kernel: Kernel, *kernel_args: Any) -> None:
        self.gpu.enter("launch")
        if not isinstance(config, LaunchConfig) or not isinstance(kernel, Kernel):
            raise TypeError("Expected type LaunchConfig and Kernel")
        _enqueue(self.gpu, stream, kernel, kernel_args)

    def _mem_get_info(self) -> tuple[CUresult, int | None, int | None]:
        if self.gpu.failure:
            return self.gpu.failure, None, None
        self.gpu.enter("cuMemGetInfo")
        return CUresult.CUDA_SUCCESS, MEMORY_NBYTES - self.gpu.used_nbytes(), MEMORY_NBYTES

    def _memcpy_async(self, dst: int, src: int, nbytes: int, stream: int) -> tuple[CUresult]:
        gpu = self.gpu
        if gpu.failure:
            return (gpu.failure,)
        failure = gpu.fail_next.pop("cuMemcpyAsync", None)
        if failure:
            return (failure,)
        gpu.enter("cuMemcpyAsync")
        uses = [gpu.allocation(dst, nbytes, "destination"), gpu.allocation(src, nbytes, "source")]
        gpu.enqueue(stream, lambda: ctypes.memmove(dst, src, nbytes), uses)
        return (CUresult.CUDA_SUCCESS,)
