"""The device side: runs the tasks of a checked image."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np

from async_orch._graph_check import RegionMemory, region_memory, region_names
from async_orch._graph_expand import Flat, expand, writable_args
from async_orch._graph_format import DTYPES, KIND_FLOAT, KIND_TENSOR, OPERAND, Bytes, structure_mask
from async_orch._graph_header import Pools, read_pools
from async_orch._graph_kernels import Kernel, KernelTable
from async_orch._graph_load import Loaded, load, read_definitions
from async_orch.exceptions import ImageCorrupt

__all__ = ["Executor", "execute"]

_MAX_PLANS = 16


def execute(image: Bytes, regions: RegionMemory, table: KernelTable, *, definitions: Bytes | None = None) -> None:
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
    definitions:
        The memory that holds what `GraphBuilder.place_definitions` gave, a uint8 array; needed if it was called.

    Raises `ImageCorrupt`, before any kernel runs, if a field of the image is out of its bounds, and `GraphError`
    if `image` or a region is not a contiguous uint8 array. A kernel's exception passes through, with a note that
    names the task.
    """
    Executor(table)(image, regions, definitions=definitions)


class Executor:
    """`execute` for many steps: an image that repeats a checked one byte by byte is not checked field by field again.

    Header, sizes and checksum are verified for every image, and the tasks and pools, and the bytes of every Definition
    used, compared with the kept copy; only scalars' values and the inputs in the image may differ. The last 16 shapes
    of graphs are kept. Views of device memory are made anew in every call, so that none outlives it. For use by one
    thread at a time.
    """

    def __init__(self, table: KernelTable) -> None:
        self._table = table
        self._plans: dict[tuple[object, ...], _Plan] = {}

    def __call__(self, image: Bytes, regions: RegionMemory, *, definitions: Bytes | None = None) -> None:
        """Run one image; parameters and exceptions as for `execute`."""
        pools = read_pools(image)
        memory = region_memory(image, pools, regions)
        self._plan(pools, [array.size for array in memory], definitions).run(pools.content, memory)

    def check(self, image: Bytes, region_nbytes: Mapping[str, int], *, definitions: Bytes | None = None) -> int:
        """Check an image against regions of these sizes, with all replays expanded, and run nothing.

        Gives the number of kernel calls. Raises as `execute`.
        """
        pools = read_pools(image)
        names = [name.decode("utf-8", "replace") for name in region_names(pools)]
        sizes: list[int] = pools.regions["nbytes"].tolist()
        for position, name in enumerate(names[1:], 1):
            given = region_nbytes.get(name, -1)
            if sizes[position] > given:
                raise ImageCorrupt(
                    f"image: regions.nbytes[{position}] is {sizes[position]}, must be at most {given}, the bytes of "
                    f"{name!r}"
                )
            sizes[position] = given
        return self._plan(pools, sizes, definitions).n_calls

    def _plan(self, pools: Pools, sizes: list[int], definitions: Bytes | None) -> _Plan:
        """The kept plan if the image is the graph that it was made from, else a new one."""
        key = (pools.table, len(self._table), pools.sections, *sizes[1:])
        contents = read_definitions(pools, definitions)
        plan = self._plans.pop(key, None)
        if plan is None or not plan.holds_for(pools.content, contents):
            plan = _Plan(load(pools, contents, np.array(sizes, np.int64), self._table), contents, pools, self._table)
            if len(self._plans) >= _MAX_PLANS:
                del self._plans[next(iter(self._plans))]  # the one not used for longest
        self._plans[key] = plan
        return plan


class _Where:
    """Names a call of the flat list in the words of the graph."""

    def __init__(self, loaded: Loaded, graph: Flat, kernels: list[str]) -> None:
        self._graph = graph
        self._kernels = kernels
        image = loaded.image
        self._replays = {int(task): loaded.names[image.targets[task]] for task in np.flatnonzero(image.replays)}

    def of(self, call: int) -> str:
        """Task and kernel, and the Definition if a replay made the call."""
        task = int(self._graph.origins[call])
        kernel = f"kernel {self._kernels[call]!r}"
        if task not in self._replays:
            return f"task {task} ({kernel})"
        return f"task {task} (Definition {self._replays[task]!r}, its call {self._graph.positions[call]}, {kernel})"


class _Plan:
    """A checked graph in the form in which it runs fastest, and the bytes that it was made from."""

    def __init__(self, loaded: Loaded, definitions: list[Bytes], pools: Pools, table: KernelTable) -> None:
        self._content = pools.content
        self._definitions = definitions
        self._operands_at = pools.operands_at
        self._operands_end = self._operands_at + pools.operands.nbytes
        self._fixed = np.ones(pools.content.size, np.bool_)
        self._fixed[self._operands_at : self._operands_end] = structure_mask(pools.operands)

        graph = expand(loaded)
        writable = writable_args(graph, table)
        operands = graph.operands
        scalar = operands["kind"] != KIND_TENSOR
        # One view for reading and one for writing of each tensor that is read or written, then the scalars.
        keys = np.where(scalar[graph.args], 2 * graph.args, 2 * graph.args + writable)
        used = np.flatnonzero(np.bincount(keys, minlength=1))
        is_scalar = scalar[used >> 1]
        tensors, scalars = used[~is_scalar], used[is_scalar] >> 1
        constant = graph.sources[scalars] < 0  # of a Definition; the others' values come from the image
        constants, valued = scalars[constant], scalars[~constant]
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
        floats = operands["kind"] == KIND_FLOAT
        self._constants: list[object] = [
            operands["real" if floats[row] else "offset"][row].item() for row in constants.tolist()
        ]
        self._scalars: list[tuple[int, bool]] = list(
            zip(graph.sources[valued].tolist(), floats[valued].tolist(), strict=True)
        )
        places = np.zeros(2 * operands.size, np.int64)
        places[np.concatenate((tensors, 2 * constants, 2 * valued))] = np.arange(used.size)
        self._places: list[int] = places[keys].tolist()

        ends = np.cumsum(graph.arg_counts)
        spans = [
            slice(start, end) for start, end in zip((ends - graph.arg_counts).tolist(), ends.tolist(), strict=True)
        ]
        kernels = [table.entries[kernel] for kernel in graph.kernels.tolist()]
        self._calls: list[tuple[Kernel, slice]] = [
            (kernel.function, span) for kernel, span in zip(kernels, spans, strict=True)
        ]
        self.n_calls = len(self._calls)
        self._where = _Where(loaded, graph, [kernel.name for kernel in kernels])

    def holds_for(self, content: Bytes, definitions: list[Bytes]) -> bool:
        """Whether an image with these pools and Definitions is the same graph, scalars' values apart."""
        return not ((content != self._content) & self._fixed).any() and all(
            np.array_equal(given, kept) for given, kept in zip(definitions, self._definitions, strict=True)
        )

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
            error.add_note(f"raised in {self._where.of(position)} of a task graph")
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
        made += self._constants
        if self._scalars:
            operands = content[self._operands_at : self._operands_end].view(OPERAND)
            integers, reals = operands["offset"], operands["real"]
            made += [(reals if is_float else integers)[row].item() for row, is_float in self._scalars]
        if len(self._places) > 1:
            arguments: tuple[object, ...] = itemgetter(*self._places)(made)
            return arguments
        return tuple(made[place] for place in self._places)
