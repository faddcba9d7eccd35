"""The task graphs of prefill and decode steps over a paged key-value cache, written anew into each step's image."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from async_orch.abc import ByteArray
from async_orch.graph import GraphBuilder, Operand, Recorder
from examples.qwen3.graph_parts import (
    Activations,
    LayerWeights,
    ModelWeights,
    activation_shapes,
    layer_shapes,
    write_layer,
)
from examples.qwen3.paged_kernels import paged_kernel_table
from examples.qwen3.paged_shape import PagedShape, bucket, buckets
from examples.qwen3.paged_steps import TILE, DecodeBatch, PrefillBatch
from examples.qwen3.weights import place

__all__ = ["RESIDENT", "DecodeGraphs", "PagedGraphs", "PrefillGraphs"]

BatchT = TypeVar("BatchT", bound=DecodeBatch | PrefillBatch)

RESIDENT = ("weights", "kv", "state")
"""The regions that stay on the device, in the order in which the device side gets them, behind those of the slot."""

_TASKS_AROUND = 8
_ARGS_A_LAYER = 16  # eleven weights, keys and values, three inputs of the step
_STEP_OPERANDS = 32
_ROOM_NBYTES = 65536  # far above what a recorded layer and the rest take; only the size probe at start uses it


class _Kernels(NamedTuple):
    """The kernels in which the layers of the two programs differ."""

    linear: str
    append: str
    attention: str


_DECODE = _Kernels("linear", "paged_append", "paged_attention")
_PREFILL = _Kernels("linear_tiles", "tile_append", "tile_attention")


class _Shapes(NamedTuple):
    """Operands of one bucket: activations, and the rows that the head works on."""

    activations: Activations
    picked: Operand
    normed: Operand
    logits: Operand


class PagedGraphs(ABC, Generic[BatchT]):
    """Writes the graphs of one program's steps, of up to ``rows`` rows of activations.

    A layer is recorded once for each pair of buckets, when the first such step is built, and every layer of a step is
    one replay; the recorded layer travels in the image. Builds on several threads take turns.
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
        max_tasks = config.num_hidden_layers + _TASKS_AROUND
        n_shapes = len(list(buckets(rows))) * len(list(buckets(shape.max_batch)))
        self._lock = threading.Lock()
        self._builder = GraphBuilder(
            None,
            self.table,
            self.region_nbytes,
            max_tasks=max_tasks,
            max_args=max_tasks * _ARGS_A_LAYER,
            max_definitions=n_shapes * len(list(buckets(shape.table_width))),
            max_operands=len(shape.placed)
            + 2 * config.num_hidden_layers
            + n_shapes * len(self._places)
            + shape.max_batch
            + _STEP_OPERANDS,
            infer=True,
            scratch=("workspace",),
        )
        self._weights = ModelWeights(self._builder, config, shape.placed)
        cache = (shape.kv_blocks, shape.block_size, config.num_key_value_heads, config.head_dim)
        caches = [
            self._builder.tensor("kv", number * 4 * math.prod(cache), cache, np.float32)
            for number in range(2 * config.num_hidden_layers)
        ]
        self._bindings = [
            (*layer.values(), *caches[2 * index : 2 * index + 2]) for index, layer in enumerate(self._weights.layers)
        ]
        self._cache_shape = cache
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

    def _layers(self, a: Activations, kernels: _Kernels, inputs: Sequence[tuple[Operand, tuple[int, ...]]]) -> None:
        """Replay the layer for each; ``inputs`` are positions, block tables, and where there are some, tiles."""
        handles, shapes = zip(*inputs, strict=True)

        def layer(recorder: Recorder) -> None:
            weights = {
                name: recorder.parameter(name, shape, np.float32, region="weights")
                for name, shape in layer_shapes(self.shape.placed).items()
            }
            keys, values = (
                recorder.parameter(n, self._cache_shape, np.float32, region="kv") for n in ("keys", "values")
            )
            given = [recorder.parameter(f"input{number}", shape, np.int32) for number, shape in enumerate(shapes)]
            positions, tables, tokens = given[0], given[1], given[-1 if len(given) > 2 else 0]

            def attend() -> None:
                recorder.task(kernels.append, keys, values, a.k, a.v, tables, tokens)
                recorder.task(kernels.attention, a.mixed, a.q, keys, values, tables, tokens)

            write_layer(
                recorder.task,
                a,
                LayerWeights(**weights),
                linear=kernels.linear,
                eps=self.shape.config.rms_norm_eps,
                rotation=(self._weights.cosine, self._weights.sine, positions),
                attend=attend,
            )

        definition = self._builder.record("layer", layer, key=shapes)
        for bindings in self._bindings:
            self._builder.replay(definition, (*bindings, *handles))

    def _put_tables(self, count: int, tables: Sequence[Sequence[int]]) -> tuple[Operand, tuple[int, ...]]:
        """Block tables int32 [count, width], only as wide as this step's longest sequence needs, in buckets."""
        width = bucket(max(map(len, tables)), self.shape.table_width)
        operand, view = self._builder.reserve((count, width), np.int32)
        view[...] = 0
        for index, table in enumerate(tables):
            view[index, : len(table)] = table
        return operand, view.shape

    def _return_logits(self, logits: Operand, returned: Sequence[int]) -> None:
        if returned:
            shape = (len(returned), self.shape.config.vocab_size)
            out = self._builder.tensor("output", self.shape.logits_offset, shape, np.float32)
            self._builder.task("take_rows", out, logits, self._builder.put(np.array(returned, np.int32)))

    def scratch(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Room for any step's image: more than it takes, for finding out how much that is."""
        inputs = 4 * (self.shape.max_batch * (self.shape.table_width + 8) + 3 * self._max_rows)
        records = 64 * _ARGS_A_LAYER * (self.shape.config.num_hidden_layers + _STEP_OPERANDS)
        return np.empty(inputs + records + _ROOM_NBYTES, np.uint8)


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
        own_rows, own_positions = builder.put(rows), (builder.put(positions), positions.shape)
        task("embed_next", a.hidden, weights.embedding, builder.put(tokens), self._resident, self._fed, own_rows)
        self._layers(a, _DECODE, (own_positions, tables))
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
        own_positions = builder.put(positions.reshape(-1)), (positions.size,)
        self._layers(a, _PREFILL, (own_positions, tables, (builder.put(of_tiles), of_tiles.shape)))
        task("take_rows", picked, a.hidden, builder.put(picks))
        task("rms_norm", normed, picked, weights.final_norm, eps)
        task("linear", logits, normed, weights.head)
        return logits, builder.put(rows)
