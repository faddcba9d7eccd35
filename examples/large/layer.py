"""The recording of one decoder layer: 26 boundary tensors, and for Qwen3-14B at batch 16 277 tasks.

What is published of the workload is its size: 47 tasks on the host, of which 40 replay one Definition of 277 nodes with
26 boundary tensors (hw-native-sys/simpler #1841, #1874). How the 277 divide into kernels is not; the tiles below are
ours, chosen to give that number.
"""

from __future__ import annotations

import math

import numpy as np

from async_orch.graph import Parameter, Recorder
from examples.large.layout import TILE, Layout, weight_shapes

__all__ = ["LayerRecording"]

_SHARED = ("hidden", "normed", "qkv", "partial", "mixed", "projected", "gate_up", "inner", "cos", "sin", "slots")
"""Activations: the same memory in every layer, and still parameters, as in the workload."""


class LayerRecording:
    """Adds a layer's tasks to a recorder, in the order in which the layer computes."""

    def __init__(self, recorder: Recorder, layout: Layout) -> None:
        self._recorder = recorder
        self._shape = shape = layout.shape
        names = {name: name for name in _SHARED}
        names |= {name: f"0.{name}" for name in (*weight_shapes(shape), "keys", "values")}
        self._tensors = {
            name: recorder.parameter(
                name, layout.places[place][2], layout.places[place][3], region=layout.places[place][0]
            )
            for name, place in names.items()
        }
        self._blocks = recorder.parameter("blocks", (shape.rows, shape.blocks_a_row), np.int32)
        self._lengths = recorder.parameter("lengths", (shape.rows,), np.int32)
        self._q_tiles, self._kv_tiles = shape.q_width // TILE, shape.kv_width // TILE

    def record(self) -> None:
        """Add all tasks."""
        self._project()
        self._store()
        self._attend()
        self._mix()
        self._feed_forward()

    def _project(self) -> None:
        """Norm of the hidden state, and its queries, keys and values."""
        tensors, task = self._tensors, self._recorder.task
        some = self._shape.rows // 4
        for quarter in range(4):
            source = self._rows("hidden", quarter * some, some)
            task("norm", self._rows("normed", quarter * some, some), source, tensors["input_norm"])
        first = 0
        for name, count in (("q_weight", self._q_tiles), ("k_weight", self._kv_tiles), ("v_weight", self._kv_tiles)):
            for tile in range(count):
                weight = self._rows(name, tile * TILE, TILE)
                task("linear", self._item("qkv", first + tile), tensors["normed"], weight)
            first += count

    def _store(self) -> None:
        """Norm and rotation of each head; keys and values go to the cache."""
        tensors, task = self._tensors, self._recorder.task
        cos, sin = tensors["cos"], tensors["sin"]
        quarter = self._q_tiles // 4
        for group in range(4):
            task("norm_rope", self._rows("qkv", group * quarter, quarter), tensors["q_norm"], cos, sin)
        for tile in range(self._kv_tiles):
            task("norm_rope", self._item("qkv", self._q_tiles + tile), tensors["k_norm"], cos, sin)
        heads = TILE // self._shape.head_dim
        for tile in range(self._kv_tiles):
            task(
                "kv_append",
                self._rows("keys", tile * heads, heads),
                self._rows("values", tile * heads, heads),
                self._item("qkv", self._q_tiles + tile),
                self._item("qkv", self._q_tiles + self._kv_tiles + tile),
                tensors["slots"],
            )

    def _attend(self) -> None:
        """One task for each row and head of the cache, then one for each head that brings the rows together."""
        shape, recorder = self._shape, self._recorder
        width = shape.q_width // shape.kv_heads
        for row in range(shape.rows):
            for head in range(shape.kv_heads):
                first, last = head * width // TILE, ((head + 1) * width - 1) // TILE
                recorder.task(
                    "attend",
                    self._piece("partial", head * shape.rows + row, (width,)),
                    self._rows("qkv", first, last - first + 1),
                    self._item("keys", head),
                    self._item("values", head),
                    recorder.part(self._blocks, 4 * row * shape.blocks_a_row, (shape.blocks_a_row,)),
                    recorder.part(self._lengths, 4 * row, (1,)),
                    row,
                )
        for head in range(shape.kv_heads):
            recorder.task("merge", self._item("mixed", head), self._item("partial", head))

    def _mix(self) -> None:
        """Output projection, residual connection and the second norm."""
        tensors, task = self._tensors, self._recorder.task
        for tile in range(self._shape.hidden // TILE):
            weight = self._rows("o_weight", tile * TILE, TILE)
            task("linear", self._item("projected", tile), tensors["mixed"], weight)
        some = self._shape.rows // 4
        for quarter in range(4):
            hidden, normed = (self._rows(name, quarter * some, some) for name in ("hidden", "normed"))
            task("add_norm", hidden, normed, tensors["projected"], tensors["post_norm"], quarter)

    def _feed_forward(self) -> None:
        """Gate, up and down projections, and the second residual connection."""
        shape, tensors, task = self._shape, self._tensors, self._recorder.task
        wide, tile_dims = shape.intermediate // (4 * TILE), (shape.rows, 4 * TILE)
        for half, name in enumerate(("gate_weight", "up_weight")):
            for tile in range(wide):
                weight = self._rows(name, tile * 4 * TILE, 4 * TILE)
                task("linear", self._piece("gate_up", half * wide + tile, tile_dims), tensors["normed"], weight)
        for tile in range(wide):
            gate, up = (self._piece("gate_up", half * wide + tile, tile_dims) for half in range(2))
            task("swiglu", self._item("inner", tile), gate, up)
        for tile in range(shape.hidden // TILE):
            weight = self._rows("down_weight", tile * TILE, TILE)
            task("linear", self._item("projected", tile), tensors["inner"], weight)
        for half in range(2):
            task("add", self._rows("hidden", half * shape.rows // 2, shape.rows // 2), tensors["projected"], half)

    def _rows(self, name: str, first: int, count: int) -> Parameter:
        """Entries from `first` on along the first dimension."""
        tensor = self._tensors[name]
        return self._recorder.part(tensor, first * tensor.nbytes // tensor.shape[0], (count, *tensor.shape[1:]))

    def _item(self, name: str, index: int) -> Parameter:
        """One entry along the first dimension, without that dimension."""
        tensor = self._tensors[name]
        return self._recorder.part(tensor, index * tensor.nbytes // tensor.shape[0], tensor.shape[1:])

    def _piece(self, name: str, index: int, dims: tuple[int, ...]) -> Parameter:
        """Piece number `index` of the tensor cut into pieces of this shape."""
        tensor = self._tensors[name]
        return self._recorder.part(tensor, index * math.prod(dims) * tensor.dtype.itemsize, dims)
