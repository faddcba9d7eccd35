"""OpenCL buffers: device memory, and host memory from the driver that stays mapped."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_orch.abc import ByteArray

from ._driver_backend import DriverBuffer

__all__ = ["OpenCLBuffer", "OpenCLHostBuffer", "device_memory", "host_memory", "shared_memory", "shares_memory"]

_DLPACK_OPENCL = 4  # kDLOpenCL of dlpack.h


class OpenCLBuffer(DriverBuffer):
    """Device memory. `handle` is the ``cl_mem``, as OpenCL gives no address; `native` the ``pyopencl.Buffer``.

    It tells DLPack what it is, but is not handed over: consumers of DLPack take addresses, and a ``cl_mem`` is none.
    """

    __slots__ = ("_memory",)

    def __init__(self, memory: Any, nbytes: int, name: str) -> None:
        super().__init__(nbytes, name, is_host=False)
        self._memory: Any = memory

    @property
    def array(self) -> ByteArray:
        self.check()
        raise self.not_addressable()

    @property
    def handle(self) -> int:
        return int(self.native.int_ptr)

    @property
    def native(self) -> Any:
        if self.freed:
            self.check()
        return self._memory

    def __dlpack_device__(self) -> tuple[int, int]:
        self.check()
        return _DLPACK_OPENCL, 0

    def __dlpack__(self, **options: Any) -> Any:
        self.check()
        raise BufferError(
            f"{self!r} is OpenCL memory, which has no address for other libraries; enqueue a copy to host memory, or "
            "use buffer.native with pyopencl"
        )

    def release(self) -> None:
        memory, self._memory = self._memory, None
        memory.release()  # the driver keeps it for as long as enqueued commands use it; what it shares, it does not


class OpenCLHostBuffer(DriverBuffer):
    """Host memory that the driver allocated; copies name its address. A view taken before `free` keeps it."""

    __slots__ = ("_array",)

    def __init__(self, array: ByteArray, nbytes: int, name: str) -> None:
        super().__init__(nbytes, name, is_host=True)
        self._array: ByteArray | None = array[:nbytes]

    @property
    def array(self) -> ByteArray:
        if self.freed:
            self.check()
        array = self._array
        if array is None:
            raise self.not_addressable()
        return array

    @property
    def handle(self) -> int:
        return int(self.array.ctypes.data)

    def release(self) -> None:
        self._array = None


def device_memory(cl: Any, context: Any, nbytes: int, name: str) -> OpenCLBuffer:
    """Memory of the device. Raises pyopencl's errors."""
    return OpenCLBuffer(cl.Buffer(context, cl.mem_flags.READ_WRITE, max(nbytes, 1)), nbytes, name)


def host_memory(cl: Any, queue: Any, nbytes: int, name: str) -> OpenCLHostBuffer:
    """Host memory of the driver's (ALLOC_HOST_PTR), which devices with memory of their own copy fastest.

    It stays mapped for its whole life. Raises pyopencl's errors and `MemoryError`.
    """
    flags, size = cl.map_flags, max(nbytes, 1)
    memory = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
    mapped, _ = cl.enqueue_map_buffer(queue, memory, flags.READ | flags.WRITE, 0, (size,), np.uint8)
    return OpenCLHostBuffer(mapped, nbytes, name)


def shares_memory(cl: Any, device: Any) -> bool:
    """Whether the device works in the host's memory, and kernels and the host may use a buffer there in turn.

    That is fine-grained shared virtual memory (OpenCL 2.0): it needs neither copies nor mapping, and what a command
    wrote is seen by whoever sees that the command is over.
    """
    try:
        capable = device.svm_capabilities & cl.device_svm_capabilities.FINE_GRAIN_BUFFER
    except (AttributeError, cl.Error):  # pyopencl, or the driver, is of before 2.0
        return False
    return bool(capable and device.host_unified_memory)


def shared_memory(cl: Any, context: Any, nbytes: int, name: str) -> tuple[OpenCLBuffer, OpenCLHostBuffer]:
    """Such memory, as a buffer of the device and as one of the host. Raises pyopencl's errors."""
    array = cl.fsvm_empty(context, max(nbytes, 1), np.uint8, alignment=0)  # that of the largest type
    memory = cl.Buffer(context, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, hostbuf=array)
    return OpenCLBuffer(memory, nbytes, name), OpenCLHostBuffer(array, nbytes, name)
