"""The part of pyACL that the fake has: one row a function, taken from the public API reference of CANN.

Nothing here is shared with the backend: the table is what the backend is held against.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["TABLE", "Row"]


class Row(NamedTuple):
    """A function of ``acl`` or ``acl.rt``.

    Attributes
    ----------
    parameters:
        Kind of each argument: ``int``, ``device`` (a device id), ``context``, ``stream``, ``event``, ``device_ptr``,
        ``host_ptr``, ``size``, ``flag``.
    values:
        How many values it gives before the return code; with none it gives the bare code.
    in_context:
        Whether the calling thread must have set a context.
    blocks:
        Whether it may block; those that do release the GIL.
    reference:
        Where the public documentation describes it.
    """

    name: str
    parameters: tuple[str, ...]
    values: int
    in_context: bool
    blocks: bool
    reference: str


_DEVICE = "pyACL API reference, Device Management"
_CONTEXT = "pyACL API reference, Context Management"
_STREAM = "pyACL API reference, Stream Management"
_EVENT = "pyACL API reference, Event Management (synchronous wait)"
_MEMORY = "pyACL API reference, Memory Management"

TABLE: Final = (
    Row("init", (), 0, False, False, "pyACL API reference, Initialization and Deinitialization: acl.init"),
    Row("rt.get_device_count", (), 1, False, False, f"{_DEVICE}: aclrtGetDeviceCount"),
    Row("rt.set_device", ("device",), 0, False, False, f"{_DEVICE}: aclrtSetDevice"),
    Row("rt.create_context", ("device",), 1, False, False, f"{_CONTEXT}: aclrtCreateContext"),
    Row("rt.destroy_context", ("context",), 0, False, False, f"{_CONTEXT}: aclrtDestroyContext"),
    Row("rt.set_context", ("context",), 0, False, False, f"{_CONTEXT}: aclrtSetCurrentContext"),
    Row("rt.get_context", (), 1, True, False, f"{_CONTEXT}: aclrtGetCurrentContext"),
    Row("rt.get_mem_info", ("flag",), 2, True, False, f"{_MEMORY}: aclrtGetMemInfo"),
    Row("rt.malloc", ("size", "flag"), 1, True, False, f"{_MEMORY}: aclrtMalloc"),
    Row("rt.free", ("device_ptr",), 0, True, False, f"{_MEMORY}: aclrtFree"),
    Row("rt.malloc_host", ("size",), 1, True, False, f"{_MEMORY}: aclrtMallocHost"),
    Row("rt.free_host", ("host_ptr",), 0, True, False, f"{_MEMORY}: aclrtFreeHost"),
    Row("rt.memset", ("int", "size", "int", "size"), 0, True, False, f"{_MEMORY}: aclrtMemset"),
    Row(
        "rt.memcpy_async",
        ("int", "size", "int", "size", "flag", "stream"),
        0,
        True,
        False,
        f"{_MEMORY}: aclrtMemcpyAsync",
    ),
    Row("rt.create_stream", (), 1, True, False, f"{_STREAM}: aclrtCreateStream"),
    Row("rt.destroy_stream", ("stream",), 0, True, False, f"{_STREAM}: aclrtDestroyStream"),
    Row("rt.stream_wait_event", ("stream", "event"), 0, True, True, f"{_EVENT}: aclrtStreamWaitEvent"),
    Row("rt.create_event_with_flag", ("flag",), 1, True, False, f"{_EVENT}: aclrtCreateEventWithFlag"),
    Row("rt.destroy_event", ("event",), 0, True, False, f"{_EVENT}: aclrtDestroyEvent"),
    Row("rt.record_event", ("event", "stream"), 0, True, False, f"{_EVENT}: aclrtRecordEvent"),
    Row("rt.reset_event", ("event", "stream"), 0, True, False, f"{_EVENT}: aclrtResetEvent"),
    Row("rt.query_event_status", ("event",), 1, True, False, f"{_EVENT}: aclrtQueryEventStatus"),
    Row(
        "rt.synchronize_event_with_timeout",
        ("event", "int"),
        0,
        True,
        True,
        f"{_EVENT}: aclrtSynchronizeEventWithTimeout",
    ),
    Row("rt.event_elapsed_time", ("event", "event"), 1, True, False, f"{_EVENT}: aclrtEventElapsedTime"),
)
