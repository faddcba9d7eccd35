"""The task graph of one decode step, written anew into each step's image."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np

from async_orch.abc import ByteArray
from async_orch.graph import GraphBuilder, KernelTable, Operand
from examples.qwen3.config import Qwen3Config
from examples.qwen3.graph_parts import (
    TASKS_A_LAYER,
    Activations,
    LayerWeights,
    ModelWeights,
    activation_shapes,
    write_layer,
)
from examples.qwen3.schedule import DecodeStep
from examples.qwen3.weights import ROPE_COS, ROPE_SIN, expected_shapes, place

__all__ = ["REGIONS", "DecodeGraph"]

REGIONS = ("workspace", "output", "weights", "kv", "state")
"""The regions of a decode graph, in the order in which the device side gets them."""

_TASKS_AROUND = 4  # embed, last norm, head, argmax
_OPERANDS_AROUND = 8  # resident tokens, output tokens, eps, and the rows, positions and prompt tokens of a step


class _Rows(NamedTuple):
    """Operands of the intermediate values of a number of active rows."""

    activations: Activations
    logits: Operand


class DecodeGraph:
    """Writes the graph of any `DecodeStep` of up to ``batch`` rows and ``capacity`` positions.

    All addresses are offsets into named regions, whose sizes `region_nbytes` gives:

    - workspace: the activations, dead after the step; as scratch, like the output, so that a read of what the step has
      not written is refused
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
        self._places, workspace_nbytes = place(self._workspace_shapes(batch))
        logits_nbytes = self._places["logits"].nbytes if keep_logits else 0
        self.region_nbytes = {
            "workspace": workspace_nbytes,
            "output": self.logits_offset + logits_nbytes if keep_logits else 4 * batch,
            "weights": weights_nbytes,
            "kv": 2 * config.num_hidden_layers * self._cache_nbytes,
            "state": 4 * batch,
        }
        self._lock = threading.Lock()
        self.max_tasks = config.num_hidden_layers * TASKS_A_LAYER + _TASKS_AROUND
        self._builder = GraphBuilder(
            None,
            table,
            self.region_nbytes,
            max_tasks=self.max_tasks,
            max_operands=len(self.weights)
            + 2 * config.num_hidden_layers
            + batch * len(self._places)
            + _OPERANDS_AROUND,
            infer=True,
            scratch=("workspace", "output"),
        )
        self._weights = ModelWeights(self._builder, config, self.weights)
        self._caches = [self._cache(number) for number in range(2 * config.num_hidden_layers)]
        self._resident = self._builder.tensor("state", 0, (batch,), np.int32)
        self._tokens = self._builder.tensor("output", 0, (batch,), np.int32)
        self._rows: dict[int, _Rows] = {}

    @property
    def logits_offset(self) -> int:
        """First byte of the logits in the output, where they are kept."""
        return -(-4 * self.batch // 64) * 64

    def _workspace_shapes(self, rows: int) -> dict[str, tuple[int, ...]]:
        return {**activation_shapes(self.config, rows), "logits": (rows, self.config.vocab_size)}

    def _cache(self, number: int) -> Operand:
        return self._builder.tensor("kv", number * self._cache_nbytes, self._cache_shape, np.float32)

    def _for_rows(self, rows: int) -> _Rows:
        """Operands for a number of active rows; made once for each number, at most ``batch`` times."""
        found = self._rows.get(rows)
        if found is None:
            operands: dict[str, Operand] = {}
            for name, shape in self._workspace_shapes(rows).items():
                region, offset = "workspace", self._places[name].offset
                if name == "logits" and self.keep_logits:
                    region, offset = "output", self.logits_offset
                operands[name] = self._builder.tensor(region, offset, shape, np.float32)
            logits = operands.pop("logits")
            found = self._rows[rows] = _Rows(Activations(**operands), logits)
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
        builder, weights = self._builder, self._weights
        task, (a, logits) = builder.task, self._for_rows(len(step.rows))
        builder.reset(image)
        eps = builder.scalar(self.config.rms_norm_eps)
        rows, positions = builder.put(step.rows), builder.put(step.positions)
        rotation = weights.cosine, weights.sine, positions
        task("embed", a.hidden, weights.embedding, builder.put(step.forced), self._resident, rows)
        for index, layer in enumerate(weights.layers):
            cache = self._caches[2 * index], self._caches[2 * index + 1]

            def attend(cache: tuple[Operand, Operand] = cache) -> None:
                task("kv_append", *cache, a.k, a.v, rows, positions)
                task("attention", a.mixed, a.q, *cache, rows, positions)

            write_layer(task, a, LayerWeights(**layer), linear="linear", eps=eps, rotation=rotation, attend=attend)
        task("rms_norm", a.normed, a.hidden, weights.final_norm, eps)
        task("linear", logits, a.normed, weights.head)
        task("argmax", self._resident, self._tokens, logits, rows)
        return builder.finish()
