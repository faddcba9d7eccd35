"""Backend ``ascend``: Huawei Ascend NPUs through pyACL, the module ``acl`` of CANN. Tested against a fake.

``ascend:0`` is the device with that id. A kernel is a callable that enqueues, called as ``kernel(stream, *args)`` with
the stream's handle and buffers as addresses: the launcher that Ascend C generates, or a function around an ``aclnn``
operator. A return code other than 0 raises.

Errors of work on the device are sticky there: they lose the device (`DeviceLost`), and `Stream.isolate` does nothing.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from async_orch.abc import Buffer, DeviceInfo, Stream
from async_orch.exceptions import BackendUnavailable, ConfigurationError, DeviceError, OutOfDeviceMemory

from ._acl_calls import Acl, acl_error, load_acl
from ._acl_events import EventPool
from ._acl_queue import AclDeviceBuffer, AclHostBuffer, AclQueue
from ._device_state import DeviceState
from ._driver_backend import DriverBackend, DriverBuffer, given_streams
from ._driver_queue import DriverQueue
from ._event_clock import EventClock

__all__ = ["AscendBackend", "open_backend"]

SUPPORT: Final = "tested against a fake"

_HBM: Final = 1
_ALIGNMENT_NBYTES: Final = 64
_PAGE_NBYTES: Final = 4096
_MARK_TIMEOUT_S: Final = 10.0


class AscendBackend(DriverBackend):
    """One NPU and a context on it, its own or that of the caller's streams."""

    def __init__(self, acl: Acl, adopted: dict[str, Any]) -> None:
        with ExitStack() as undo:  # what there is of it goes back to the driver if the rest fails
            undo.callback(acl.close)
            self._acl = acl
            self._pool = EventPool(acl)
            undo.callback(self._pool.close)
            self._open(undo, adopted)
            undo.pop_all()

    def _open(self, undo: ExitStack, adopted: dict[str, Any]) -> None:
        acl = self._acl
        _, total = acl.value("get_mem_info", _HBM)
        info = DeviceInfo(
            backend="ascend",
            device=f"npu:{acl.device_id}",
            support=SUPPORT,
            alignment_nbytes=_ALIGNMENT_NBYTES,
            pinned=True,
            alloc_visibility="own",
            device_clock="anchored" if self._pool.times else "none",
            memory_nbytes=total,
        )
        super().__init__(info, DeviceState("ascend"), {})
        self._clock_stream: int = acl.value("create_stream")
        undo.callback(acl.code, "destroy_stream", self._clock_stream)
        if self._pool.times:
            self._pool.clock = EventClock(self._mark, self._pool.elapsed_ms)
        for name, stream in adopted.items():
            if isinstance(stream, Stream):
                self._adopted[name] = stream
            else:
                self._adopted[name] = self._opened(name, AclQueue(acl, self._pool, name, stream))

    def _mark(self) -> Any:
        event = self._pool.record(self._clock_stream)
        if not event.wait(_MARK_TIMEOUT_S):
            raise DeviceError(f"an event on an idle stream was not reached within {_MARK_TIMEOUT_S} s")
        return event

    def _make_queue(self, name: str) -> DriverQueue:
        return AclQueue(self._acl, self._pool, name)

    def _alloc(self, nbytes: int, name: str) -> DriverBuffer:
        try:
            return AclDeviceBuffer(self._acl, nbytes, name)
        except OutOfDeviceMemory as exc:
            raise self._out_of_memory(nbytes, name, str(exc)) from exc

    def _alloc_host(self, nbytes: int, name: str) -> DriverBuffer:
        try:
            return AclHostBuffer(self._acl, nbytes, name)
        except OutOfDeviceMemory as exc:
            raise self._out_of_memory(nbytes, name, str(exc)) from exc

    def free_nbytes(self) -> int | None:
        if not self._device.healthy:
            return None
        free, _ = self._acl.value("get_mem_info", _HBM)
        return int(free)

    def touch(self, buffer: Buffer) -> None:
        self._device.check_open()
        if buffer.is_host:
            buffer.array[::_PAGE_NBYTES] = 0
        elif buffer.nbytes:
            self._acl.call("memset", buffer.handle, buffer.nbytes, 0, buffer.nbytes)

    def _closed(self) -> None:
        if self._device.threads_abandoned:
            return  # work hangs: destroying the context under it would end the process
        with ExitStack() as rest:  # runs from its end
            rest.callback(self._acl.close)
            rest.callback(self._pool.close)
            rest.callback(self._acl.code, "destroy_stream", self._clock_stream)


def open_backend(target: str | None = None, **options: Any) -> AscendBackend:
    """Open ``ascend`` (device 0) or ``ascend:ID``.

    ``compute_stream`` and ``copy_stream`` are the caller's ACL streams (integers), or streams of another backend opened
    here, to use instead of new ones; the calling thread's current context is theirs. Raises `BackendUnavailable` where
    CANN or the device is missing, and `ConfigurationError` for any other option.
    """
    unknown = sorted(set(options) - {"compute_stream", "copy_stream"})
    if unknown:
        raise ConfigurationError(
            f"backend 'ascend' takes the options compute_stream and copy_stream, got {', '.join(unknown)}"
        )
    text = target or "0"
    if not (text.isascii() and text.isdigit()):
        raise BackendUnavailable(f"backend 'ascend:{target}' names no device: give its id, e.g. 'ascend:0'")
    module = load_acl()
    adopted = given_streams(options)
    for name, stream in adopted.items():
        if not isinstance(stream, int | Stream):
            raise ConfigurationError(f"{name}_stream must be an ACL stream (an int), got {type(stream).__name__}")
    count, code = module.rt.get_device_count()
    if code:
        raise BackendUnavailable(f"no Ascend driver works here: {acl_error(code, 'acl.rt.get_device_count')}")
    if int(text) >= count:
        raise BackendUnavailable(f"backend 'ascend:{text}' is out of range: this machine has {count} Ascend devices")
    context = None
    if adopted:
        context, code = module.rt.get_context()
        if code:
            raise acl_error(code, "acl.rt.get_context, for the context of the given streams,")
    return AscendBackend(Acl(module, int(text), context), adopted)
