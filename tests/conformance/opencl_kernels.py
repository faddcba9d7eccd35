"""Kernels for the conformance suite in OpenCL C. Imported only where pyopencl is installed."""

from __future__ import annotations

from collections.abc import Callable

import pyopencl as cl
from async_orch_backends._opencl_memory import device_memory
from async_orch_backends.opencl import NDRange

from async_orch.abc import Buffer, Stream
from async_orch.exceptions import DeviceError
from async_orch.testing import Kernels, ManualFence

__all__ = ["OpenCLKernels"]

SOURCE = "kernel void add_one(global uchar *bytes) { bytes[get_global_id(0)] += 1; }"


class OpenCLKernels(Kernels):
    """A CPU driver's kernels cannot fail, so a failed kernel is one behind a fence that failed."""

    def __init__(self, *, native: bool = False) -> None:
        """With ``native`` the queue is taken out each time, so that fences are the driver's markers."""
        self._native = native
        self._built: dict[int, cl.Kernel] = {}
        self._kept: list[cl.Event] = []

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        context = stream.native.context if self._native else buffer.native.context
        kernel = self._built.get(context.int_ptr)
        if kernel is None:
            kernel = self._built[context.int_ptr] = cl.Kernel(cl.Program(context, SOURCE).build(), "add_one")
        stream.launch(NDRange(kernel, (buffer.nbytes,)), buffer)

    def fail(self, stream: Stream) -> None:
        failed = ManualFence()
        failed.finish(DeviceError("a fence of the conformance suite that fails on purpose"))
        stream.wait(failed)

    def fail_copy(self, stream: Stream, source: Buffer) -> None:
        queue = stream.native
        event = cl.UserEvent(queue.context)
        barrier = cl.enqueue_barrier(queue, wait_for=[event])
        stream.copy(device_memory(cl, queue.context, source.nbytes, "target"), source, source.nbytes)
        event.set_status(cl.status_code.OUT_OF_RESOURCES)  # the driver fails what is behind the event
        self._kept.append(barrier)  # PoCL 3.0 aborts the process when an event is dropped before it fails

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish
