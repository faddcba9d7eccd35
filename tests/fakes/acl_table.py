"""The part of pyACL that the fake has: one row a function, taken from the public API reference of CANN.

Nothing here is shared with the backend: the table is what the backend is held against.

References
----------
Names, parameters, results and rules: CANN Commercial 8.0.0, Application Development API (Python), whose pages are named
by their functions, as "Function: memcpy_async" (aclpythondevg_01_0125), and the page of the C function in its C part
(aclcppdevg_03_0106). That edition asks for aligned addresses of asynchronous copies; not every later one does.
Which calls release the GIL: the source of pyACL, python/pyACL/rt in the public repository of the CANN runtime (2026):
only those with PyEval_SaveThread around the call do.
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
    releases_gil:
        Whether other Python threads run meanwhile. A call that keeps the GIL must not be made where it would block.
    reference:
        Page of the public documentation, with the C function, and the file of pyACL's source.
    """

    name: str
    parameters: tuple[str, ...]
    values: int
    in_context: bool
    releases_gil: bool
    reference: str


def _row(
    name: str, parameters: str, values: int, c_function: str, file: str, *, context: bool = True, gil: bool = False
) -> Row:
    reference = f"Function: {name.removeprefix('rt.')} ({c_function}); {file}"
    return Row(name, tuple(parameters.split()), values, context, gil, reference)


_COPY = "int size int size flag stream"

TABLE: Final = (
    _row("init", "", 0, "aclInit", "acl.cpp", context=False),
    _row("rt.get_device_count", "", 1, "aclrtGetDeviceCount", "rt_device.cpp", context=False),
    _row("rt.set_device", "device", 0, "aclrtSetDevice", "rt_device.cpp", context=False),
    _row("rt.create_context", "device", 1, "aclrtCreateContext", "rt_context.cpp", context=False),
    _row("rt.destroy_context", "context", 0, "aclrtDestroyContext", "rt_context.cpp", context=False),
    _row("rt.set_context", "context", 0, "aclrtSetCurrentContext", "rt_context.cpp", context=False),
    _row("rt.get_context", "", 1, "aclrtGetCurrentContext", "rt_context.cpp"),
    _row("rt.get_mem_info", "flag", 2, "aclrtGetMemInfo", "rt_memory.cpp"),
    _row("rt.malloc", "size flag", 1, "aclrtMalloc", "rt_memory.cpp"),
    _row("rt.free", "device_ptr", 0, "aclrtFree", "rt_memory.cpp"),
    _row("rt.malloc_host", "size", 1, "aclrtMallocHost", "rt_memory.cpp"),
    _row("rt.free_host", "host_ptr", 0, "aclrtFreeHost", "rt_memory.cpp"),
    _row("rt.memset", "int size int size", 0, "aclrtMemset", "rt_memory.cpp"),
    _row("rt.memcpy_async", _COPY, 0, "aclrtMemcpyAsync", "rt_memory.cpp"),
    _row("rt.create_stream", "", 1, "aclrtCreateStream", "rt_stream.cpp"),
    _row("rt.destroy_stream", "stream", 0, "aclrtDestroyStream", "rt_stream.cpp"),
    _row("rt.stream_wait_event", "stream event", 0, "aclrtStreamWaitEvent", "rt_event.cpp", gil=True),
    _row("rt.create_event_with_flag", "flag", 1, "aclrtCreateEventWithFlag", "rt_event.cpp"),
    _row("rt.destroy_event", "event", 0, "aclrtDestroyEvent", "rt_event.cpp"),
    _row("rt.record_event", "event stream", 0, "aclrtRecordEvent", "rt_event.cpp"),
    _row("rt.reset_event", "event stream", 0, "aclrtResetEvent", "rt_event.cpp"),
    _row("rt.query_event_status", "event", 1, "aclrtQueryEventStatus", "rt_event.cpp"),
    _row(
        "rt.synchronize_event_with_timeout",
        "event int",
        0,
        "aclrtSynchronizeEventWithTimeout",
        "rt_event.cpp",
        gil=True,
    ),
    _row("rt.event_elapsed_time", "event event", 1, "aclrtEventElapsedTime", "rt_event.cpp"),
)
