"""The task graphs of prefill and decode steps over a paged key-value cache, written anew into each step's image."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from async_orch.abc import ByteArray
from async_orch.graph import GraphBuilder, Operand
from examples.qwen3.graph_parts import TASKS_A_LAYER, Activations, ModelWeights, activation_shapes, write_layer
from examples.qwen3.paged_kernels import paged_kernel_table
from examples.qwen3.paged_shape import PagedShape, bucket, buckets
from examples.qwen3.paged_steps import TILE, DecodeBatch, PrefillBatch
from examples.qwen3.weights import place

__all__ = ["RESIDENT", "DecodeGraphs", "PagedGraphs", "PrefillGraphs"]

BatchT = TypeVar("BatchT", DecodeBatch, PrefillBatch)

RESIDENT = ("weights", "kv", "state")
"""The regions that stay on the device, in the order in which the device side gets them, behind those of the slot."""

_TASKS_AROUND = 8
_STEP_OPERANDS = 32


class _Shapes(NamedTuple):
    """Operands of one bucket: activations, and the rows that the head works on."""

    activations: Activations
    picked: Operand
    normed: Operand
    logits: Operand


class PagedGraphs(ABC, Generic[BatchT]):
    """Writes the graphs of one program's steps, of up to ``rows`` rows of activations.

    Builds on several threads take turns.
    """

    def __init__(self, shape: PagedShape, *, rows: int, has_feed: bool = False) -> None:
        config = shape.config
        self.shape = shape
        self.table = paged_kernel_table()
        self._max_rows = rows
        self._places, workspace_nbytes = place(self._workspace_shapes(rows, shape.max_batch))
        self.region_nbytes = {
            "workspace": workspace_nbytes,
            "output": shape.output_nbytes,
            **({"feed": 4 * shape.max_batch} if has_feed else {}),
            **shape.region_nbytes,
        }
        self.max_tasks = config.num_hidden_layers * TASKS_A_LAYER + _TASKS_AROUND
        n_shapes = len(list(buckets(rows))) * len(list(buckets(shape.max_batch)))
        self._lock = threading.Lock()
        self._builder = GraphBuilder(
            None,
            self.table,
            self.region_nbytes,
            max_tasks=self.max_tasks,
            max_operands=len(shape.placed)
            + 2 * config.num_hidden_layers
            + n_shapes * len(self._places)
            + shape.max_batch
            + _STEP_OPERANDS,
            infer=True,
        )
        self._weights = ModelWeights(self._builder, config, shape.placed)
        cache = (shape.kv_blocks, shape.block_size, config.num_key_value_heads, config.head_dim)
        self._caches = [
            self._builder.tensor("kv", number * 4 * math.prod(cache), cache, np.float32)
            for number in range(2 * config.num_hidden_layers)
        ]
        batch = (shape.max_batch,)
        self._resident = self._builder.tensor("state", 0, batch, np.int32)
        self._tokens = self._builder.tensor("output", 0, batch, np.int32)
        self._shapes: dict[tuple[int, int], _Shapes] = {}

    def _workspace_shapes(self, rows: int, heads: int) -> dict[str, tuple[int, ...]]:
        config = self.shape.config
        return {
            **activation_shapes(config, rows),
            "picked": (heads, config.hidden_size),
            "picked_normed": (heads, config.hidden_size),
            "logits": (heads, config.vocab_size),
        }

    def _for(self, rows: int, heads: int) -> _Shapes:
        """Operands for ``rows`` rows of activations and ``heads`` of logits; made once for each pair of buckets."""
        found = self._shapes.get((rows, heads))
        if found is None:
            operands = {
                name: self._builder.tensor("workspace", self._places[name].offset, shape, np.float32)
                for name, shape in self._workspace_shapes(rows, heads).items()
            }
            picked, normed, logits = (operands.pop(name) for name in ("picked", "picked_normed", "logits"))
            found = self._shapes[rows, heads] = _Shapes(Activations(**operands), picked, normed, logits)
        return found

    def write(self, batch: BatchT, image: ByteArray, returned: Sequence[int]) -> int:
        """Write the graph of a step whose output has the logits of the places ``returned``; gives the bytes used.

        The step has been checked. Raises `GraphOverflow` if the image is too small.
        """
        with self._lock:
            self._builder.reset(image)
            logits, rows = self._write(batch, self._builder.scalar(self.shape.config.rms_norm_eps))
            self._builder.task("choose", self._resident, self._tokens, logits, rows)
            self._return_logits(logits, returned)
            return self._builder.finish()

    @abstractmethod
    def _write(self, batch: BatchT, eps: Operand) -> tuple[Operand, Operand]:
        """Write all up to the logits; gives them and the row of each."""

    def _layers(
        self, a: Activations, eps: Operand, linear: str, positions: Operand, kind: str, where: tuple[Operand, Operand]
    ) -> None:
        builder, weights = self._builder, self._weights
        rotation = weights.cosine, weights.sine, positions
        for index, layer in enumerate(weights.layers):
            attend = partial(self._attend, index, a, kind, where)
            write_layer(builder, a, layer, linear=linear, eps=eps, rotation=rotation, attend=attend)

    def _attend(self, layer: int, a: Activations, kind: str, where: tuple[Operand, Operand]) -> None:
        keys, values = self._caches[2 * layer : 2 * layer + 2]
        self._builder.task(f"{kind}_append", keys, values, a.k, a.v, *where)
        self._builder.task(f"{kind}_attention", a.mixed, a.q, keys, values, *where)

    def _put_tables(self, count: int, tables: Sequence[Sequence[int]]) -> Operand:
        """Block tables int32 [count, width], only as wide as this step's longest sequence needs, in buckets."""
        width = bucket(max(map(len, tables)), self.shape.table_width)
        operand, view = self._builder.reserve((count, width), np.int32)
        view[...] = 0
        for index, table in enumerate(tables):
            view[index, : len(table)] = table
        return operand

    def _return_logits(self, logits: Operand, returned: Sequence[int]) -> None:
        if returned:
            shape = (len(returned), self.shape.config.vocab_size)
            out = self._builder.tensor("output", self.shape.logits_offset, shape, np.float32)
            self._builder.task("take_rows", out, logits, self._builder.put(np.array(returned, np.int32)))

    def scratch(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Room for any step's image: more than it takes, for finding out how much that is."""
        inputs = 4 * (self.shape.max_batch * (self.shape.table_width + 8) + 3 * self._max_rows)
        return np.empty(inputs + (self.max_tasks + _STEP_OPERANDS) * 4096, np.uint8)


class DecodeGraphs(PagedGraphs[DecodeBatch]):
    """Graphs of decode steps: one row of activations for each sequence, padded to a bucket."""

    def __init__(self, shape: PagedShape) -> None:
        super().__init__(shape, rows=shape.max_batch, has_feed=True)
        self._fed = self._builder.tensor("feed", 0, (shape.max_batch,), np.int32)

    def _write(self, batch: DecodeBatch, eps: Operand) -> tuple[Operand, Operand]:
        shape, builder, weights = self.shape, self._builder, self._weights
        size = bucket(len(batch.rows), shape.max_batch)
        rows, positions, tokens = (np.full(size, fill, np.int32) for fill in (-1, -1, 0))
        for index, row in enumerate(batch.rows):
            rows[index], positions[index], tokens[index] = row.row, row.position, row.token
        task, (a, _, _, logits) = builder.task, self._for(size, size)
        tables = self._put_tables(size, [row.blocks[: row.position // shape.block_size + 1] for row in batch.rows])
        own_rows, own_positions = builder.put(rows), builder.put(positions)
        task("embed_next", a.hidden, weights.embedding, builder.put(tokens), self._resident, self._fed, own_rows)
        self._layers(a, eps, "linear", own_positions, "paged", (tables, own_positions))
        task("rms_norm", a.normed, a.hidden, weights.final_norm, eps)
        task("linear", logits, a.normed, weights.head)
        return logits, own_rows


class PrefillGraphs(PagedGraphs[PrefillBatch]):
    """Graphs of prefill steps: tiles of prompt tokens, and the head for the last token of each prompt that ends."""

    def __init__(self, shape: PagedShape) -> None:
        super().__init__(shape, rows=shape.max_prefill_tokens)

    def _write(self, batch: PrefillBatch, eps: Operand) -> tuple[Operand, Operand]:
        shape, builder, weights = self.shape, self._builder, self._weights
        n_chunks = bucket(len(batch.chunks), shape.max_batch)
        rows, picks = (np.full(n_chunks, -1, np.int32) for _ in range(2))
        tiles: list[tuple[int, int, int]] = []
        for index, chunk in enumerate(batch.chunks):
            length = len(chunk.tokens)
            if chunk.last:
                rows[index], picks[index] = chunk.row, TILE * len(tiles) + length - 1
            tiles += [(index, at, min(TILE, length - at)) for at in range(0, length, TILE)]
        n_tiles = bucket(len(tiles), shape.max_prefill_tokens // TILE)
        of_tiles = np.full((n_tiles, 3), -1, np.int32)
        tokens, positions = np.full((n_tiles, TILE), -1, np.int32), np.zeros((n_tiles, TILE), np.int32)
        for tile, (index, at, count) in enumerate(tiles):
            chunk = batch.chunks[index]
            start = chunk.start + at
            of_tiles[tile] = index, start, count
            tokens[tile, :count] = chunk.tokens[at : at + count]
            positions[tile, :count] = np.arange(start, start + count)
        task, (a, picked, normed, logits) = builder.task, self._for(n_tiles * TILE, n_chunks)
        reach = [-(-(chunk.start + len(chunk.tokens)) // shape.block_size) for chunk in batch.chunks]
        tables = self._put_tables(n_chunks, [chunk.blocks[:n] for chunk, n in zip(batch.chunks, reach, strict=True)])
        task("embed_prompt", a.hidden, weights.embedding, builder.put(tokens.reshape(-1)))
        where = tables, builder.put(of_tiles)
        self._layers(a, eps, "linear_tiles", builder.put(positions.reshape(-1)), "tile", where)
        task("take_rows", picked, a.hidden, builder.put(picks))
        task("rms_norm", normed, picked, weights.final_norm, eps)
        task("linear", logits, normed, weights.head)
        return logits, builder.put(rows)
