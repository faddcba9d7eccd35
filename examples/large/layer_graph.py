"""The task graph of a decode step of a large model: one decoder layer recorded, every layer a replay of it.

Kernels have names, and their tensors places and sizes; they compute nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from async_orch.abc import ByteArray
from async_orch.graph import Definition, GraphBuilder, KernelTable, Operand, Recorder
from examples.large.layer import LayerRecording
from examples.large.layout import HALF, HEAD_TILES, lay_out
from examples.large.shape import Shape

__all__ = ["LayerGraph", "StepInputs", "kernel_table"]

I32 = npt.NDArray[np.int32]

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
        self._layout = lay_out(shape)
        self.region_nbytes = self._layout.region_nbytes
        layers = shape.layers
        self.builder = GraphBuilder(
            None,
            table,
            self.region_nbytes,
            max_tasks=400 * layers + 200 if unrolled else layers + 7,
            max_args=3000 * layers + 1024 if unrolled else 32 * layers + 64,
            max_fanin=4000 * layers + 1024 if unrolled else 64 * layers + 64,
            max_operands=(2000 if unrolled else 32) * layers + 1024,
            infer=True,
            scratch=("workspace", "output"),
        )
        self._tensors = {name: self.builder.tensor(*place) for name, place in self._layout.places.items()}
        self.layer: Definition = self.builder.record("layer", self._record_layer)
        self.head: Definition = self.builder.record("head", self._record_head)
        self._inputs = {one.name: one.position for one in self.layer.parameters if one.name in ("blocks", "lengths")}
        self._bound = [self._bindings(layer) for layer in range(layers)]

    def _bindings(self, layer: int) -> list[Operand]:
        """A layer's tensors in the order of the parameters; inputs of the step are filled in by `build`."""
        known, later = self._tensors, self._tensors["tokens"]
        return [known.get(f"{layer}.{name}", known.get(name, later)) for name in self.layer.names]

    def _record_layer(self, recorder: Recorder) -> None:
        LayerRecording(recorder, self._layout).record()

    def _record_head(self, recorder: Recorder) -> None:
        """The head in tiles, all of them on tensors that every step shares."""
        _, logits_at, logits_dims, _ = self._layout.places["logits"]
        _, head_at, (vocab, hidden), _ = self._layout.places["head"]
        count = vocab // HEAD_TILES
        for tile in range(HEAD_TILES):
            out_at = logits_at + 2 * tile * self.shape.rows * count
            out = self.builder.tensor("workspace", out_at, logits_dims[1:], HALF)
            weight = self.builder.tensor("weights", head_at + 2 * tile * count * hidden, (count, hidden), HALF)
            recorder.task("linear", out, self._tensors["normed"], weight)

    def build(self, inputs: StepInputs, image: ByteArray) -> int:
        """Write the step's graph to `image`; returns the bytes used. Raises `GraphOverflow` if it is too small."""
        builder, tensors = self.builder, self._tensors
        task = builder.task
        add = builder.inline if self._unrolled else builder.replay
        builder.reset(image)
        forced, lengths, blocks = builder.put(inputs.forced), builder.put(inputs.lengths), builder.put(inputs.blocks)
        task("embed", tensors["hidden"], tensors["embedding"], forced, tensors["resident"])
        task("rope_rows", tensors["cos"], tensors["sin"], tensors["rope_table"], lengths)
        task("slot_mapping", tensors["slots"], blocks, lengths)
        layer, blocks_at, lengths_at = self.layer, self._inputs["blocks"], self._inputs["lengths"]
        for bound in self._bound:
            bound[blocks_at], bound[lengths_at] = blocks, lengths
            add(layer, bound)
        task("norm", tensors["normed"], tensors["hidden"], tensors["final_norm"])
        add(self.head, [])
        task("argmax", tensors["resident"], tensors["tokens"], tensors["logits"])
        task("advance", tensors["resident"], forced)
        return builder.finish()
