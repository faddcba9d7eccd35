"""The image of a paged decode at the size of Qwen3-14B: what changes in it from step to step is what a decode changes.

40 layers of 277 tasks with dependencies, as one graph image written by `async_orch.graph`; a batch of 16 rows with
positions, tokens and block tables, blocks of 64 positions handed out as the rows grow, and a row that leaves for a new
one every 50 steps. The kernels do nothing: the bench is about the image.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from async_orch.abc import ByteArray
from async_orch.graph import GraphBuilder, KernelTable

__all__ = ["PagedDecode"]

BATCH, BLOCK, MAX_POSITION = 16, 64, 5_500
TASKS_A_LAYER = 277
OPERANDS_A_LAYER = 26


class PagedDecode:
    """Writes one step's image after the other; the same seed gives the same steps."""

    def __init__(self, layers: int = 40, *, seed: int = 0) -> None:
        self._layers = layers
        self._random = np.random.default_rng(seed)
        table = KernelTable()

        @table.kernel("work", outputs=(0,))
        def work(*args: Any) -> None:
            """Only its tasks matter here."""

        tasks = layers * TASKS_A_LAYER
        self._builder = GraphBuilder(
            None, table, {"kv": layers * OPERANDS_A_LAYER * 4096}, max_tasks=tasks, max_operands=tasks
        )
        self._operands = [
            self._builder.tensor("kv", index * 4096, (16, 64), np.float32) for index in range(layers * OPERANDS_A_LAYER)
        ]
        self._positions = self._random.integers(500, 3_500, BATCH, np.int32)
        self._blocks = self._random.permutation(BATCH * MAX_POSITION // BLOCK + 1_000).astype(np.int32).tolist()
        self._tables = np.full((BATCH, MAX_POSITION // BLOCK + 1), -1, np.int32)
        self._step = 0
        for row in range(BATCH):
            self._hand_out(row)
        self.image_nbytes = tasks * 200 + 65_536

    def _hand_out(self, row: int) -> None:
        """Blocks for all of the row's positions so far."""
        needed = int(self._positions[row]) // BLOCK + 1
        for column in np.flatnonzero(self._tables[row, :needed] == -1):
            self._tables[row, column] = self._blocks.pop()

    def _next(self) -> None:
        self._step += 1
        self._positions += 1
        if self._step % 50 == 0:
            row = int(self._random.integers(BATCH))
            used = self._tables[row][self._tables[row] != -1]
            self._blocks[:0] = used.tolist()
            self._tables[row] = -1
            self._positions[row] = self._random.integers(500, 3_500)
        for row in range(BATCH):
            self._hand_out(row)

    def build(self, image: ByteArray) -> int:
        """Write the next step's image; gives the bytes used."""
        self._next()
        builder, operands = self._builder, self._operands
        builder.reset(image)
        positions = builder.put(self._positions)
        tokens = builder.put(self._random.integers(0, 150_000, BATCH, np.int32))
        tables = builder.put(self._tables)
        task = builder.task
        last: tuple[int, ...] = ()
        for layer in range(self._layers):
            at = layer * OPERANDS_A_LAYER
            for index in range(TASKS_A_LAYER):
                first = operands[at + index % OPERANDS_A_LAYER]
                second = operands[at + (index + 1) % OPERANDS_A_LAYER]
                last = (task("work", first, second, positions, tokens if index == 0 else tables, after=last),)
        return builder.finish()
