"""What every Qwen3 graph is made of: operands of the resident weights and of the activations, and one layer's tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from async_orch.graph import GraphBuilder, Operand
from examples.qwen3.config import Qwen3Config
from examples.qwen3.weights import EMBEDDING, FINAL_NORM, HEAD, ROPE_COS, ROPE_SIN, Placement

__all__ = ["TASKS_A_LAYER", "Activations", "LayerWeights", "ModelWeights", "activation_shapes", "write_layer"]

TASKS_A_LAYER = 18


@dataclasses.dataclass(frozen=True, slots=True)
class LayerWeights:
    """Operands of one layer's weights."""

    input_norm: Operand
    q: Operand
    k: Operand
    v: Operand
    q_norm: Operand
    k_norm: Operand
    o: Operand
    post_norm: Operand
    gate: Operand
    up: Operand
    down: Operand


class ModelWeights:
    """Operands of everything in the region "weights": the layers, embedding, head, last norm, cosines and sines."""

    def __init__(self, builder: GraphBuilder, config: Qwen3Config, placed: Mapping[str, Placement]) -> None:
        def weight(name: str) -> Operand:
            return builder.tensor("weights", placed[name].offset, placed[name].shape, np.float32)

        def layer(index: int) -> LayerWeights:
            attention, mlp = f"model.layers.{index}.self_attn", f"model.layers.{index}.mlp"
            return LayerWeights(
                input_norm=weight(f"model.layers.{index}.input_layernorm.weight"),
                q=weight(f"{attention}.q_proj.weight"),
                k=weight(f"{attention}.k_proj.weight"),
                v=weight(f"{attention}.v_proj.weight"),
                q_norm=weight(f"{attention}.q_norm.weight"),
                k_norm=weight(f"{attention}.k_norm.weight"),
                o=weight(f"{attention}.o_proj.weight"),
                post_norm=weight(f"model.layers.{index}.post_attention_layernorm.weight"),
                gate=weight(f"{mlp}.gate_proj.weight"),
                up=weight(f"{mlp}.up_proj.weight"),
                down=weight(f"{mlp}.down_proj.weight"),
            )

        self.layers = [layer(index) for index in range(config.num_hidden_layers)]
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
    builder: GraphBuilder,
    a: Activations,
    weights: LayerWeights,
    *,
    linear: str,
    eps: Operand,
    rotation: tuple[Operand, Operand, Operand],
    attend: Callable[[], None],
) -> None:
    """The tasks of one layer, from ``a.hidden`` to ``a.hidden``.

    ``linear`` names the kernel of the matrix products; ``rotation`` is cosines, sines and positions; ``attend`` adds
    the tasks that store ``a.k`` and ``a.v`` in the cache and read it, from ``a.q`` to ``a.mixed``.
    """
    task, w = builder.task, weights
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
