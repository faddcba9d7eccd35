"""The device side's distrust: every field of an image is compared with its bound before anything uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    DTYPES,
    IMAGE_REGION,
    KIND_FLOAT,
    KIND_PARAMETER,
    KIND_TENSOR,
    MAX_NBYTES,
    MAX_NDIM,
    TASK_GRAPH,
    Bytes,
    require_bytes,
)
from async_orch._graph_header import Pools
from async_orch._graph_kernels import KernelTable
from async_orch.exceptions import ImageCorrupt

__all__ = ["CheckedPools", "RegionMemory", "check_parameters", "check_pools", "region_memory", "region_names"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
RegionMemory = Mapping[str, Bytes] | Sequence[Bytes]
"""The regions' memory by name, or in the builder's order; without the image."""

_ITEM_NBYTES = np.array([dtype.itemsize for dtype in DTYPES], np.int64)


@dataclass(frozen=True, slots=True)
class CheckedPools:
    """Pools of an image or a Definition whose every index is known to be good, bindings of replays apart.

    `targets` are kernels, or Definitions where `replays` says so; `order` is ``None`` where the tasks may run as
    listed. `parameters` is empty in an image.
    """

    what: str
    replays: Flags
    targets: Ints
    arg_starts: Ints
    arg_counts: Ints
    args: Ints
    fanin_starts: Ints
    fanin_counts: Ints
    fanin: Ints
    operands: NDArray[np.void]
    parameters: NDArray[np.void]
    order: list[int] | None


def region_memory(image: Bytes, pools: Pools, regions: RegionMemory) -> list[Bytes]:
    """One array a region in the order of region ids, the image first. The array's own size is the bound."""
    names = region_names(pools)
    if isinstance(regions, Mapping):
        given = {name.encode(): array for name, array in regions.items()}
    else:
        given = dict(zip(names[1:], regions, strict=False))
    memory = [image]
    sizes: list[int] = pools.regions["nbytes"].tolist()
    for position, (name, nbytes) in enumerate(zip(names[1:], sizes[1:], strict=True), 1):
        array = given.get(name)
        if array is None:
            raise ImageCorrupt(f"image: regions.name[{position}] is {name!r}, must be one of {sorted(given)}")
        require_bytes(array, f"region {name!r}", writable=False)
        if nbytes > array.size:
            raise ImageCorrupt(
                f"image: regions.nbytes[{position}] is {nbytes}, must be at most {array.size}, what {name!r} has"
            )
        memory.append(array)
    return memory


def region_names(pools: Pools) -> list[bytes]:
    """The regions' names; `ImageCorrupt` unless the first is the image."""
    names: list[bytes] = pools.regions["name"].tolist()
    if not names or names[0] != IMAGE_REGION.encode():
        raise ImageCorrupt(f"image: regions.name[0] is {names[:1]}, must be {IMAGE_REGION!r}")
    return names


