"""OpenCL buffers: device memory, and host memory from the driver that stays mapped."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_orch.abc import ByteArray

from ._driver_backend import DriverBuffer

__all__ = ["OpenCLBuffer", "OpenCLHostBuffer"]

_DLPACK_OPENCL = 4  # kDLOpenCL of dlpack.h


class OpenCLBuffer(DriverBuffer):
    """Device memory. `handle` is the ``cl_mem``, as OpenCL gives no address; `native` the ``pyopencl.Buffer``.

    It tells DLPack what it is, but is not handed over: consumers of DLPack take addresses, and a ``cl_mem`` is none.
    """

    __slots__ = ("_memory",)

    def __init__(self, cl: Any, context: Any, nbytes: int, name: str) -> None:
        super().__init__(nbytes, name, is_host=False)
        self._memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, max(nbytes, 1))

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
        self._memory.release()  # the driver keeps it for as long as enqueued commands use it


class OpenCLHostBuffer(DriverBuffer):
    """Host memory that the driver allocated (ALLOC_HOST_PTR), which devices with memory of their own copy fastest.

    It stays mapped for its whole life, and copies name its address. A view taken before `free` keeps it mapped.
    """

    __slots__ = ("_array",)

    def __init__(self, cl: Any, queue: Any, nbytes: int, name: str) -> None:
        super().__init__(nbytes, name, is_host=True)
        flags, size = cl.map_flags, max(nbytes, 1)
        memory = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR, size)
        mapped, _ = cl.enqueue_map_buffer(queue, memory, flags.READ | flags.WRITE, 0, (size,), np.uint8)
        self._array: ByteArray | None = mapped[:nbytes]

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
