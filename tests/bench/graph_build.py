"""What building a task graph costs: the Qwen3-14B decode step, replayed and unrolled, beside two obvious ways.

    python -m tests.bench.graph_build [--rounds 300] [--json FILE]

First what is cold, each time on fresh objects: declaring and recording, a structure's first image, which derives
dependencies, and its first check on the device side, which expands the replays; each with its second time beside it.
Then, warm: every build writes the step's image anew, with other inputs. *plain* makes the same calls as objects of a
small class, with their arguments and the tasks that they wait for; *networkx* adds them as nodes and edges to a DiGraph
(skipped where it is not installed). Neither finds dependencies or writes bytes: both get them from the unrolled image.
One thread.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from async_orch.graph import Executor, GraphBuilder, KernelTable, UnrolledTask, unroll
from examples.large.layer_graph import LayerGraph, StepInputs, kernel_table
from examples.large.shape import QWEN3_14B, Shape
from tests.bench._raw import RawFile, add_option

IMAGE_NBYTES = 4 << 20


class Node:
    """A task as an object, the obvious way."""

    __slots__ = ("after", "args", "kernel")

    def __init__(self, kernel: str, args: tuple[Any, ...], after: list[Node]) -> None:
        self.kernel = kernel
        self.args = args
        self.after = after


def inputs_of(shape: Shape, step: int) -> StepInputs:
    """Inputs that differ from step to step."""
    blocks = (np.arange(shape.rows * shape.blocks_a_row, dtype=np.int32) + step).reshape(shape.rows, -1)
    lengths = np.full(shape.rows, shape.context + step % 1000, np.int32)
    return StepInputs(np.full(shape.rows, -1, np.int32), lengths, blocks)


def plain_build(tasks: list[UnrolledTask]) -> list[Node]:
    """The graph as objects that refer to each other."""
    nodes: list[Node] = []
    for task in tasks:
        nodes.append(Node(task.kernel, task.args, [nodes[producer] for producer in task.after]))
    return nodes


def networkx_build(tasks: list[UnrolledTask]) -> object:
    """The graph in networkx."""
    import networkx as nx

    graph = nx.DiGraph()
    for number, task in enumerate(tasks):
        graph.add_node(number, kernel=task.kernel, args=task.args)
        graph.add_edges_from((producer, number) for producer in task.after)
    return graph


def call_by_call(builder: GraphBuilder, image: Any, tasks: list[UnrolledTask]) -> Callable[[], int]:
    """One `task` call for each kernel call, with the handles at hand."""
    calls = []
    for task in tasks:
        operands = [
            arg if isinstance(arg, (int, float)) else builder.tensor(arg.region, arg.offset, arg.shape, arg.dtype)
            for arg in task.args
            if isinstance(arg, (int, float)) or arg.region != "image"
        ]
        calls.append((task.kernel, operands))

    def build() -> int:
        builder.reset(image)
        add = builder.task
        for kernel, operands in calls:
            add(kernel, *operands)
        return builder.finish()

    return build


Times = dict[str, list[float]]
"""Milliseconds of each round, by ``wall`` and ``cpu``: on a machine that others use as well, the second tells more."""


def timed(times: Times, work: Callable[[], Any]) -> Any:
    """Call it, and add what it took."""
    start, start_cpu = time.perf_counter_ns(), time.thread_time_ns()
    found = work()
    end_cpu, end = time.thread_time_ns(), time.perf_counter_ns()
    times.setdefault("wall", []).append((end - start) / 1e6)
    times.setdefault("cpu", []).append((end_cpu - start_cpu) / 1e6)
    return found


def cold_parts(shape: Shape, table: KernelTable, image: Any, rounds: int) -> dict[str, Times]:
    """Milliseconds of what is done once, each round on fresh objects, and of the second time beside it."""
    inputs = [inputs_of(shape, step) for step in range(2)]
    parts: dict[str, Times] = {}
    for _ in range(rounds):
        graph: LayerGraph = timed(parts.setdefault("declare, record", {}), partial(LayerGraph, shape, table))
        content = graph.builder.place_definitions()
        check = Executor(table).check
        for step, given in enumerate(inputs):
            when = "again" if step else "first"
            nbytes = timed(parts.setdefault(f"build, {when}", {}), partial(graph.build, given, image))
            checking = partial(check, image[:nbytes], graph.region_nbytes, definitions=content)
            timed(parts.setdefault(f"check, {when}", {}), checking)
    return parts


def measured(build: Callable[[int], object], rounds: int) -> Times:
    """Times of each call after ten that warm up."""
    for step in range(10):
        build(step)
    gc.collect()
    gc.disable()
    times: Times = {}
    for step in range(rounds):
        timed(times, partial(build, step))
    gc.enable()
    return times


def show(name: str, times: Times, *, tasks: int = 0, size: int = 0) -> None:
    """One row."""
    wall = sorted(times["wall"])
    cpu = statistics.median(times["cpu"])
    each = f"{1e6 * cpu / tasks:.0f}" if tasks else "-"
    figures = f"{cpu:>9.3f}{statistics.median(wall):>9.3f}{wall[int(0.9 * len(wall))]:>9.3f}"
    print(f"{name:<28}{figures}{each:>11}{size or '-':>10}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    add_option(parser)
    options = parser.parse_args()
    rounds = options.rounds
    raw = RawFile(options.json, f"python -m tests.bench.graph_build --rounds {rounds}")
    shape = QWEN3_14B
    table = kernel_table()
    image = np.zeros(IMAGE_NBYTES, np.uint8)
    steps = [inputs_of(shape, step) for step in range(64)]
    replayed = LayerGraph(shape, table)
    replayed.builder.place_definitions()
    inlined = LayerGraph(shape, table, unrolled=True)
    nbytes = inlined.build(steps[0], image)
    tasks = unroll(image, table)
    free = KernelTable()
    for name, entry in table.by_name.items():
        free.add(name, entry.function, outputs=entry.outputs, n_args=-1)
    one_by_one = GraphBuilder(
        None, free, inlined.region_nbytes, max_tasks=len(tasks), max_fanin=1 << 20, max_args=1 << 20, infer=True
    )
    build_calls = call_by_call(one_by_one, image, tasks)
    layer = replayed.layer
    print(f"{shape.name}, {shape.rows} rows: {layer.n_tasks} tasks a layer, {len(layer.parameters)} parameters, ")
    print(f"{len(tasks)} tasks unrolled; Definition {layer.nbytes} B")
    rows: list[tuple[str, Callable[[int], object], int, int]] = [
        ("replayed", lambda step: replayed.build(steps[step % 64], image), rounds, replayed.build(steps[0], image)),
        ("unrolled, inline()", lambda step: inlined.build(steps[step % 64], image), max(rounds // 5, 5), nbytes),
        ("unrolled, task() by task()", lambda step: build_calls(), max(rounds // 10, 5), build_calls()),
        ("plain objects", lambda step: plain_build(tasks), max(rounds // 5, 5), 0),
    ]
    if importlib.util.find_spec("networkx") is not None:
        rows.append(("networkx", lambda step: networkx_build(tasks), max(rounds // 20, 5), 0))
    print("ms; cpu: of the thread; ns a task: of the cpu p50")
    print(f"{'':<28}{'cpu p50':>9}{'wall p50':>9}{'wall p90':>9}{'ns a task':>11}{'image B':>10}")
    cold = cold_parts(shape, table, image, max(rounds // 30, 5))
    for name, times in cold.items():
        show(name, times)
    raw.figures = {"tasks": len(tasks), "definition_nbytes": layer.nbytes, "cold_ms": cold, "warm_ms": {}, "nbytes": {}}
    for name, build, count, size in rows:
        times = raw.figures["warm_ms"][name] = measured(build, count)
        raw.figures["nbytes"][name] = size
        show(name, times, tasks=len(tasks), size=size)
    raw.write()


if __name__ == "__main__":
    main()
