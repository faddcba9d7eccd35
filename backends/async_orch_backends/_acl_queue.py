"""ACL streams and memory behind the seam."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any, Final

import numpy as np

from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import DeviceError, DeviceLost

from ._acl_calls import Acl, acl_error
from ._acl_events import AclEvent, EventPool
from ._driver_backend import DriverBuffer
from ._driver_fence import NativeEvent

__all__ = ["AclBuffer", "AclDeviceBuffer", "AclHostBuffer", "AclQueue"]

_HUGE_FIRST: Final = 0
_KINDS: Final = {(False, True): 1, (True, False): 2, (False, False): 3}
"""Kind of a copy by whether destination and source are host memory. CANN has none within host memory."""

_COPY_ALIGNMENT_NBYTES: Final = 64
"""CANN up to 8.0 asks for it of both addresses of an asynchronous copy; allocations have it."""


class AclBuffer(DriverBuffer):
    """Memory by its address, which is `handle` and `native`."""

    __slots__ = ("_acl", "_address")

    def __init__(self, acl: Acl, nbytes: int, name: str, address: int, *, is_host: bool) -> None:
        super().__init__(nbytes, name, is_host=is_host)
        self._acl = acl
        self._address = address

    @property
    def handle(self) -> int:
        self.check()
        return self._address

    @property
    def native(self) -> int:
        return self.handle


class AclDeviceBuffer(AclBuffer):
    """Device memory."""

    __slots__ = ()

    def __init__(self, acl: Acl, nbytes: int, name: str) -> None:
        super().__init__(acl, nbytes, name, acl.value("malloc", max(nbytes, 1), _HUGE_FIRST), is_host=False)

    @property
    def array(self) -> ByteArray:
        self.check()
        raise self.not_addressable()

    def release(self) -> None:
        with suppress(DeviceLost):  # a lost device has lost its memory too
            self._acl.call("free", self._address)


class AclHostBuffer(AclBuffer):
    """Page-locked host memory: from any other, an asynchronous copy blocks, and holds the GIL meanwhile.

    A view must not be used after `free`.
    """

    __slots__ = ("_array",)

    def __init__(self, acl: Acl, nbytes: int, name: str) -> None:
        super().__init__(acl, nbytes, name, acl.value("malloc_host", max(nbytes, 1)), is_host=True)
        memory = (ctypes.c_uint8 * max(nbytes, 1)).from_address(self._address)
        self._array: ByteArray = np.ctypeslib.as_array(memory)[:nbytes]

    @property
    def array(self) -> ByteArray:
        self.check()
        return self._array

    def release(self) -> None:
        with suppress(DeviceLost):  # see above
            self._acl.call("free_host", self._address)


class AclQueue:
    """An ACL stream. ``launch`` calls ``kernel(stream, *args)`` at once, buffers as addresses; it must only enqueue."""

    def __init__(self, acl: Acl, pool: EventPool, name: str, stream: int | None = None) -> None:
        self._acl = acl
        self._pool = pool
        self._name = name
        self._owned = stream is None
        self._stream: int = acl.value("create_stream") if stream is None else stream
        self._waited: list[AclEvent] = []

    @property
    def native(self) -> int:
        return self._stream

    @property
    def handle(self) -> int:
        return self._stream

    @property
    def domain(self) -> object:
        return ("ascend", self._acl.context)

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        for buffer in (dst, src):
            if not isinstance(buffer, AclBuffer):
                raise DeviceError(
                    f"backend 'ascend' cannot copy from or to {buffer!r}: it is not pinned by this driver; "
                    "allocate it with alloc_host()"
                )
        target, source = dst.handle + dst_offset, src.handle + src_offset
        if not nbytes:
            return
        kind = _KINDS.get((dst.is_host, src.is_host))
        if kind is None:
            raise DeviceError(f"backend 'ascend' does not copy from host to host: {src!r} to {dst!r}; use numpy")
        if target % _COPY_ALIGNMENT_NBYTES or source % _COPY_ALIGNMENT_NBYTES:
            raise DeviceError(
                f"backend 'ascend' copies between addresses that are multiples of {_COPY_ALIGNMENT_NBYTES} B only, not "
                f"from offset {src_offset} of {src!r} to offset {dst_offset} of {dst!r}; choose such offsets"
            )
        self._acl.call("memcpy_async", target, dst.nbytes - dst_offset, source, nbytes, kind, self._stream)

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        if not callable(kernel):
            raise DeviceError(
                "backend 'ascend' launches callables that enqueue on an ACL stream, kernel(stream, *args), "
                f"not {type(kernel).__name__}"
            )
        natives = [arg.handle if isinstance(arg, Buffer) else arg for arg in args]
        self._acl.enter("set_context")  # the kernel enqueues in our context
        code = kernel(self._stream, *natives)
        if isinstance(code, int) and code:
            raise acl_error(code, f"launching {getattr(kernel, '__qualname__', kernel)!r} on stream {self._name!r}")

    def record(self) -> NativeEvent:
        for waited in self._waited:
            waited.trim()
        event = self._pool.record(self._stream, tuple(self._waited))
        self._waited.clear()
        return event

    def wait(self, event: NativeEvent) -> None:
        if isinstance(event, AclEvent):
            self._acl.call("stream_wait_event", self._stream, event.handle)
            self._waited.append(event)

    def isolate(self) -> None:
        """The driver's errors are sticky."""

    def close(self) -> None:
        self._waited.clear()
        if self._owned:
            with suppress(DeviceLost):  # see above
                self._acl.call("destroy_stream", self._stream)
