"""The decode graph of a large model: its published size, and that replayed and written out it is the same graph."""

from __future__ import annotations

import dataclasses

import numpy as np

from async_orch.graph import unroll
from examples.large.layer_graph import LayerGraph, StepInputs, kernel_table
from examples.large.layout import HEAD_TILES
from examples.large.shape import QWEN3_14B, Shape

SMALL = dataclasses.replace(QWEN3_14B, layers=3, vocab=512, capacity=64, context=32)


def inputs(shape: Shape, step: int) -> StepInputs:
    blocks = np.arange(shape.rows * shape.blocks_a_row, dtype=np.int32).reshape(shape.rows, -1) + step
    return StepInputs(np.full(shape.rows, -1, np.int32), np.full(shape.rows, shape.context + step, np.int32), blocks)


def test_the_layer_has_the_published_size() -> None:
    """One Definition of 277 tasks with 26 parameters, and 47 tasks on the host for 40 layers."""
    graph = LayerGraph(QWEN3_14B, kernel_table())
    assert (graph.layer.n_tasks, len(graph.layer.parameters)) == (277, 26)
    graph.build(inputs(QWEN3_14B, 0), np.zeros(1 << 20, np.uint8))
    assert graph.builder.n_tasks == 47


def test_replayed_and_written_out_it_is_the_same_graph() -> None:
    """In every step the replays unroll to the calls that `inline` writes, and keep all of their dependencies."""
    table = kernel_table()
    replayed, inlined = LayerGraph(SMALL, table), LayerGraph(SMALL, table, unrolled=True)
    definitions = replayed.builder.place_definitions()
    images = [np.zeros(1 << 20, np.uint8) for _ in range(2)]
    for step in range(3):
        given = inputs(SMALL, step)
        used = [graph.build(given, image) for graph, image in zip((replayed, inlined), images, strict=True)]
        ours = unroll(images[0], table, definitions=definitions)
        plain = unroll(images[1], table)
        assert [call[:2] for call in ours] == [call[:2] for call in plain]
        assert len(ours) == 3 * 277 + 6 + HEAD_TILES
        before: list[set[int]] = []
        for call in ours:
            before.append(set(call.after).union(*(before[producer] for producer in call.after)))
        assert all(call.after <= before[position] for position, call in enumerate(plain))
        assert used[0] < used[1] / 10
        shared = images[0][192 : 192 + 4 * SMALL.rows].view(np.int32)
        assert shared.tolist() == given.forced.tolist()
