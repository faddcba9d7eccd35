"""The decode step of a large model written out in plain loops: no recording, no replay, nothing kept between steps.

Only the places of the tensors come from `examples.large`; calls, parts of tensors and dependencies are found here anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from async_orch.graph import TensorPlace
from examples.large.layer_graph import StepInputs
from examples.large.layout import HEAD_TILES, TILE, lay_out
from examples.large.shape import Shape

__all__ = ["Call", "ObviousDecode", "closure", "conflicts"]

Bits = NDArray[np.bool_]
HEADER_NBYTES = 192
ALIGNMENT = 64


class Call(NamedTuple):
    """A kernel call: the tensors that it writes come first, then what it reads, then its numbers.

    ``origin`` is the host's task that it belongs to: itself, a layer, or the head.
    """

    kernel: str
    writes: tuple[TensorPlace, ...]
    reads: tuple[TensorPlace, ...]
    numbers: tuple[int, ...]
    origin: int

    @property
    def args(self) -> tuple[TensorPlace | int, ...]:
        """All arguments in order."""
        return (*self.writes, *self.reads, *self.numbers)


class ObviousDecode:
    """Writes the calls of one step after the other."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._layout = lay_out(shape)
        self._calls: list[Call] = []
        self._origin = 0

    def inputs(self, given: StepInputs) -> dict[str, tuple[TensorPlace, NDArray[np.int32]]]:
        """Where each input of the step lies in the image, and what it holds there."""
        found: dict[str, tuple[TensorPlace, NDArray[np.int32]]] = {}
        end = HEADER_NBYTES
        for name in ("forced", "lengths", "blocks"):
            array: NDArray[np.int32] = getattr(given, name)
            start = -(-end // ALIGNMENT) * ALIGNMENT
            found[name] = (TensorPlace("image", start, array.shape, "int32"), array)
            end = start + array.nbytes
        return found

    def calls(self, given: StepInputs) -> list[Call]:
        """Every kernel call of the step."""
        self._calls, self._origin = [], 0
        forced, lengths, blocks = (place for place, _ in self.inputs(given).values())
        tensor = self._tensor
        self._host("embed", [tensor("hidden")], [tensor("embedding"), forced, tensor("resident")])
        self._host("rope_rows", [tensor("cos"), tensor("sin")], [tensor("rope_table"), lengths])
        self._host("slot_mapping", [tensor("slots")], [blocks, lengths])
        for layer in range(self.shape.layers):
            self._attention(layer, blocks, lengths)
            self._feed_forward(layer)
            self._origin += 1
        self._host("norm", [tensor("normed")], [tensor("hidden"), tensor("final_norm")])
        for tile in range(HEAD_TILES):
            weight = self._rows("head", tile * self.shape.vocab // HEAD_TILES, self.shape.vocab // HEAD_TILES)
            self._add("linear", [self._item("logits", tile)], [tensor("normed"), weight])
        self._origin += 1
        self._host("argmax", [tensor("resident"), tensor("tokens")], [tensor("logits")])
        self._host("advance", [tensor("resident")], [forced])
        return self._calls

    def _attention(self, layer: int, blocks: TensorPlace, lengths: TensorPlace) -> None:
        shape, tensor, rows, item = self.shape, self._tensor, self._rows, self._item
        at = f"{layer}."
        for row in range(0, shape.rows, shape.rows // 4):
            source = rows("hidden", row, shape.rows // 4)
            self._add("norm", [rows("normed", row, shape.rows // 4)], [source, tensor(at + "input_norm")])
        out = 0
        for name, width in (("q_weight", shape.q_width), ("k_weight", shape.kv_width), ("v_weight", shape.kv_width)):
            for first in range(0, width, TILE):
                self._add("linear", [item("qkv", out)], [tensor("normed"), rows(at + name, first, TILE)])
                out += 1
        queries, keys = shape.q_width // TILE, shape.kv_width // TILE
        turned = [tensor("cos"), tensor("sin")]
        for first in range(0, queries, queries // 4):
            self._add("norm_rope", [rows("qkv", first, queries // 4)], [tensor(at + "q_norm"), *turned])
        for key in range(keys):
            self._add("norm_rope", [item("qkv", queries + key)], [tensor(at + "k_norm"), *turned])
        heads = TILE // shape.head_dim
        for key in range(keys):
            new = [item("qkv", queries + key), item("qkv", queries + keys + key), tensor("slots")]
            cache = [rows(at + name, key * heads, heads) for name in ("keys", "values")]
            self._add("kv_append", cache, new)
        width = shape.q_width // shape.kv_heads
        for row in range(shape.rows):
            for head in range(shape.kv_heads):
                first, end = head * width // TILE, -(-(head + 1) * width // TILE)
                partial = self._cut("partial", head * shape.rows + row, (width,))
                reads = [rows("qkv", first, end - first), item(at + "keys", head), item(at + "values", head)]
                reads += [_of(blocks, row, (shape.blocks_a_row,)), _of(lengths, row, (1,))]
                self._add("attend", [partial], reads, row)
        for head in range(shape.kv_heads):
            self._add("merge", [item("mixed", head)], [item("partial", head)])
        for first in range(0, shape.hidden, TILE):
            weight = rows(at + "o_weight", first, TILE)
            self._add("linear", [item("projected", first // TILE)], [tensor("mixed"), weight])

    def _feed_forward(self, layer: int) -> None:
        shape, tensor, rows, item = self.shape, self._tensor, self._rows, self._item
        at = f"{layer}."
        for quarter in range(4):
            changed = [rows(name, quarter * shape.rows // 4, shape.rows // 4) for name in ("hidden", "normed")]
            self._add("add_norm", changed, [tensor("projected"), tensor(at + "post_norm")], quarter)
        wide = 4 * TILE
        tiles = shape.intermediate // wide
        for half, name in enumerate(("gate_weight", "up_weight")):
            for tile in range(tiles):
                place = self._cut("gate_up", half * tiles + tile, (shape.rows, wide))
                self._add("linear", [place], [tensor("normed"), rows(at + name, tile * wide, wide)])
        for tile in range(tiles):
            pair = [self._cut("gate_up", half * tiles + tile, (shape.rows, wide)) for half in range(2)]
            self._add("swiglu", [item("inner", tile)], pair)
        for first in range(0, shape.hidden, TILE):
            weight = rows(at + "down_weight", first, TILE)
            self._add("linear", [item("projected", first // TILE)], [tensor("inner"), weight])
        for half in range(2):
            self._add("add", [rows("hidden", half * shape.rows // 2, shape.rows // 2)], [tensor("projected")], half)

    def _host(self, kernel: str, writes: Sequence[TensorPlace], reads: Sequence[TensorPlace]) -> None:
        """A call that is a task of the host's own."""
        self._add(kernel, writes, reads)
        self._origin += 1

    def _add(self, kernel: str, writes: Sequence[TensorPlace], reads: Sequence[TensorPlace], *numbers: int) -> None:
        self._calls.append(Call(kernel, tuple(writes), tuple(reads), numbers, self._origin))

    def _tensor(self, name: str) -> TensorPlace:
        region, offset, dims, dtype = self._layout.places[name]
        return TensorPlace(region, offset, dims, np.dtype(dtype).name)

    def _rows(self, name: str, first: int, count: int) -> TensorPlace:
        """Entries from `first` on along the first dimension."""
        whole = self._tensor(name)
        part = TensorPlace(whole.region, whole.offset, (count, *whole.shape[1:]), whole.dtype)
        return part._replace(offset=whole.offset + first * nbytes_of(part) // count)

    def _item(self, name: str, number: int) -> TensorPlace:
        """One entry, without the first dimension."""
        return _of(self._tensor(name), number, self._tensor(name).shape[1:])

    def _cut(self, name: str, number: int, dims: tuple[int, ...]) -> TensorPlace:
        """Piece `number` of the tensor cut into pieces of this shape."""
        return _of(self._tensor(name), number, dims)


def nbytes_of(place: TensorPlace) -> int:
    """Bytes of a tensor."""
    return math.prod(place.shape) * np.dtype(place.dtype).itemsize


def _of(whole: TensorPlace, number: int, dims: tuple[int, ...]) -> TensorPlace:
    part = whole._replace(shape=dims)
    return part._replace(offset=whole.offset + number * nbytes_of(part))


def conflicts(calls: Sequence[Call]) -> Bits:
    """Bool [calls, calls]: whether the later one (first index) touches a byte that one of the two writes."""
    accesses = [
        (number, place.region, place.offset, place.offset + nbytes_of(place), written)
        for number, call in enumerate(calls)
        for places, written in ((call.writes, True), (call.reads, False))
        for place in places
    ]
    owners, regions, starts, ends, written = (np.array(column) for column in zip(*accesses, strict=True))
    found = np.zeros((len(calls), len(calls)), np.bool_)
    for number, region, start, end, writes in accesses:
        shared = (owners < number) & (regions == region) & (starts < end) & (start < ends)
        found[number, owners[shared & (written | writes)]] = True
    return found


def closure(waits: Bits) -> Bits:
    """Everything that each call waits for, directly or through others; it waits for earlier calls only."""
    closed = waits.copy()
    for number in range(len(closed)):
        closed[number] |= closed[:number][waits[number, :number]].any(axis=0)
    return closed