def check_pools(
    pools: Pools,
    bounds: tuple[Ints, Ints],
    table: KernelTable,
    n_definitions: int,
    parameters: NDArray[np.void] | None = None,
) -> CheckedPools:
    """Check every entry of the pools; `ImageCorrupt` names the field, its value and its bound.

    `bounds` are the first byte of each region that a tensor may lie in, and the byte behind the last; `parameters`
    are a Definition's, which its operands may refer to.
    """
    what = pools.what
    expected = table.fingerprint
    if pools.table != expected:
        raise ImageCorrupt(
            f"{what} header: kernel table is {pools.table:#018x}, the device's is {expected:#018x}; register the same "
            "kernels in the same order on both sides"
        )
    tasks = pools.tasks
    fanin = pools.fanin.astype(np.int64)
    args = pools.args.astype(np.int64)
    operands = pools.operands
    targets = tasks["kernel"].astype(np.int64)
    arg_counts = tasks["arg_count"].astype(np.int64)
    fanin_counts = tasks["fanin_count"].astype(np.int64)
    kinds = tasks["kind"]
    replays: Flags = kinds == TASK_GRAPH

    bound = "must be 0 (a kernel call)" + (f" or {TASK_GRAPH} (a replay)" if n_definitions else "")
    refuse_if(what, "tasks.kind", kinds > (TASK_GRAPH if n_definitions else 0), kinds, bound)
    refuse_if(what, "tasks.flags", tasks["flags"] != 0, tasks["flags"], "must be 0")
    bad = ~replays & (targets >= len(table))
    refuse_if(what, "tasks.kernel", bad, targets, f"must be below {len(table)}, the kernels known")
    bad = replays & (targets >= n_definitions)
    refuse_if(what, "tasks.kernel", bad, targets, f"must be below {n_definitions}, the Definitions named")
    fanin_starts, arg_starts = tasks["fanin_start"].astype(np.int64), tasks["arg_start"].astype(np.int64)
    _check_packed(what, "fanin", fanin_starts, fanin_counts, fanin.size)
    _check_packed(what, "arg", arg_starts, arg_counts, args.size)
    if len(table):
        wanted = np.where(replays, -1, table.summary()[0][np.where(replays, 0, targets)])
        bad = (wanted >= 0) & (wanted != arg_counts)
        refuse_if(what, "tasks.arg_count", bad, arg_counts, "differs from the kernel's")
    refuse_if(what, "args", (args < 0) | (args >= operands.size), args, f"must lie in 0 to {operands.size - 1}")
    formals = operands[:0] if parameters is None else parameters
    _check_operands(what, operands, bounds, formals, KIND_FLOAT if parameters is None else KIND_PARAMETER)
    order = _order(what, fanin_counts, fanin)
    return CheckedPools(
        what,
        replays,
        targets,
        arg_starts,
        arg_counts,
        args,
        fanin_starts,
        fanin_counts,
        fanin,
        operands,
        formals,
        order,
    )


def check_parameters(what: str, parameters: NDArray[np.void]) -> None:
    """Check a Definition's parameters; `ImageCorrupt` names the field, its value and its bound."""
    _check_shapes(what, "parameters", parameters, KIND_FLOAT)
    for field in ("region", "offset"):
        refuse_if(what, f"parameters.{field}", parameters[field] != 0, parameters[field], "must be 0")


def refuse_if(what: str, field: str, bad: Flags, values: NDArray[np.generic], bound: str) -> None:
    """`ImageCorrupt` with the first of `values` that is bad, if any is."""
    if bad.any():
        position = int(bad.argmax())
        raise ImageCorrupt(f"{what}: {field}[{position}] is {values[position]}, {bound}")


def _check_packed(what: str, pool: str, starts: Ints, counts: Ints, total: int) -> None:
    """Each task's range must begin where the one before ends, and the last end with the pool."""
    ends = np.cumsum(counts)  # fewer than 2**31 tasks of less than 2**32 each: no overflow
    refuse_if(what, f"tasks.{pool}_start", starts != ends - counts, starts, "must be where the range before ends")
    covered = int(ends[-1]) if ends.size else 0
    if covered != total:
        raise ImageCorrupt(f"{what}: tasks.{pool}_count add up to {covered}, must be {total}, the size of the pool")


def _check_shapes(what: str, pool: str, records: NDArray[np.void], last_kind: int) -> None:
    kinds, codes, ndims = (records[field] for field in ("kind", "dtype", "ndim"))
    refuse_if(what, f"{pool}.kind", kinds > last_kind, kinds, f"must be at most {last_kind}")
    refuse_if(what, f"{pool}.dtype", codes >= len(DTYPES), codes, f"must be below {len(DTYPES)}")
    refuse_if(what, f"{pool}.ndim", ndims > MAX_NDIM, ndims, f"must be at most {MAX_NDIM}")
    padding: Flags = (records["reserved"] != 0).max(axis=1)
    refuse_if(what, f"{pool}.reserved", padding, records["reserved"], "must be 0")
    shapes = records["shape"]
    wrong: Flags = (shapes < 0).max(axis=1)
    refuse_if(what, f"{pool}.shape", wrong, shapes, "must not be negative")
    wrong = ((np.arange(MAX_NDIM) >= ndims[:, None]) & (shapes != 1)).max(axis=1)
    refuse_if(what, f"{pool}.shape", wrong, shapes, "must be 1 beyond ndim")
    extent = np.maximum(shapes, 1).prod(axis=1, dtype=np.float64) * _ITEM_NBYTES[codes]  # numpy bounds empty ones too
    refuse_if(what, f"{pool}.shape", extent > MAX_NBYTES, shapes, f"must not exceed {MAX_NBYTES} bytes in all")


