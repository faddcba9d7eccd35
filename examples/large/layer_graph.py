"""The task graph of a decode step of a large model: one decoder layer recorded, every layer a replay of it.

What is published of the workload is its size: 47 tasks on the host, of which 40 replay one Definition of 277 nodes with
26 boundary tensors (hw-native-sys/simpler #1841, #1874). How the 277 divide into kernels is not; the tiles below are
ours, chosen to give that number for Qwen3-14B at batch 16. Kernels have names, places and sizes, and do nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from async_orch.abc import ByteArray
from async_orch.graph import Definition, GraphBuilder, KernelTable, Operand, Parameter, Recorder
from examples.large.shape import Shape

__all__ = ["LayerGraph", "StepInputs", "kernel_table"]

I32 = npt.NDArray[np.int32]
HALF = np.uint16
"""Holds a bfloat16, which numpy does not have."""

TILE = 256
"""Outputs of one projection task; of the wider gate and up projections four times as many."""

HEAD_TILES = 128
"""Tasks of the head; they divide the vocabulary."""

_OUTPUTS = {
    "embed": (0,),
    "rope_rows": (0, 1),
    "slot_mapping": (0,),
    "norm": (0,),
    "linear": (0,),
    "norm_rope": (0,),
    "kv_append": (0, 1),
    "attend": (0,),
    "merge": (0,),
    "add_norm": (0, 1),
    "swiglu": (0,),
    "add": (0,),
    "argmax": (0, 1),
    "advance": (0,),
}


@dataclasses.dataclass(frozen=True, slots=True)
class StepInputs:
    """What changes from step to step: forced tokens and lengths, int32 [rows], and the block table [rows, blocks]."""

    forced: I32
    lengths: I32
    blocks: I32


def kernel_table() -> KernelTable:
    """The kernels' names and what they write; the functions take anything and do nothing."""
    table = KernelTable()
    for name, outputs in _OUTPUTS.items():
        table.add(name, _nothing, outputs=outputs, n_args=-1)
    return table


def _nothing(*arguments: object) -> None:
    pass


