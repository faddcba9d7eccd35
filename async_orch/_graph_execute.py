"""The device side: runs the tasks of a checked image."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import numpy as np

from async_orch._graph_check import CheckedGraph, RegionMemory, check_graph, region_memory
from async_orch._graph_format import DTYPES, KIND_FLOAT, KIND_TENSOR, OPERAND, Bytes, structure_mask
from async_orch._graph_header import Pools, read_pools
from async_orch._graph_kernels import Kernel, KernelTable

__all__ = ["Executor", "execute"]

_MAX_PLANS = 16


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
    if `image` or a region is not a contiguous uint8 array. A kernel's exception passes through, with a note that
    names the task.
    """
    Executor(table)(image, regions)


class Executor:
    """`execute` for many steps: an image that repeats a checked one byte by byte is not checked field by field again.

    Header, sizes and checksum are verified for every image, and the tasks and pools compared with the kept copy; only
    scalars' values and the inputs in the image may differ. The last 16 shapes of graphs are kept. Views of device
    memory are made anew in every call, so that none outlives it. For use by one thread at a time.
    """

    def __init__(self, table: KernelTable) -> None:
        self._table = table
        self._plans: dict[tuple[object, ...], _Plan] = {}

    def __call__(self, image: Bytes, regions: RegionMemory) -> None:
        """Run one image; parameters and exceptions as for `execute`."""
        pools = read_pools(image)
        memory = region_memory(image, pools, regions)
        key = (pools.table, len(self._table), pools.sections, *(array.size for array in memory[1:]))
        plan = self._plans.pop(key, None)
        if plan is None or not plan.holds_for(pools.content):
            plan = _Plan(check_graph(pools, memory, self._table), pools, self._table)
            if len(self._plans) >= _MAX_PLANS:
                del self._plans[next(iter(self._plans))]  # the one not used for longest
        self._plans[key] = plan
        plan.run(pools.content, memory)


class _Plan:
    """A checked graph in the form in which it runs fastest, and the bytes that it was made from."""

    def __init__(self, graph: CheckedGraph, pools: Pools, table: KernelTable) -> None:
        self._content = pools.content
        self._operands_at = pools.operands_at
        operands = graph.operands
        scalar = operands["kind"] != KIND_TENSOR
        self._operands_end = self._operands_at + operands.nbytes
        self._fixed = np.ones(pools.content.size, np.bool_)
        self._fixed[self._operands_at : self._operands_end] = structure_mask(operands)

        # One view for reading and one for writing of each tensor that is read or written, then the scalars.
        keys = np.where(scalar[graph.args], 2 * graph.args, 2 * graph.args + graph.writable)
        used = np.flatnonzero(np.bincount(keys, minlength=1))
        is_scalar = scalar[used >> 1]
        tensors, scalars = used[~is_scalar], used[is_scalar] >> 1
        rows = operands[tensors >> 1]
        n_regions = pools.regions.size
        self._views: list[tuple[tuple[int, ...], np.dtype[Any], int, int]] = [
            (tuple(shape[:ndim]), DTYPES[code], memory, offset)
            for shape, ndim, code, memory, offset in zip(
                rows["shape"].tolist(),
                rows["ndim"].tolist(),
                rows["dtype"].tolist(),
                (rows["region"] + (tensors & 1) * n_regions).tolist(),
                rows["offset"].tolist(),
                strict=True,
            )
        ]
        self._scalars: list[tuple[int, bool]] = [(row, operands["kind"][row] == KIND_FLOAT) for row in scalars.tolist()]
        places = np.zeros(2 * operands.size, np.int64)
        places[np.concatenate((tensors, 2 * scalars))] = np.arange(used.size)
        self._places: list[int] = places[keys].tolist()

        ends = np.cumsum(graph.arg_counts)
        spans = [
            slice(start, end) for start, end in zip((ends - graph.arg_counts).tolist(), ends.tolist(), strict=True)
        ]
        kernels = [table.entries[kernel] for kernel in graph.kernels.tolist()]
        self._order = range(len(spans)) if graph.order is None else graph.order
        self._names = [kernels[task].name for task in self._order]
        self._calls: list[tuple[Kernel, slice]] = [(kernels[task].function, spans[task]) for task in self._order]

    def holds_for(self, content: Bytes) -> bool:
        """Whether an image with these pools is the same graph, scalars' values apart."""
        return not ((content != self._content) & self._fixed).any()

    def run(self, content: Bytes, memory: list[Bytes]) -> None:
        """Call the kernels in order on views of `memory`; scalars' values come from `content`."""
        arguments = self._arguments(content, memory)
        calls = self._calls
        position = 0
        try:
            for position in range(len(calls)):
                function, span = calls[position]
                function(*arguments[span])
        except Exception as error:
            error.add_note(f"raised in task {self._order[position]} (kernel {self._names[position]!r}) of a task graph")
            raise

    def _arguments(self, content: Bytes, memory: list[Bytes]) -> tuple[object, ...]:
        """The argument pool as numpy views and Python numbers."""
        memories = [array.view() for array in memory]
        for array in memories:
            array.flags.writeable = False  # and so are the views made from it
        memories += memory
        ndarray = np.ndarray
        made: list[object] = [
            ndarray(shape, dtype, memories[index], offset) for shape, dtype, index, offset in self._views
        ]
        if self._scalars:
            operands = content[self._operands_at : self._operands_end].view(OPERAND)
            integers, reals = operands["offset"], operands["real"]
            made += [(reals if is_float else integers)[row].item() for row, is_float in self._scalars]
        if len(self._places) > 1:
            arguments: tuple[object, ...] = itemgetter(*self._places)(made)
            return arguments
        return tuple(made[place] for place in self._places)
