"""What every Qwen3 graph is made of: operands of the resident weights and of the activations, and one layer's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from async_orch.graph import GraphBuilder, Operand, Parameter
from examples.qwen3.config import Qwen3Config
from examples.qwen3.weights import EMBEDDING, FINAL_NORM, HEAD, ROPE_COS, ROPE_SIN, Placement

__all__ = [
    "TASKS_A_LAYER",
    "Activations",
    "LayerWeights",
    "ModelWeights",
    "activation_shapes",
    "layer_shapes",
    "write_layer",
]

TASKS_A_LAYER = 18

Tensor = Operand | Parameter
"""A tensor where it lies, or one that each replay of a layer binds."""


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights."""

    input_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    post_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


_NAMES = {
    "input_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "o": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def layer_shapes(placed: Mapping[str, Placement]) -> dict[str, tuple[int, ...]]:
    """Shape of each of `LayerWeights`, in order; the same in every layer."""
    return {part: placed[f"model.layers.0.{name}.weight"].shape for part, name in _NAMES.items()}


class ModelWeights:
    """Operands of everything in the region "weights": the layers, embedding, head, last norm, cosines and sines.

    ``layers`` has the parts of each layer by name, in the order of `LayerWeights`.
    """

    def __init__(self, builder: GraphBuilder, config: Qwen3Config, placed: Mapping[str, Placement]) -> None:
        def weight(name: str) -> Operand:
            return builder.tensor("weights", placed[name].offset, placed[name].shape, np.float32)

        self.layers = [
            {part: weight(f"model.layers.{index}.{name}.weight") for part, name in _NAMES.items()}
            for index in range(config.num_hidden_layers)
        ]
        self.embedding = weight(EMBEDDING)
        self.head = weight(EMBEDDING if config.tie_word_embeddings else HEAD)
        self.final_norm = weight(FINAL_NORM)
        self.cosine, self.sine = weight(ROPE_COS), weight(ROPE_SIN)


@dataclasses.dataclass(frozen=True, slots=True)
class Activations:
    """Operands of the intermediate values of `n` rows, each [n, width]."""

    hidden: Operand
    normed: Operand
    q: Operand
    k: Operand
    v: Operand
    mixed: Operand
    projected: Operand
    gate: Operand
    up: Operand
    inner: Operand


def activation_shapes(config: Qwen3Config, rows: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of each of `Activations`."""
    widths = {
        "hidden": config.hidden_size,
        "normed": config.hidden_size,
        "q": config.q_size,
        "k": config.kv_size,
        "v": config.kv_size,
        "mixed": config.q_size,
        "projected": config.hidden_size,
        "gate": config.intermediate_size,
        "up": config.intermediate_size,
        "inner": config.intermediate_size,
    }
    return {name: (rows, width) for name, width in widths.items()}


def write_layer(
    task: Callable[..., int],
    a: Activations,
    w: LayerWeights,
    *,
    linear: str,
    eps: Operand | float,
    rotation: tuple[Tensor, Tensor, Tensor],
    attend: Callable[[], None],
) -> None:
    """The tasks of one layer, from ``a.hidden`` to ``a.hidden``.

    ``task`` is a builder's, or a recorder's. ``linear`` names the kernel of the matrix products; ``rotation`` is
    cosines, sines and positions; ``attend`` adds the tasks that store ``a.k`` and ``a.v`` in the cache and read it,
    from ``a.q`` to ``a.mixed``.
    """
    task("rms_norm", a.normed, a.hidden, w.input_norm, eps)
    task(linear, a.q, a.normed, w.q)
    task(linear, a.k, a.normed, w.k)
    task(linear, a.v, a.normed, w.v)
    task("rms_norm", a.q, a.q, w.q_norm, eps)
    task("rms_norm", a.k, a.k, w.k_norm, eps)
    task("rope", a.q, *rotation)
    task("rope", a.k, *rotation)
    attend()
    task(linear, a.projected, a.mixed, w.o)
    task("add", a.hidden, a.projected)
    task("rms_norm", a.normed, a.hidden, w.post_norm, eps)
    task(linear, a.gate, a.normed, w.gate)
    task(linear, a.up, a.normed, w.up)
    task("swiglu", a.inner, a.gate, a.up)
    task(linear, a.projected, a.inner, w.down)
    task("add", a.hidden, a.projected)
