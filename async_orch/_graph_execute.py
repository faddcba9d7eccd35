"""The device side: runs a checked image's tasks, and prints one."""

from __future__ import annotations

import numpy as np

from async_orch._graph_check import CheckedGraph, RegionMemory, check_graph
from async_orch._graph_format import DTYPES, KIND_FLOAT, KIND_TENSOR, Bytes
from async_orch._graph_kernels import KernelTable

__all__ = ["execute"]


def execute(image: Bytes, regions: RegionMemory, table: KernelTable) -> None:
    """Run the task graph in `image` on the memory of `regions`, each task after those that it depends on.

    Parameters
    ----------
    image:
        The image as it lies in device memory, a uint8 array; it may be longer than the graph. Nothing is written
        to it, and nothing else is asked about the graph.
    regions:
        The memory of each region, uint8 arrays, by name or in the order in which the builder declared them.
        Names that the image does not use are ignored.
    table:
        The kernels, registered as on the host.

    Raises `ImageCorrupt`, before any kernel runs, if a field of the image is out of its bounds, and `GraphError`
    if `image` or a region is not a contiguous uint8 array. A kernel's exception passes through unchanged, with a
    note that names the task.
    """
    graph = check_graph(image, regions, table)
    arguments = _arguments(graph)
    ends = np.cumsum(graph.arg_counts)
    starts = (ends - graph.arg_counts).tolist()
    functions = [entry.function for entry in table.entries]
    calls = list(zip(graph.kernels.tolist(), starts, ends.tolist(), strict=True))
    task = -1
    try:
        for task in range(len(calls)) if graph.order is None else graph.order:
            kernel, start, end = calls[task]
            functions[kernel](*arguments[start:end])
    except Exception as error:
        if task >= 0:
            error.add_note(
                f"raised in task {task} (kernel {table.entries[calls[task][0]].name!r}) of a task graph"
            )
        raise


def _arguments(graph: CheckedGraph) -> list[object]:
    """The argument pool as numpy views and Python numbers; each view is made once for reading, once for writing."""
    operands = graph.operands
    keys = 2 * graph.args + graph.writable
    used = np.zeros(2 * operands.size, np.bool_)
    used[keys] = True
    kinds = operands["kind"].tolist()
    codes = operands["dtype"].tolist()
    regions = operands["region"].tolist()
    ndims = operands["ndim"].tolist()
    offsets = operands["offset"].tolist()
    shapes = operands["shape"].tolist()
    reals = operands["real"]
    readable = []
    for memory in graph.memory:
        view = memory.view()
        view.flags.writeable = False
        readable.append(view)
    memories = (readable, graph.memory)  # a view is read-only if the array that it is made from is
    made: list[object] = [None] * used.size
    for key in np.flatnonzero(used).tolist():
        row = key >> 1
        kind = kinds[row]
        if kind == KIND_TENSOR:
            made[key] = np.ndarray(
                shapes[row][: ndims[row]], DTYPES[codes[row]], memories[key & 1][regions[row]], offsets[row]
            )
        elif kind == KIND_FLOAT:
            made[key] = float(reals[row])
        else:
            made[key] = offsets[row]
    return [made[key] for key in keys.tolist()]
