"""The decoder on an OpenCL device: its task graph runs from device memory, a decode step in one launch.

Needs pyopencl and a driver: ``pip install 'async-orch[opencl]'``, or ``async-orch[pocl]`` for one on the CPU.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyopencl
from async_orch_backends.opencl import NDRange

from async_orch import Device, Slot
from async_orch.abc import ByteArray, Stream
from async_orch.graph import OpenCLDispatcher
from examples.qwen3.decode_graph import REGIONS
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import DecodeStep

__all__ = ["OpenCLDecode", "graph_kernel", "operations"]


def operations(*files: str) -> str:
    """OpenCL C of this folder's files, one after the other."""
    return "\n".join(Path(__file__).with_name(file).read_text(encoding="utf-8") for file in files)


_NOTHING_NBYTES: Final = 256
_COMPILE_TIMEOUT_S: Final = 120.0


def graph_kernel(dispatcher: OpenCLDispatcher, device: Device) -> NDRange:
    """The kernel that walks a graph in the device's memory, compiled for it."""
    stream: Any = device.compute_stream
    program = pyopencl.Program(stream.context, dispatcher.source).build()
    kernel = pyopencl.Kernel(program, dispatcher.kernel_name)
    kernel.set_scalar_arg_dtypes(dispatcher.argument_types)
    return NDRange(kernel, dispatcher.size, dispatcher.size)


class OpenCLDecode(Qwen3Decode):
    """`Qwen3Decode` with kernels in OpenCL C in place of numpy's; parameters and results are the same.

    A step's output has the status of its graph behind it: an image that was damaged on the way fails the step with
    `ImageCorrupt` when it is collected.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        source = operations("kernels.cl", "decode_kernels.cl")
        self.dispatcher = OpenCLDispatcher(self.table, REGIONS, source)
        self._status_at = -(-self.slot.output_nbytes // 64) * 64
        output_nbytes = self._status_at + self.dispatcher.STATUS_NBYTES
        self.slot = dataclasses.replace(self.slot, output_nbytes=output_nbytes)

    def open(self, device: Device) -> None:
        """Bring the model there, and compile the dispatcher with its operations for the device, to the last step."""
        super().open(device)
        self._graph_kernel = graph_kernel(self.dispatcher, device)
        self._launch_once(device)

    def _launch_once(self, device: Device) -> None:
        """Have the driver finish the kernel: PoCL compiles it for its work-group at the first launch, some 0.5 s.

        What it is given is no graph. So it refuses it, and writes nothing but its status.
        """
        nothing = device.alloc(_NOTHING_NBYTES, name="no graph")
        status = device.alloc(self.dispatcher.STATUS_NBYTES, name="its status")
        try:
            device.upload(nothing, np.zeros(_NOTHING_NBYTES, np.uint8))
            regions = {"workspace": nothing, "output": nothing, **self.resident}
            device.compute_stream.launch(self._graph_kernel, *self.dispatcher.arguments(nothing, regions, status))
            device.compute_stream.synchronize(_COMPILE_TIMEOUT_S)
        finally:
            device.free(status)
            device.free(nothing)

    def launch(self, step: DecodeStep, slot: Slot, stream: Stream) -> None:
        """Enqueue one kernel, which walks the graph in device memory."""
        regions = {"workspace": slot.workspace, "output": slot.output, **self.resident}
        arguments = self.dispatcher.arguments(slot.image, regions, slot.output, self._status_at)
        stream.launch(self._graph_kernel, *arguments)

    def collect(self, step: DecodeStep, output: ByteArray) -> DecodeOutput:
        """The step's tokens, if its graph ran to the end."""
        self.dispatcher.check(output[self._status_at :])
        return super().collect(step, output)