def _check_operands(
    what: str,
    operands: NDArray[np.void],
    bounds: tuple[Ints, Ints],
    parameters: NDArray[np.void],
    last_kind: int,
) -> None:
    _check_shapes(what, "operands", operands, last_kind)
    kinds, codes = operands["kind"], operands["dtype"]
    regions, offsets = operands["region"].astype(np.int64), operands["offset"]
    formal: Flags = kinds == KIND_PARAMETER
    n_regions = bounds[0].size
    refuse_if(what, "operands.region", ~formal & (regions >= n_regions), regions, f"must be below {n_regions}")
    bad = formal & (regions >= parameters.size)
    refuse_if(what, "operands.region", bad, regions, f"must be below {parameters.size}, the parameters")

    sizes = _ITEM_NBYTES[codes]
    nbytes = operands["shape"].prod(axis=1, dtype=np.int64) * sizes
    # A parameter's part lies within the bytes of a tensor of the parameter's shape, wherever that will be.
    formal_sizes = _ITEM_NBYTES[parameters["dtype"]]
    whole = parameters["shape"].prod(axis=1, dtype=np.int64) * formal_sizes
    first = np.concatenate((bounds[0], np.zeros(parameters.size, np.int64)))
    ends = np.concatenate((bounds[1], whole))
    place = regions + formal * n_regions
    number = formal & (np.concatenate((np.zeros(n_regions, np.int64), parameters["kind"]))[place] != KIND_TENSOR)
    plain = (codes == 0) & (operands["ndim"] == 0) & (offsets == 0)
    refuse_if(what, "operands.offset", number & ~plain, offsets, "is a part of a number")
    item = np.concatenate((np.full(n_regions, MAX_NBYTES), formal_sizes))[place]
    bad = formal & ~number & (sizes > item)
    refuse_if(what, "operands.dtype", bad, codes, "has larger items than its parameter")
    tensor: Flags = ((kinds == KIND_TENSOR) | formal) & ~number
    first, last = first[place], ends[place] - nbytes
    bad = tensor & ((offsets < first) | (offsets > last))
    if bad.any():
        row = int(bad.argmax())
        where = f"{'parameter' if formal[row] else 'region'} {regions[row]}"
        raise ImageCorrupt(
            f"{what}: operands.offset[{row}] is {offsets[row]}, must lie in {first[row]} to {last[row]} for "
            f"{nbytes[row]} bytes in {where}"
        )
    bad = tensor & (offsets % sizes != 0)
    refuse_if(what, "operands.offset", bad, offsets, "must be a multiple of the item size")


def _order(what: str, fanin_counts: Ints, fanin: Ints) -> list[int] | None:
    """An order in which every task follows its producers, lowest id first; ``None`` if that is the list's own."""
    n_tasks = fanin_counts.size
    refuse_if(what, "fanin", (fanin < 0) | (fanin >= n_tasks), fanin, f"must lie in 0 to {n_tasks - 1}")
    consumers = np.repeat(np.arange(n_tasks), fanin_counts)
    if (fanin < consumers).all():
        return None
    waiting: list[int] = fanin_counts.tolist()
    followers: list[list[int]] = [[] for _ in range(n_tasks)]
    for producer, consumer in zip(fanin.tolist(), consumers.tolist(), strict=True):
        followers[producer].append(consumer)
    ready = [task for task in range(n_tasks) if not waiting[task]]
    heapify(ready)
    order: list[int] = []
    while ready:
        task = heappop(ready)
        order.append(task)
        for follower in followers[task]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, follower)
    if len(order) < n_tasks:
        _refuse_cycle(what, waiting)
    return order


def _refuse_cycle(what: str, waiting: list[int]) -> NoReturn:
    stuck = [task for task, left in enumerate(waiting) if left]
    raise ImageCorrupt(
        f"{what}: fanin has a cycle: {len(stuck)} of {len(waiting)} tasks can never run, the first is task {stuck[0]}"
    )
