"""The decode graph of a large model: its published size, and that an obvious builder makes the same graph."""

from __future__ import annotations

import dataclasses

import numpy as np

from async_orch.graph import UnrolledTask, unroll
from examples.large.layer_graph import LayerGraph, StepInputs, kernel_table
from examples.large.layout import HEAD_TILES
from examples.large.shape import QWEN3_14B, Shape
from tests.examples.obvious_decode import Bits, ObviousDecode, closure, conflicts

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


def waits_of(calls: list[UnrolledTask]) -> Bits:
    """Bool [calls, calls]: what each call waits for, directly or through others."""
    waits = np.zeros((len(calls), len(calls)), np.bool_)
    for number, call in enumerate(calls):
        waits[number, list(call.after)] = True
    return closure(waits)


def test_an_obvious_builder_gives_the_same_tasks_step_by_step() -> None:
    """In every step plain loops give the same calls, and the same waits: by task in a replay, by call where inlined."""
    table = kernel_table()
    obvious = ObviousDecode(SMALL)
    replayed, inlined = LayerGraph(SMALL, table), LayerGraph(SMALL, table, unrolled=True)
    definitions = replayed.builder.place_definitions()
    chance = np.random.default_rng(3)
    images = [np.full(1 << 20, 255, np.uint8) for _ in range(2)]
    for step in range(4):
        given = inputs(SMALL, step)
        given = dataclasses.replace(given, forced=chance.integers(-1, SMALL.vocab, SMALL.rows, np.int32))
        expected = obvious.calls(given)
        by_call = conflicts(expected)
        origins = np.array([call.origin for call in expected])
        tasks = np.zeros((origins[-1] + 1,) * 2, np.bool_)
        later, earlier = by_call.nonzero()
        tasks[origins[later], origins[earlier]] = True
        by_task = np.where(origins[:, None] == origins, by_call, tasks[origins[:, None], origins])
        for graph, image in zip((replayed, inlined), images, strict=True):
            graph.build(given, image)
            for place, content in obvious.inputs(given).values():
                held = image[place.offset :][: content.nbytes].view(np.int32).reshape(place.shape)
                np.testing.assert_array_equal(held, content)
            replays = graph is replayed
            calls = unroll(image, table, definitions=definitions if replays else None)
            assert [(call.kernel, call.args) for call in calls] == [(call.kernel, call.args) for call in expected]
            assert [call.origin for call in calls] == (origins.tolist() if replays else [*range(len(expected))])
            np.testing.assert_array_equal(waits_of(calls), closure(by_task if replays else by_call))