class LayerGraph:
    """Builds the graph of any step of a shape into an image.

    Parameters
    ----------
    shape:
        The model and the batch.
    table:
        From `kernel_table`.
    unrolled:
        Write the calls of every layer out as tasks of their own instead of replaying the Definition.
    """

    def __init__(self, shape: Shape, table: KernelTable, *, unrolled: bool = False) -> None:
        self.shape = shape
        self._unrolled = unrolled
        self._places: dict[str, tuple[str, int, tuple[int, ...], npt.DTypeLike]] = {}
        self.region_nbytes = {"workspace": 0, "output": 0, "weights": 0, "kv": 0, "state": 0}
        self._lay_out()
        self.builder = GraphBuilder(
            None,
            table,
            self.region_nbytes,
            max_tasks=400 * shape.layers + 200 if unrolled else shape.layers + 7,
            max_args=3000 * shape.layers + 1024 if unrolled else 32 * shape.layers + 64,
            max_fanin=4000 * shape.layers + 1024 if unrolled else 64 * shape.layers + 64,
            max_operands=(2000 if unrolled else 32) * shape.layers + 1024,
            infer=True,
            scratch=("workspace", "output"),
        )
        tensor = self.builder.tensor
        self._tensors = {name: tensor(*place) for name, place in self._places.items()}
        self.layer: Definition = self.builder.record("layer", self._record)
        self.head: Definition = self.builder.record("head", self._record_head)
        self._inputs = {one.name: one.position for one in self.layer.parameters if one.name in ("blocks", "lengths")}
        self._bound = [self._bindings(layer) for layer in range(shape.layers)]

    def _bindings(self, layer: int) -> list[Operand]:
        """A layer's tensors in the order of the parameters; inputs of the step are filled in by `build`."""
        known, later = self._tensors, self._tensors["tokens"]
        return [known.get(f"{layer}.{name}", known.get(name, later)) for name in self.layer.names]

    def _lay_out(self) -> None:
        """Give every tensor of a region its place."""
        shape = self.shape
        rows = shape.rows
        place = self._place
        activations = {
            "hidden": (rows, shape.hidden),
            "normed": (rows, shape.hidden),
            "qkv": (self._tiles(shape.q_width) + 2 * self._tiles(shape.kv_width), rows, TILE),
            "partial": (shape.kv_heads, rows, shape.q_width // shape.kv_heads),
            "mixed": (shape.kv_heads, rows, shape.q_width // shape.kv_heads),
            "projected": (self._tiles(shape.hidden), rows, TILE),
            "gate_up": (2, shape.intermediate // (4 * TILE), rows, 4 * TILE),
            "inner": (shape.intermediate // (4 * TILE), rows, 4 * TILE),
            "logits": (HEAD_TILES, rows, shape.vocab // HEAD_TILES),
        }
        for name, dims in activations.items():
            place(name, "workspace", dims, HALF)
        place("cos", "workspace", (rows, shape.head_dim // 2), np.float32)
        place("sin", "workspace", (rows, shape.head_dim // 2), np.float32)
        place("slots", "workspace", (rows,), np.int32)
        place("tokens", "output", (rows,), np.int32)
        place("resident", "state", (rows,), np.int32)
        place("embedding", "weights", (shape.vocab, shape.hidden), HALF)
        place("head", "weights", (shape.vocab, shape.hidden), HALF)
        place("final_norm", "weights", (shape.hidden,), HALF)
        place("rope_table", "weights", (shape.capacity, shape.head_dim), np.float32)
        cache = (shape.kv_heads, rows * shape.blocks_a_row, shape.block, shape.head_dim)
        for layer in range(shape.layers):
            for name, dims in self._weight_shapes().items():
                place(f"{layer}.{name}", "weights", dims, HALF)
            place(f"{layer}.keys", "kv", cache, HALF)
            place(f"{layer}.values", "kv", cache, HALF)

    def _weight_shapes(self) -> dict[str, tuple[int, ...]]:
        shape = self.shape
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

    def _place(self, name: str, region: str, dims: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        start = -(-self.region_nbytes[region] // 64) * 64
        self._places[name] = (region, start, dims, dtype)
        self.region_nbytes[region] = start + int(np.prod(dims, dtype=np.int64)) * np.dtype(dtype).itemsize

    @staticmethod
    def _tiles(width: int) -> int:
        return width // TILE

    def _record(self, recorder: Recorder) -> None:
        """One decoder layer: 26 boundary tensors, and for Qwen3-14B at batch 16 277 tasks."""
        shape = self.shape
        rows = shape.rows
        places = self._places

        def shared(name: str, key: str = "") -> Parameter:
            region, _, dims, dtype = places[key or name]
            return recorder.parameter(name, dims, dtype, region=region)

        hidden, normed, qkv, partial, mixed, projected, gate_up, inner = (
            shared(name) for name in ("hidden", "normed", "qkv", "partial", "mixed", "projected", "gate_up", "inner")
        )
        weights = {name: shared(name, f"0.{name}") for name in self._weight_shapes()}
        keys, values = shared("keys", "0.keys"), shared("values", "0.values")
        cos, sin, slots = shared("cos"), shared("sin"), shared("slots")
        blocks = recorder.parameter("blocks", (rows, shape.blocks_a_row), np.int32)
        lengths = recorder.parameter("lengths", (rows,), np.int32)

        q_tiles, kv_tiles = self._tiles(shape.q_width), self._tiles(shape.kv_width)
        some = rows // 4
        for quarter in range(4):
            recorder.task(
                "norm",
                _rows(recorder, normed, quarter * some, some),
                _rows(recorder, hidden, quarter * some, some),
                weights["input_norm"],
            )
        for first, count, name in (
            (0, q_tiles, "q_weight"),
            (q_tiles, kv_tiles, "k_weight"),
            (q_tiles + kv_tiles, kv_tiles, "v_weight"),
        ):
            for tile in range(count):
                weight = _rows(recorder, weights[name], tile * TILE, TILE)
                recorder.task("linear", _item(recorder, qkv, first + tile), normed, weight)
        for group in range(4):
            queries = _rows(recorder, qkv, group * (q_tiles // 4), q_tiles // 4)
            recorder.task("norm_rope", queries, weights["q_norm"], cos, sin)
        for tile in range(kv_tiles):
            recorder.task("norm_rope", _item(recorder, qkv, q_tiles + tile), weights["k_norm"], cos, sin)
        heads = TILE // shape.head_dim
        for tile in range(kv_tiles):
            recorder.task(
                "kv_append",
                _rows(recorder, keys, tile * heads, heads),
                _rows(recorder, values, tile * heads, heads),
                _item(recorder, qkv, q_tiles + tile),
                _item(recorder, qkv, q_tiles + kv_tiles + tile),
                slots,
            )
        width = shape.q_width // shape.kv_heads
        for row in range(rows):
            for head in range(shape.kv_heads):
                first, last = head * width // TILE, ((head + 1) * width - 1) // TILE
                out = recorder.part(partial, 2 * width * (head * rows + row), (width,))
                recorder.task(
                    "attend",
                    out,
                    _rows(recorder, qkv, first, last - first + 1),
                    _item(recorder, keys, head),
                    _item(recorder, values, head),
                    _item(recorder, blocks, row),
                    recorder.part(lengths, 4 * row, (1,)),
                    row,
                )
        for head in range(shape.kv_heads):
            recorder.task("merge", _item(recorder, mixed, head), _item(recorder, partial, head))
        for tile in range(self._tiles(shape.hidden)):
            weight = _rows(recorder, weights["o_weight"], tile * TILE, TILE)
            recorder.task("linear", _item(recorder, projected, tile), mixed, weight)
        for quarter in range(4):
            part = _rows(recorder, hidden, quarter * some, some)
            after = _rows(recorder, normed, quarter * some, some)
            recorder.task("add_norm", part, after, projected, weights["post_norm"], quarter)
        wide = shape.intermediate // (4 * TILE)
        for half, name in enumerate(("gate_weight", "up_weight")):
            for tile in range(wide):
                weight = _rows(recorder, weights[name], tile * 4 * TILE, 4 * TILE)
                out = _piece(recorder, gate_up, half * wide + tile, (rows, 4 * TILE))
                recorder.task("linear", out, normed, weight)
        for tile in range(wide):
            gate, up = (_piece(recorder, gate_up, half * wide + tile, (rows, 4 * TILE)) for half in range(2))
            recorder.task("swiglu", _item(recorder, inner, tile), gate, up)
        for tile in range(self._tiles(shape.hidden)):
            weight = _rows(recorder, weights["down_weight"], tile * TILE, TILE)
            recorder.task("linear", _item(recorder, projected, tile), inner, weight)
        for half in range(2):
            part = _rows(recorder, hidden, half * rows // 2, rows // 2)
            recorder.task("add", part, projected, half)

    def _record_head(self, recorder: Recorder) -> None:
        """The head in tiles, all of them on tensors that every step shares."""
        logits, head = self._places["logits"], self._places["head"]
        count, normed = self.shape.vocab // HEAD_TILES, self._tensors["normed"]
        for tile in range(HEAD_TILES):
            out_at = logits[1] + 2 * tile * self.shape.rows * count
            out = self.builder.tensor("workspace", out_at, logits[2][1:], HALF)
            weight_at = head[1] + 2 * tile * count * self.shape.hidden
            weight = self.builder.tensor("weights", weight_at, (count, self.shape.hidden), HALF)
            recorder.task("linear", out, normed, weight)

    def build(self, inputs: StepInputs, image: ByteArray) -> int:
        """Write the step's graph to `image`; returns the bytes used. Raises `GraphOverflow` if it is too small."""
        builder, tensors = self.builder, self._tensors
        task = builder.task
        builder.reset(image)
        forced, lengths, blocks = builder.put(inputs.forced), builder.put(inputs.lengths), builder.put(inputs.blocks)
        task("embed", tensors["hidden"], tensors["embedding"], forced, tensors["resident"])
        task("rope_rows", tensors["cos"], tensors["sin"], tensors["rope_table"], lengths)
        task("slot_mapping", tensors["slots"], blocks, lengths)
        layer, blocks_at, lengths_at = self.layer, self._inputs["blocks"], self._inputs["lengths"]
        add = builder.inline if self._unrolled else builder.replay
        for bound in self._bound:
            bound[blocks_at], bound[lengths_at] = blocks, lengths
            add(layer, bound)
        task("norm", tensors["normed"], tensors["hidden"], tensors["final_norm"])
        add(self.head, [])
        task("argmax", tensors["resident"], tensors["tokens"], tensors["logits"])
        task("advance", tensors["resident"], forced)
        return builder.finish()


def _rows(recorder: Recorder, parameter: Parameter, first: int, count: int) -> Parameter:
    """Entries `first` to ``first + count`` along the first dimension."""
    entry = _entry_nbytes(parameter)
    return recorder.part(parameter, first * entry, (count, *parameter.shape[1:]))


def _item(recorder: Recorder, parameter: Parameter, index: int) -> Parameter:
    """One entry along the first dimension, without that dimension."""
    return recorder.part(parameter, index * _entry_nbytes(parameter), parameter.shape[1:])


def _piece(recorder: Recorder, parameter: Parameter, index: int, shape: tuple[int, ...]) -> Parameter:
    """Piece number `index` of the parameter cut into pieces of this shape."""
    nbytes = parameter.dtype.itemsize
    for dim in shape:
        nbytes *= dim
    return recorder.part(parameter, index * nbytes, shape)


def _entry_nbytes(parameter: Parameter) -> int:
    return parameter.nbytes // parameter.shape[0]
