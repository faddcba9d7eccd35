"""Backend ``opencl``: devices behind OpenCL, PoCL on the CPU among them.

``opencl:0`` is the first device of all platforms. A kernel is an `NDRange`; programs are built with pyopencl in the
context of the compute stream::

    def open(self, device):
        program = pyopencl.Program(device.compute_stream.context, SOURCE).build()
        kernel = pyopencl.Kernel(program, "add")
        kernel.set_scalar_arg_dtypes([None, numpy.int32])  # a launch takes less time
        self.add = NDRange(kernel, global_size=(4096,))

    def launch(self, step, slot, stream):
        stream.launch(self.add, slot.workspace, step)

A stream is an in-order queue with profiling; its times are the device's, anchored to the host's clock. Another
queue's fence of the same context is waited for in the driver. A fence is the event of the last command, which costs
nothing; but once ``stream.native`` has handed out the queue, others may enqueue there, and each fence is a marker of
its own (33 us each, measured on CPU (PoCL)). An OpenCL driver has no wait with a time-out and no way to drop queued
commands: closing waits at most `close_timeout_s` for them. After a loss, `reset` (by ``Orchestrator.reopen``) goes on
in a new context, where the program builds its kernels again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from async_orch.abc import Buffer, DeviceInfo, Stream
from async_orch.exceptions import ConfigurationError, DeviceError, OutOfDeviceMemory

from ._anchored_clock import AnchoredClock
from ._device_state import DeviceState
from ._driver_backend import DriverBackend, DriverBuffer
from ._driver_queue import DriverQueue
from ._memory import CHECKED_NBYTES, available_nbytes
from ._opencl_driver import driver_error, find_device, load_pyopencl, queue_of, support_of
from ._opencl_launch import NDRange
from ._opencl_memory import device_memory, host_memory, shared_memory, shares_memory
from ._opencl_queue import OpenCLQueue, OpenCLStream

__all__ = ["NDRange", "OpenCLBackend", "OpenCLStream", "open_backend"]

SUPPORT: Final = "measured on CPU (PoCL)"  # with any other driver: not run

_PAGE_NBYTES = 4096


class OpenCLBackend(DriverBackend):
    """One OpenCL device and a context on it: a new one, or that of the caller's queues."""

    stream_type = OpenCLStream
    copy_overhead_nbytes = 128 * 1024
    """19 us a copy at 6.4 GB/s, measured on CPU (PoCL)."""

    def __init__(self, cl: Any, device: Any, context: Any, adopted: Mapping[str, Any]) -> None:
        info = DeviceInfo(
            backend="opencl",
            device=device.name.strip(),
            support=support_of(device),
            alignment_nbytes=max(device.mem_base_addr_align // 8, 1),
            pinned=True,
            alloc_visibility="own",
            device_clock="anchored",
            memory_nbytes=device.global_mem_size,
            driver=f"{device.platform.name.strip()} {device.driver_version.strip()}",
        )
        super().__init__(info, DeviceState("opencl"), {})
        self._cl = cl
        self._native = device
        self.context = context
        self._own_queue = self._new_queue()
        self._clock = AnchoredClock(self._device_now_ns)
        for name, stream in adopted.items():
            wrapped = isinstance(stream, Stream)
            self._adopted[name] = stream if wrapped else self._opened(name, self._wrap(stream, name, owned=False))

    def reset(self) -> bool:
        """Leave the old context and its work behind, and open a new one on the same device.

        Every stream ends: fences of work that is not over within `close_timeout_s` fail, its threads are abandoned and
        counted, and its memory is kept. False once the backend is closed, in a forked child, with streams of the
        caller's, whose context is not ours to leave, and where the driver gives no new context.
        """
        if self._device.closed or self._device.forked or self._adopted:
            return False
        self._end_streams()
        before = self.context, self._own_queue
        try:
            self.context = self._cl.Context([self._native])
            self._own_queue = self._new_queue()
        except (self._cl.Error, DeviceError):
            self.context, self._own_queue = before
            return False
        self._device.lost = None
        return True

    def _new_queue(self) -> Any:
        try:
            return self._cl.CommandQueue(
                self.context, self._native, properties=self._cl.command_queue_properties.PROFILING_ENABLE
            )
        except self._cl.Error as exc:
            raise driver_error(exc, "creating a command queue") from exc

    def _wrap(self, queue: Any, name: str, *, owned: bool) -> OpenCLQueue:
        return OpenCLQueue(self._cl, queue, self._clock, name, owned=owned)

    def _make_queue(self, name: str) -> DriverQueue:
        return self._wrap(self._new_queue(), name, owned=True)

    def _device_now_ns(self) -> int:
        marker = self._cl.enqueue_marker(self._own_queue)
        marker.wait()
        return int(marker.profile.end)

    def _alloc(self, nbytes: int, name: str) -> DriverBuffer:
        self._check_one(nbytes, name)
        try:
            return device_memory(self._cl, self.context, nbytes, name)
        except self._cl.Error as exc:
            raise self._refused(nbytes, name, exc) from exc

    def _alloc_host(self, nbytes: int, name: str) -> DriverBuffer:
        self._check_one(nbytes, name)
        try:
            return host_memory(self._cl, self._own_queue, nbytes, name)
        except (self._cl.Error, MemoryError) as exc:
            raise self._refused(nbytes, name, exc) from exc

    def _alloc_mapped(self, nbytes: int, name: str) -> tuple[DriverBuffer, DriverBuffer] | None:
        if not shares_memory(self._cl, self._native):
            return None
        self._check_one(nbytes, name)
        try:
            return shared_memory(self._cl, self.context, nbytes, name)
        except (self._cl.Error, MemoryError):
            return None  # there may be less of it than of other memory

    def free_nbytes(self) -> int | None:
        """Known where the device's memory is the machine's; OpenCL itself does not tell."""
        available = available_nbytes() if self._native.host_unified_memory else None
        return None if available is None else min(self._native.global_mem_size - self._allocated_nbytes, available)

    def _check_one(self, nbytes: int, name: str) -> None:
        largest = self._native.max_mem_alloc_size
        if nbytes > largest:
            raise self._out_of_memory(nbytes, name, f"the device's largest allocation is {largest} B")
        if nbytes >= CHECKED_NBYTES:
            free = self.free_nbytes()
            if free is not None and nbytes > free:
                # It may well succeed where the system overcommits, and end the process at first touch.
                raise self._out_of_memory(nbytes, name)

    def _refused(self, nbytes: int, name: str, exc: Exception) -> OutOfDeviceMemory:
        return self._out_of_memory(nbytes, name, " ".join(str(exc).split()))

    def touch(self, buffer: Buffer) -> None:
        self._device.check_open()
        if buffer.is_host:
            buffer.array[::_PAGE_NBYTES] = 0
        elif buffer.nbytes:
            # A driver allocates at first use, and reports only then that there is not enough.
            try:
                self._cl.enqueue_fill_buffer(self._own_queue, buffer.native, b"\0", 0, buffer.nbytes).wait()
            except self._cl.Error as exc:
                raise self._refused(buffer.nbytes, buffer.name, exc) from exc


def open_backend(target: str | None = None, **options: Any) -> OpenCLBackend:
    """Open ``opencl`` (the first device) or ``opencl:INDEX``.

    ``compute_stream`` and ``copy_stream`` are the caller's ``pyopencl.CommandQueue``, or streams of another backend
    opened here, to use instead of new ones; the device and context are theirs then. Raises `BackendUnavailable` with
    what to install or which devices there are, and `ConfigurationError` for any other option.
    """
    unknown = sorted(set(options) - {"compute_stream", "copy_stream"})
    if unknown:
        raise ConfigurationError(
            f"backend 'opencl' takes the options compute_stream and copy_stream, got {', '.join(unknown)}"
        )
    cl = load_pyopencl()
    queue, adopted = queue_of(cl, options)
    if queue is not None:
        return OpenCLBackend(cl, queue.device, queue.context, adopted)
    device = find_device(cl, target)
    try:
        context = cl.Context([device])
    except cl.Error as exc:
        raise driver_error(exc, f"opening {device.name.strip()}") from exc
    return OpenCLBackend(cl, device, context, adopted)
