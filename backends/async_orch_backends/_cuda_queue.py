"""CUDA streams, events and memory behind the seam, by cuda-core."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Final, NamedTuple

import numpy as np

from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import DeviceError, DeviceLost, OutOfDeviceMemory

from ._driver_backend import DriverBuffer
from ._driver_fence import NativeEvent
from ._driver_stream import DriverStream
from ._event_clock import EventClock
from ._timed_event import TimedEvent

__all__ = ["CudaBuffer", "CudaEvent", "CudaQueue", "CudaStream", "Launch", "cuda_error"]

_RECOVERABLE: Final = (
    "INVALIDVALUE",
    "INVALIDHANDLE",
    "INVALIDRESOURCEHANDLE",
    "INVALIDCONFIGURATION",
    "NOTSUPPORTED",
    "OUTOFRESOURCES",
)
_NO_MEMORY: Final = ("OUTOFMEMORY", "MEMORYALLOCATION")


class Launch(NamedTuple):
    """What ``stream.launch`` takes on the backend ``cuda``: a ``cuda.core.Kernel`` and its ``LaunchConfig``."""

    kernel: Any
    config: Any


def cuda_error(exc: Exception, what: str) -> DeviceError:
    """An exception from a call of CUDA, or an error value, as ours.

    cuda.core raises an exception of its own for errors of the driver, whose text begins with the error's name; other
    libraries that enqueue raise what they like, with "CUDA error" in the text. Of those, what is not known to be
    recoverable sticks: it is a `DeviceLost`.
    """
    said = " ".join(str(exc).split())
    text = f"{what} failed: {said or type(exc).__name__}"
    code = said.partition(":")[0] if said.startswith("CUDA_ERROR_") else said  # behind it is what it means in general
    letters = re.sub("[^A-Z]", "", code.upper())  # CUDA_ERROR_OUT_OF_MEMORY, cudaError..., "CUDA error: out of memory"
    kind: type[DeviceError] = DeviceError
    if isinstance(exc, MemoryError) or any(name in letters for name in _NO_MEMORY):
        kind = OutOfDeviceMemory
    elif "CUDAERROR" in letters and not any(name in letters for name in _RECOVERABLE):
        kind = DeviceLost
    error = kind(text)
    error.__cause__ = exc
    return error


class CudaBuffer(DriverBuffer):
    """Device or page-locked memory: `native` is the ``cuda.core.Buffer``, `handle` the address."""

    __slots__ = ("_array", "_device", "_memory", "_stream")

    def __init__(self, memory: Any, device: Any, stream: Any, nbytes: int, name: str, *, is_host: bool) -> None:
        super().__init__(nbytes, name, is_host=is_host)
        self._memory: Any = memory
        self._device = device
        self._stream = stream
        self._array: ByteArray | None = None
        if is_host:
            view = (ctypes.c_uint8 * max(nbytes, 1)).from_address(int(memory.handle))
            self._array = np.ctypeslib.as_array(view)[:nbytes]

    @property
    def native(self) -> Any:
        self.check()
        return self._memory

    @property
    def handle(self) -> int:
        return int(self.native.handle)

    @property
    def array(self) -> ByteArray:
        self.check()
        array = self._array
        if array is None:
            raise self.not_addressable()
        return array

    def release(self) -> None:
        self._array = None
        self._device.set_current()
        try:
            self._memory.close(self._stream)
        except Exception as exc:
            error = cuda_error(exc, f"freeing {self!r}")
            if not isinstance(error, DeviceLost):  # a lost context has lost its memory too
                raise error from exc

    def __dlpack__(self, **options: Any) -> Any:
        return self.native.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.native.__dlpack_device__()
        return int(kind), int(index)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.is_host:
            raise AttributeError("host memory has no __cuda_array_interface__; use the buffer protocol")
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.handle, False), "version": 3, "stream": None}


class CudaEvent(TimedEvent):
    """A ``cuda.core.Event`` with timing, which blocks rather than spins when it is waited for."""

    __slots__ = ("_device",)

    def __init__(self, native: Any, device: Any, clock: EventClock) -> None:
        super().__init__(native, clock)
        self._device = device

    def is_done(self) -> bool:
        return bool(self.native.is_done)

    def synchronize(self) -> None:
        self._device.set_current()
        self.native.sync()

    def failure(self, exc: Exception) -> DeviceError:
        return cuda_error(exc, "work before an event")


class CudaQueue:
    """A ``cuda.core.Stream``."""

    def __init__(self, core: Any, driver: Any, device: Any, clock: EventClock, stream: Any, *, owned: bool) -> None:
        self._core = core
        self._driver = driver
        self._device = device
        self._clock = clock
        self._stream = stream
        self._owned = owned
        self._options = core.EventOptions(timing_enabled=True, blocking_sync=True)

    @property
    def native(self) -> Any:
        return self._stream

    @property
    def handle(self) -> int:
        return int(self._stream.handle)

    @property
    def domain(self) -> object:
        return ("cuda", self._device.device_id)

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        for buffer in (dst, src):
            if not isinstance(buffer, CudaBuffer):
                raise DeviceError(f"backend 'cuda' cannot copy from or to {buffer!r}; allocate it with this backend")
        target, source = dst.handle + dst_offset, src.handle + src_offset
        if not nbytes:
            return
        self._device.set_current()
        (code,) = self._driver.cuMemcpyAsync(target, source, nbytes, self.handle)
        if int(code):
            raise cuda_error(RuntimeError(str(getattr(code, "name", code))), f"enqueuing a copy of {nbytes} B")

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        self._device.set_current()
        natives = [arg.native if isinstance(arg, CudaBuffer) else arg for arg in args]
        graph_launch: Any = getattr(kernel, "launch", None)  # of a captured graph
        if not (isinstance(kernel, Launch) or callable(graph_launch) or callable(kernel)):
            raise DeviceError(
                "backend 'cuda' launches Launch(kernel, config), a captured graph, or a callable that enqueues, "
                f"kernel(stream, *args), not {type(kernel).__name__}"
            )
        try:
            if isinstance(kernel, Launch):
                self._core.launch(self._stream, kernel.config, kernel.kernel, *natives)
            elif callable(graph_launch):
                graph_launch(self._stream)
            else:
                kernel(self._stream, *natives)
        except Exception as exc:
            raise cuda_error(exc, "launching a kernel") from exc

    def record(self) -> NativeEvent:
        self._device.set_current()
        try:
            return CudaEvent(self._stream.record(options=self._options), self._device, self._clock)
        except Exception as exc:
            raise cuda_error(exc, "recording an event") from exc

    def wait(self, event: NativeEvent) -> None:
        self._device.set_current()
        try:
            self._stream.wait(event.native)
        except Exception as exc:
            raise cuda_error(exc, "waiting for an event") from exc

    def isolate(self) -> None:
        """The driver's errors are sticky."""

    def close(self) -> None:
        if self._owned:
            self._device.set_current()
            self._stream.close()


class CudaStream(DriverStream):
    """A stream that other libraries can take over by the CUDA stream protocol."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Version of the protocol, and the handle."""
        return 0, self.handle
