"""Images of a paged decode at the size of Qwen3-14B: what changes from step to step is what a decode changes.

The graph is that of `examples.large`, replayed (40 references to one layer that is recorded) or unrolled. Lengths grow
by one a step, a row gets another block when it needs one, and every 50 steps one row leaves for a new sequence.
"""

from __future__ import annotations

import numpy as np

from async_orch.abc import ByteArray
from examples.large.layer_graph import LayerGraph, StepInputs, kernel_table
from examples.large.shape import QWEN3_14B, Shape

__all__ = ["images"]

IMAGE_NBYTES = 4 << 20
STEPS_A_ROW = 50


class _Batch:
    """Rows at different lengths, whose blocks lie anywhere in the cache."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._random = np.random.default_rng(seed)
        self._free = self._random.permutation(shape.rows * shape.blocks_a_row).tolist()
        self._lengths = self._random.integers(500, shape.context, shape.rows, np.int32)
        self._blocks = np.zeros((shape.rows, shape.blocks_a_row), np.int32)
        self._used = [0] * shape.rows
        self._steps = 0

    def next(self) -> StepInputs:
        """Inputs of the next step."""
        self._steps += 1
        self._lengths += 1
        if self._steps % STEPS_A_ROW == 0:
            row = int(self._random.integers(self._shape.rows))
            self._free[:0] = self._blocks[row, : self._used[row]].tolist()
            self._used[row] = 0
            self._lengths[row] = self._random.integers(500, self._shape.context)
        for row, length in enumerate(self._lengths.tolist()):
            while self._used[row] * self._shape.block <= length:
                self._blocks[row, self._used[row]] = self._free.pop()
                self._used[row] += 1
        return StepInputs(np.full(self._shape.rows, -1, np.int32), self._lengths, self._blocks)


def images(steps: int, *, unrolled: bool, seed: int = 0) -> list[ByteArray]:
    """The images of consecutive steps; the same for the same seed."""
    graph = LayerGraph(QWEN3_14B, kernel_table(), unrolled=unrolled)
    if not unrolled:
        graph.builder.place_definitions()
    batch, scratch = _Batch(QWEN3_14B, seed), np.zeros(IMAGE_NBYTES, np.uint8)
    return [scratch[: graph.build(batch.next(), scratch)].copy() for _ in range(steps)]
