"""The graph of an image as plain kernel calls, written for reading rather than for speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_check import CheckedPools, region_names
from async_orch._graph_expand import expand
from async_orch._graph_format import DTYPES, KIND_FLOAT, KIND_INT, KIND_PARAMETER, Bytes
from async_orch._graph_header import read_pools
from async_orch._graph_kernels import KernelTable
from async_orch._graph_load import Loaded, load, read_definitions

__all__ = ["TensorPlace", "UnrolledTask", "unroll"]


class TensorPlace(NamedTuple):
    """Where a contiguous tensor lies: region, byte offset in it, shape and dtype."""

    region: str
    offset: int
    shape: tuple[int, ...]
    dtype: str


class UnrolledTask(NamedTuple):
    """A kernel call.

    ``after`` are the positions of the calls that it waits for; ``origin`` is the task of the image that it comes from.
    """

    kernel: str
    args: tuple[TensorPlace | int | float, ...]
    after: frozenset[int]
    origin: int


def unroll(image: Bytes, table: KernelTable, *, definitions: Bytes | None = None) -> list[UnrolledTask]:
    """Every kernel call of the graph in `image`, replays expanded, in the order in which an `Executor` makes them.

    A replay's calls that wait for none among themselves wait for what its GRAPH task waits for; what waits for the
    GRAPH task waits for those of its calls that no other of them waits for. For tests and tools. Raises `ImageCorrupt`
    as `execute`, the sizes of the regions apart, which are taken from the image.
    """
    pools = read_pools(image)
    regions = [name.decode("utf-8", "replace") for name in region_names(pools)]
    sizes = np.array(pools.regions["nbytes"], np.int64)
    loaded = load(pools, read_definitions(pools, definitions), sizes, table)
    expand(loaded)  # refuses what would grow beyond the device's limit
    calls: list[UnrolledTask] = []
    _add(calls, loaded, table, regions, len(loaded.definitions), [], frozenset(), -1)
    return calls


def _add(
    calls: list[UnrolledTask],
    loaded: Loaded,
    table: KernelTable,
    regions: Sequence[str],
    place: int,
    bound: Sequence[TensorPlace | int | float],
    before: frozenset[int],
    origin: int,
) -> frozenset[int]:
    """Add the calls of a Definition, or of the image (the last place); gives those that come last."""
    pools = (*loaded.definitions, loaded.image)[place]
    n_tasks = pools.targets.size
    ends: dict[int, frozenset[int]] = {}
    waited_for: set[int] = set()
    for task in range(n_tasks) if pools.order is None else pools.order:
        producers = _part(pools.fanin, pools.fanin_starts, pools.fanin_counts, task)
        waited_for.update(producers)
        after = before if not producers else frozenset().union(*(ends[producer] for producer in producers))
        args = [
            _operand(pools, row, bound, regions) for row in _part(pools.args, pools.arg_starts, pools.arg_counts, task)
        ]
        target = int(pools.targets[task])
        own = task if origin < 0 else origin
        if pools.replays[task]:
            ends[task] = _add(calls, loaded, table, regions, loaded.children[place][target], args, after, own)
        else:
            ends[task] = frozenset((len(calls),))
            calls.append(UnrolledTask(table.names[target], tuple(args), after, own))
    return before.union() if not ends else frozenset().union(*(ends[t] for t in ends if t not in waited_for))


def _part(pool: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64], task: int) -> list[int]:
    part: list[int] = pool[starts[task] :][: counts[task]].tolist()
    return part


def _operand(
    pools: CheckedPools, row: int, bound: Sequence[TensorPlace | int | float], regions: Sequence[str]
) -> TensorPlace | int | float:
    record = pools.operands[row]
    kind, region = int(record["kind"]), int(record["region"])
    if kind == KIND_FLOAT:
        return float(record["real"])
    offset = int(record["offset"])
    if kind == KIND_INT:
        return offset
    name = regions[region] if kind != KIND_PARAMETER else ""
    if kind == KIND_PARAMETER:
        whole = bound[region]
        if not isinstance(whole, TensorPlace):
            return whole
        name, offset = whole.region, whole.offset + offset
    shape: list[int] = record["shape"][: int(record["ndim"])].tolist()
    return TensorPlace(name, offset, tuple(shape), str(DTYPES[int(record["dtype"])]))
