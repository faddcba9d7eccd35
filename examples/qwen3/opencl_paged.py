"""The paged programs on an OpenCL device: a step is one launch, whose kernel runs the step's graph from device memory.

Needs pyopencl and a driver: ``pip install 'async-orch[opencl]'``, or ``async-orch[pocl]`` for one on the CPU.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from async_orch import Device, Slot
from async_orch.abc import ByteArray, Stream
from async_orch.graph import OpenCLDispatcher
from examples.qwen3.opencl import graph_kernel, operations
from examples.qwen3.paged import PagedModel
from examples.qwen3.paged_programs import Owner, PagedDecode, PagedPrefill, PagedProgram
from examples.qwen3.paged_steps import FROM_DEVICE, FROM_FEED, TILE, BatchOutput, DecodeBatch, PrefillBatch

__all__ = ["OpenCLPagedDecode", "OpenCLPagedModel", "OpenCLPagedPrefill", "paged_operations"]

BatchT = TypeVar("BatchT", bound=DecodeBatch | PrefillBatch)

_FIRST_RUN_TIMEOUT_S = 120.0


def paged_operations() -> str:
    """The OpenCL C of the kernels in `paged_kernel_table`, for `OpenCLDispatcher`."""
    constants = f"enum {{ TILE = {TILE}, FROM_DEVICE = {FROM_DEVICE}, FROM_FEED = {FROM_FEED} }};\n"
    return constants + operations("kernels.cl", "paged_kernels.cl")


class _OpenCLProgram(PagedProgram[BatchT]):
    """What both programs have in common here.

    A step's output has the status of its graph behind it: a step whose image was damaged on the way fails with
    `ImageCorrupt` when it is collected.
    """

    def __init__(self, owner: Owner, *, keep_logits: bool = False) -> None:
        super().__init__(owner, keep_logits=keep_logits)
        regions = tuple(self.graphs.region_nbytes)
        self.dispatcher = OpenCLDispatcher(self.graphs.table, regions, paged_operations())
        self.slot = dataclasses.replace(self.slot, output_nbytes=_behind(self.slot.output_nbytes))

    def open(self, device: Device) -> None:
        """Bring the model there, compile the kernel, and run it once: a kernel's first run takes far longer."""
        super().open(device)
        self._kernel = graph_kernel(self.dispatcher, device)
        # The state is all zeros yet, which is no image: the kernel says so, in a cache that is still empty, and ends.
        resident = self.owner.resident
        regions = {name: resident.get(name, resident["kv"]) for name in self.graphs.region_nbytes}
        stream = device.compute_stream
        stream.launch(self._kernel, *self.dispatcher.arguments(resident["state"], regions, resident["kv"]))
        stream.record().synchronize(_FIRST_RUN_TIMEOUT_S)

    def enqueue(self, step: BatchT, slot: Slot, stream: Stream) -> None:
        """Launch the one kernel, which walks the graph in device memory."""
        status_at = _behind(super().output_nbytes(step)) - self.dispatcher.STATUS_NBYTES
        arguments = self.dispatcher.arguments(slot.image, self.memory(slot), slot.output, status_at)
        stream.launch(self._kernel, *arguments)

    def output_nbytes(self, step: BatchT) -> int:
        """Tokens, the logits returned, and the graph's status."""
        return _behind(super().output_nbytes(step))

    def collect(self, step: BatchT, output: ByteArray) -> BatchOutput:
        """The step's tokens, if its graph ran to the end."""
        end = self.output_nbytes(step)
        self.dispatcher.check(output[end - self.dispatcher.STATUS_NBYTES : end])
        return super().collect(step, output)


def _behind(nbytes: int) -> int:
    """Bytes of an output of so many with a status behind them, aligned as a status must be."""
    return -(-nbytes // 8) * 8 + OpenCLDispatcher.STATUS_NBYTES


class OpenCLPagedPrefill(_OpenCLProgram[PrefillBatch], PagedPrefill):
    """`PagedPrefill` with kernels in OpenCL C."""


class OpenCLPagedDecode(_OpenCLProgram[DecodeBatch], PagedDecode):
    """`PagedDecode` with kernels in OpenCL C."""


class OpenCLPagedModel(PagedModel):
    """`PagedModel` for the backend ``opencl``; parameters and results are the same.

    Logits differ from those of numpy's kernels by rounding only. They, too, depend on a sequence alone.
    """

    prefill_type = OpenCLPagedPrefill
    decode_type = OpenCLPagedDecode
