"""Inferred dependencies against the obvious rule: two tasks that touch the same byte, one of them writing it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_orch._graph_format import FANIN, TASK
from async_orch.graph import GraphBuilder, GraphError, GraphOverflow, KernelTable
from tests.graph_support import pool

Access = tuple[str, int, int, bool]
REGION_NBYTES = 24

accesses = st.builds(
    lambda region, start, length, written: (region, start, min(length, REGION_NBYTES - start), written),
    st.sampled_from(["a", "b"]),
    st.integers(0, REGION_NBYTES - 1),
    st.integers(0, 9),
    st.booleans(),
)
graphs = st.lists(st.tuples(st.lists(accesses, max_size=4), st.sets(st.integers(0, 11), max_size=2)), max_size=12)


def build(builder: GraphBuilder, tasks: list[tuple[list[Access], set[int]]]) -> list[set[int]]:
    """Build the graph of `tasks`; gives the fan-in of each as the image has it."""
    image = np.zeros(1 << 13, np.uint8)
    builder.reset(image)
    given_input = builder.put([1])
    for task, (touched, after) in enumerate(tasks):
        read = [access for access in touched if not access[3]]
        written = [access for access in touched if access[3]]
        operands = [builder.tensor(region, start, (length,), "u1") for region, start, length, _ in written + read]
        kernel = f"writes{len(written)}"
        builder.task(kernel, *operands, given_input, task, after=sorted(other for other in after if other < task))
    builder.finish()
    rows, fanin = pool(image, 2, TASK), pool(image, 3, FANIN).tolist()
    return [set(fanin[row["fanin_start"] : row["fanin_start"] + row["fanin_count"]]) for row in rows]


def make_builder() -> GraphBuilder:
    table = KernelTable()
    for count in range(5):
        table.add(f"writes{count}", lambda *a: None, outputs=range(count))
    return GraphBuilder(None, table, {"a": REGION_NBYTES, "b": REGION_NBYTES}, infer=True)


def closure(fanins: list[set[int]]) -> list[set[int]]:
    """All tasks that each task comes after, directly or not."""
    before: list[set[int]] = []
    for fanin in fanins:
        before.append(fanin.union(*(before[task] for task in fanin)))
    return before


def obvious(tasks: list[tuple[list[Access], set[int]]]) -> list[set[int]]:
    """Every earlier task with which a task shares a byte that one of them writes, and the explicit ones."""
    fanins = [{other for other in after if other < task} for task, (_, after) in enumerate(tasks)]
    for (first, (early, _)), (second, (late, _)) in combinations(enumerate(tasks), 2):
        for region, start, length, written in early:
            for other, other_start, other_length, other_written in late:
                shared = set(range(start, start + length)) & set(range(other_start, other_start + other_length))
                if region == other and shared and (written or other_written):
                    fanins[second].add(first)
    return fanins


@given(graphs)
@settings(max_examples=400, deadline=None)
def test_inferred_order_is_the_obvious_one(tasks: list[tuple[list[Access], set[int]]]) -> None:
    """What must come before each task, directly or not, is exactly what the obvious rule says; nothing is invented."""
    inferred, expected = build(make_builder(), tasks), obvious(tasks)
    assert closure(inferred) == closure(expected)
    assert all(fewer <= all_of_them for fewer, all_of_them in zip(inferred, expected, strict=True))


@given(graphs, graphs)
@settings(max_examples=200, deadline=None)
def test_the_kept_answer_serves_equal_graphs_only(
    first: list[tuple[list[Access], set[int]]], second: list[tuple[list[Access], set[int]]]
) -> None:
    """One builder that alternates between graphs gives what fresh builders give."""
    builder = make_builder()
    for tasks in (first, first, second, first):
        assert build(builder, tasks) == build(make_builder(), tasks)


def test_undeclared_outputs_are_refused() -> None:
    """Without declared outputs there is nothing to infer from, and the error names the task and the remedy."""
    table = KernelTable()
    table.add("open", lambda *a: None)
    builder = GraphBuilder(np.zeros(512, np.uint8), table, {"a": 8}, infer=True)
    builder.task("open", builder.tensor("a", 0, (8,), "u1"))
    with pytest.raises(
        GraphError, match=r"task 0 \(open\): infer=True needs outputs=\(...\) in the kernel's registration"
    ):
        builder.finish()


def test_inferred_dependencies_count_against_max_fanin() -> None:
    """Dependencies that do not fit are refused with numbers, as explicit ones are."""
    table = KernelTable()
    table.add("touch", lambda a: None, outputs=(0,))
    builder = GraphBuilder(np.zeros(1024, np.uint8), table, {"a": 8}, max_fanin=1, infer=True)
    operand = builder.tensor("a", 0, (8,), "u1")
    for _ in range(3):
        builder.task("touch", operand)
    with pytest.raises(GraphOverflow, match=r"fanin: 0 used, 1 available, 2 more requested by inferred dependencies"):
        builder.finish()


def test_the_kept_answer_does_not_serve_for_other_bytes() -> None:
    """The same calls on tensors that lie elsewhere, and no longer overlap, get dependencies of their own."""
    builder = make_builder()
    overlapping: list[list[Access]] = [[("a", 0, 4, True)], [("a", 2, 4, True)]]
    disjoint: list[list[Access]] = [[("a", 0, 4, True)], [("a", 8, 4, True)]]
    assert build(builder, [(touched, set()) for touched in overlapping]) == [set(), {0}]
    assert build(builder, [(touched, set()) for touched in disjoint]) == [set(), set()]
