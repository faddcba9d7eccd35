"""Where the tensors of a large model lie: regions with a size, and a place for each name."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from examples.large.shape import Shape

__all__ = ["HALF", "HEAD_TILES", "TILE", "Layout", "Place", "lay_out", "weight_shapes"]

HALF = np.uint16
"""Holds a bfloat16, which numpy does not have."""

TILE = 256
"""Outputs of one projection task; of the wider gate and up projections four times as many."""

HEAD_TILES = 128
"""Tasks of the head; they divide the vocabulary."""

Place = tuple[str, int, tuple[int, ...], npt.DTypeLike]
"""Region, byte offset, shape and dtype."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Places by name, those of layer 3 as ``3.keys``, and the bytes of each region."""

    shape: Shape
    places: dict[str, Place]
    region_nbytes: dict[str, int]

    def add(self, name: str, region: str, dims: tuple[int, ...], dtype: npt.DTypeLike = HALF) -> None:
        """Put a tensor behind the others of its region."""
        start = -(-self.region_nbytes[region] // 64) * 64
        self.places[name] = (region, start, dims, dtype)
        self.region_nbytes[region] = start + math.prod(dims) * np.dtype(dtype).itemsize


def lay_out(shape: Shape) -> Layout:
    """Give every tensor of a region its place. Activations are in tiles, so that each task's part is contiguous."""
    layout = Layout(shape, {}, {"workspace": 0, "output": 0, "weights": 0, "kv": 0, "state": 0})
    rows, wide = shape.rows, shape.intermediate // (4 * TILE)
    group = (shape.kv_heads, rows, shape.q_width // shape.kv_heads)
    activations = {
        "hidden": (rows, shape.hidden),
        "normed": (rows, shape.hidden),
        "qkv": ((shape.q_width + 2 * shape.kv_width) // TILE, rows, TILE),
        "partial": group,
        "mixed": group,
        "projected": (shape.hidden // TILE, rows, TILE),
        "gate_up": (2, wide, rows, 4 * TILE),
        "inner": (wide, rows, 4 * TILE),
        "logits": (HEAD_TILES, rows, shape.vocab // HEAD_TILES),
    }
    for name, dims in activations.items():
        layout.add(name, "workspace", dims)
    layout.add("cos", "workspace", (rows, shape.head_dim // 2), np.float32)
    layout.add("sin", "workspace", (rows, shape.head_dim // 2), np.float32)
    layout.add("slots", "workspace", (rows,), np.int32)
    layout.add("tokens", "output", (rows,), np.int32)
    layout.add("resident", "state", (rows,), np.int32)
    layout.add("embedding", "weights", (shape.vocab, shape.hidden))
    layout.add("head", "weights", (shape.vocab, shape.hidden))
    layout.add("final_norm", "weights", (shape.hidden,))
    layout.add("rope_table", "weights", (shape.capacity, shape.head_dim), np.float32)
    cache = (shape.kv_heads, rows * shape.blocks_a_row, shape.block, shape.head_dim)
    for layer in range(shape.layers):
        for name, dims in weight_shapes(shape).items():
            layout.add(f"{layer}.{name}", "weights", dims)
        layout.add(f"{layer}.keys", "kv", cache)
        layout.add(f"{layer}.values", "kv", cache)
    return layout


def weight_shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """The weights of one layer."""
    return {
        "input_norm": (shape.hidden,),
        "q_weight": (shape.q_width, shape.hidden),
        "k_weight": (shape.kv_width, shape.hidden),
        "v_weight": (shape.kv_width, shape.hidden),
        "q_norm": (shape.head_dim,),
        "k_norm": (shape.head_dim,),
        "o_weight": (shape.hidden, shape.q_width),
        "post_norm": (shape.hidden,),
        "gate_weight": (shape.intermediate, shape.hidden),
        "up_weight": (shape.intermediate, shape.hidden),
        "down_weight": (shape.hidden, shape.intermediate),
    }
