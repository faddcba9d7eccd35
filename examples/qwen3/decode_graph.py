"""The task graph of one decode step, written anew into each step's image."""

from __future__ import annotations

import dataclasses
import math
import threading

import numpy as np

from async_orch.abc import ByteArray
from async_orch.graph import GraphBuilder, KernelTable, Operand
from examples.qwen3.config import Qwen3Config
from examples.qwen3.schedule import DecodeStep
from examples.qwen3.weights import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    ROPE_COS,
    ROPE_SIN,
    expected_shapes,
    place,
)

__all__ = ["REGIONS", "DecodeGraph"]

REGIONS = ("workspace", "output", "weights", "kv", "state")
"""The regions of a decode graph, in the order in which the device side gets them."""

_TASKS_A_LAYER = 18
_TASKS_AROUND = 4  # embed, last norm, head, argmax
_OPERANDS_AROUND = 8  # resident tokens, output tokens, eps, and the rows, positions and prompt tokens of a step


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """Operands of one layer's weights and of its part of the key-value cache."""

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
    keys: Operand
    values: Operand


@dataclasses.dataclass(frozen=True, slots=True)
class _Activations:
    """Operands of the intermediate values of `n` active rows."""

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
    logits: Operand


class DecodeGraph:
    """Writes the graph of any `DecodeStep` of up to ``batch`` rows and ``capacity`` positions.

    All addresses are offsets into named regions, whose sizes `region_nbytes` gives:

    - workspace: the activations, dead after the step
    - output: int32 [batch] tokens (-1 for rows that are not active), then with ``keep_logits`` float32
      [n, vocab] logits of the active rows
    - weights: the checkpoint's tensors and the rotary tables, at `weights`
    - kv: float32 [layers, 2, batch, kv_heads, capacity, head_dim]
    - state: int32 [batch], each row's newest token

    One builder serves all steps, so builds on several threads take turns.
    """

    def __init__(
        self, config: Qwen3Config, table: KernelTable, *, batch: int, capacity: int, keep_logits: bool = False
    ) -> None:
        self.config = config
        self.batch = batch
        self.capacity = capacity
        self.keep_logits = keep_logits
        rope = (capacity, config.head_dim // 2)
        self.weights, weights_nbytes = place({**expected_shapes(config), ROPE_COS: rope, ROPE_SIN: rope})
        self._cache_shape = (batch, config.num_key_value_heads, capacity, config.head_dim)
        self._cache_nbytes = 4 * math.prod(self._cache_shape)
        self._activation_places, workspace_nbytes = place(self._activation_shapes(batch))
        logits_nbytes = self._activation_places["logits"].nbytes if keep_logits else 0
        self.region_nbytes = {
            "workspace": workspace_nbytes,
            "output": self.logits_offset + logits_nbytes if keep_logits else 4 * batch,
            "weights": weights_nbytes,
            "kv": 2 * config.num_hidden_layers * self._cache_nbytes,
            "state": 4 * batch,
        }
        self._lock = threading.Lock()
        self.max_tasks = config.num_hidden_layers * _TASKS_A_LAYER + _TASKS_AROUND
        self._builder = GraphBuilder(
            None,
            table,
            self.region_nbytes,
            max_tasks=self.max_tasks,
            max_operands=len(self.weights)
            + 2 * config.num_hidden_layers
            + batch * len(dataclasses.fields(_Activations))
            + _OPERANDS_AROUND,
            infer=True,
        )
        self._layers = [self._layer(index) for index in range(config.num_hidden_layers)]
        self._embedding = self._weight(EMBEDDING)
        self._head = self._weight(EMBEDDING if config.tie_word_embeddings else HEAD)
        self._final_norm = self._weight(FINAL_NORM)
        self._rope = (self._weight(ROPE_COS), self._weight(ROPE_SIN))
        self._resident = self._builder.tensor("state", 0, (batch,), np.int32)
        self._tokens = self._builder.tensor("output", 0, (batch,), np.int32)
        self._activations: dict[int, _Activations] = {}

    @property
    def logits_offset(self) -> int:
        """First byte of the logits in the output, where they are kept."""
        return -(-4 * self.batch // 64) * 64

    def _activation_shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        config = self.config
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
            "logits": config.vocab_size,
        }
        return {name: (rows, width) for name, width in widths.items()}

    def _weight(self, name: str) -> Operand:
        spot = self.weights[name]
        return self._builder.tensor("weights", spot.offset, spot.shape, np.float32)

    def _layer(self, index: int) -> _Layer:
        prefix = f"model.layers.{index}."
        return _Layer(
            input_norm=self._weight(f"{prefix}input_layernorm.weight"),
            q=self._weight(f"{prefix}self_attn.q_proj.weight"),
            k=self._weight(f"{prefix}self_attn.k_proj.weight"),
            v=self._weight(f"{prefix}self_attn.v_proj.weight"),
            q_norm=self._weight(f"{prefix}self_attn.q_norm.weight"),
            k_norm=self._weight(f"{prefix}self_attn.k_norm.weight"),
            o=self._weight(f"{prefix}self_attn.o_proj.weight"),
            post_norm=self._weight(f"{prefix}post_attention_layernorm.weight"),
            gate=self._weight(f"{prefix}mlp.gate_proj.weight"),
            up=self._weight(f"{prefix}mlp.up_proj.weight"),
            down=self._weight(f"{prefix}mlp.down_proj.weight"),
            keys=self._cache(2 * index),
            values=self._cache(2 * index + 1),
        )

    def _cache(self, number: int) -> Operand:
        return self._builder.tensor("kv", number * self._cache_nbytes, self._cache_shape, np.float32)

    def _for_rows(self, rows: int) -> _Activations:
        """Operands for a number of active rows; made once for each number, at most ``batch`` times."""
        found = self._activations.get(rows)
        if found is None:
            operands: dict[str, Operand] = {}
            for name, shape in self._activation_shapes(rows).items():
                region, offset = "workspace", self._activation_places[name].offset
                if name == "logits" and self.keep_logits:
                    region, offset = "output", self.logits_offset
                operands[name] = self._builder.tensor(region, offset, shape, np.float32)
            found = self._activations[rows] = _Activations(**operands)
        return found

    def build(self, step: DecodeStep, image: ByteArray) -> int:
        """Write the step's graph to ``image``; returns the bytes used.

        Raises `GraphOverflow` if the image is too small, and `ValueError` for a step that the program was not
        made for.
        """
        count = len(step.rows)
        if not 1 <= count <= self.batch or int(step.positions.max()) >= self.capacity:
            raise ValueError(
                f"step of {count} rows up to position {int(step.positions.max(initial=0))} for a program of "
                f"{self.batch} rows and {self.capacity} positions"
            )
        with self._lock:
            return self._write(step, image)

    def _write(self, step: DecodeStep, image: ByteArray) -> int:
        builder = self._builder
        task, a = builder.task, self._for_rows(len(step.rows))
        cosine, sine = self._rope
        builder.reset(image)
        eps = builder.scalar(self.config.rms_norm_eps)
        rows, positions = builder.put(step.rows), builder.put(step.positions)
        task("embed", a.hidden, self._embedding, builder.put(step.forced), self._resident, rows)
        for layer in self._layers:
            task("rms_norm", a.normed, a.hidden, layer.input_norm, eps)
            task("linear", a.q, a.normed, layer.q)
            task("linear", a.k, a.normed, layer.k)
            task("linear", a.v, a.normed, layer.v)
            task("rms_norm", a.q, a.q, layer.q_norm, eps)
            task("rms_norm", a.k, a.k, layer.k_norm, eps)
            task("rope", a.q, cosine, sine, positions)
            task("rope", a.k, cosine, sine, positions)
            task("kv_append", layer.keys, layer.values, a.k, a.v, rows, positions)
            task("attention", a.mixed, a.q, layer.keys, layer.values, rows, positions)
            task("linear", a.projected, a.mixed, layer.o)
            task("add", a.hidden, a.projected)
            task("rms_norm", a.normed, a.hidden, layer.post_norm, eps)
            task("linear", a.gate, a.normed, layer.gate)
            task("linear", a.up, a.normed, layer.up)
            task("swiglu", a.inner, a.gate, a.up)
            task("linear", a.projected, a.inner, layer.down)
            task("add", a.hidden, a.projected)
        task("rms_norm", a.normed, a.hidden, self._final_norm, eps)
        task("linear", a.logits, a.normed, self._head)
        task("argmax", self._resident, self._tokens, a.logits, rows)
        return builder.finish()
