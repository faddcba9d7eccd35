"""A decode step of a large model as a step program: its graph is built, copied, checked; kernels only take time."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from async_orch import Built, Device, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.graph import Executor
from examples.large.layer_graph import LayerGraph, StepInputs, kernel_table
from examples.large.shape import Shape

__all__ = ["NATURAL", "REPORT", "LargeDecode", "SlotMemory"]


@dataclasses.dataclass(frozen=True, slots=True)
class SlotMemory:
    """Bytes of a step's image and workspace; None for what the graph needs."""

    image_nbytes: int | None = None
    workspace_nbytes: int | None = None


NATURAL = SlotMemory()
REPORT = SlotMemory(image_nbytes=5_543_943, workspace_nbytes=66_488_960)
"""What a step copied and allocated in the report of hw-native-sys/simpler #1841."""


class LargeDecode(StepProgram[int, int]):
    """Step ``n`` decodes the n-th token of every row of the batch; its result is the number of kernel calls.

    Weights and key-value cache are regions with a size and without memory: the graph names places in them, and the
    device side checks that they lie within.
    """

    def __init__(self, shape: Shape, memory: SlotMemory = NATURAL) -> None:
        self.shape = shape
        self.table = kernel_table()
        self.graph = LayerGraph(shape, self.table)
        self.content = self.graph.builder.place_definitions()
        self._check = Executor(self.table).check
        self._padded = memory.image_nbytes
        self._blocks = np.arange(shape.rows * shape.blocks_a_row, dtype=np.int32).reshape(shape.rows, -1)
        scratch = np.zeros(64 * 1024 * shape.layers, np.uint8)
        self.graph_nbytes = self.graph.build(self.inputs(0), scratch)
        self.probe = scratch[: self.graph_nbytes]
        self.slot = SlotSpec(
            image_nbytes=self.graph_nbytes if memory.image_nbytes is None else memory.image_nbytes,
            workspace_nbytes=memory.workspace_nbytes or self.graph.region_nbytes["workspace"],
            output_nbytes=self.graph.region_nbytes["output"],
        )
        self._definitions: Buffer | None = None

    def inputs(self, step: int) -> StepInputs:
        """Lengths grow by one a step; rows differ in length, so that in each step one of 16 gets another block."""
        shape = self.shape
        lengths = shape.context + step + np.arange(shape.rows, dtype=np.int32)
        lengths = np.minimum(lengths, shape.capacity - 1, dtype=np.int32)
        used = np.arange(shape.blocks_a_row) <= lengths[:, None] // shape.block
        blocks = np.where(used, self._blocks, np.int32(-1))
        return StepInputs(np.full(shape.rows, -1, np.int32), lengths, blocks)

    def open(self, device: Device) -> None:
        """Bring what was recorded to the device, once."""
        self._definitions = device.alloc(self.content.nbytes, name="definitions")
        device.upload(self._definitions, self.content)
        # As a warm-up of the device: expanding the replays for the first time takes longer than a step.
        self._check(self.probe, self.graph.region_nbytes, definitions=self.content)

    def build(self, step: int, image: ByteArray) -> Built:
        """Write the step's graph; with a padded image, the padding counts as the part of recorded graphs."""
        used = self.graph.build(self.inputs(step), image)
        return Built(used if self._padded is None else self._padded, sm_nbytes=used)

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        """Enqueue the step; on a simulated device it takes the profile's time for a kernel."""
        stream.launch(self.run, slot.image, slot.output, self._definitions)

    def run(self, image: ByteArray, output: ByteArray, definitions: ByteArray) -> None:
        """On the device: check all of the image and of the Definition that it replays, and expand it."""
        calls = self._check(image, self.graph.region_nbytes, definitions=definitions)
        output[:8].view(np.int64)[0] = calls

    def collect(self, step: int, output: ByteArray) -> int:
        """The number of kernel calls."""
        return int(output[:8].view(np.int64)[0])

    def close(self) -> None:
        """Forget the resident buffer; the orchestrator frees it."""
        self._definitions = None

    def describe(self) -> dict[str, Any]:
        """Figures of the graph."""
        layer = self.graph.layer
        return {
            "host_tasks": self.graph.builder.n_tasks,
            "layer_tasks": layer.n_tasks,
            "parameters": len(layer.parameters),
            "definitions_nbytes": self.content.nbytes,
            "image_nbytes": self.graph_nbytes,
        }
