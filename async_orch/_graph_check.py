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
    KIND_TENSOR,
    MAX_NBYTES,
    MAX_NDIM,
    Bytes,
    Section,
    require_bytes,
)
from async_orch._graph_header import Pools
from async_orch._graph_kernels import ALL_WRITABLE, KernelTable, output_flags
from async_orch.exceptions import ImageCorrupt

__all__ = ["CheckedGraph", "RegionMemory", "check_graph", "region_memory"]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
RegionMemory = Mapping[str, Bytes] | Sequence[Bytes]
"""The regions' memory by name, or in the builder's order; without the image."""

_ITEM_NBYTES = np.array([dtype.itemsize for dtype in DTYPES], np.int64)


@dataclass(frozen=True, slots=True)
class CheckedGraph:
    """A graph whose every index is known to be good for region memories of the sizes it was checked with.

    `order` is ``None`` where the tasks may run as listed. `writable` says for each argument whether its view may be
    written.
    """

    kernels: Ints
    arg_counts: Ints
    args: Ints
    writable: Flags
    operands: NDArray[np.void]
    order: list[int] | None


def region_memory(image: Bytes, pools: Pools, regions: RegionMemory) -> list[Bytes]:
    """One array a region in the order of region ids, the image first. The array's own size is the bound."""
    names: list[bytes] = pools.regions["name"].tolist()
    if not names or names[0] != IMAGE_REGION.encode():
        raise ImageCorrupt(f"image: regions.name[0] is {names[:1]}, must be {IMAGE_REGION!r}")
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


def check_graph(pools: Pools, memory: list[Bytes], table: KernelTable) -> CheckedGraph:
    """Check every entry of the pools; `ImageCorrupt` names the field, its value and its bound."""
    expected = table.fingerprint
    if pools.table != expected:
        raise ImageCorrupt(
            f"image header: kernel table is {pools.table:#018x}, the device's is {expected:#018x}; register the same "
            "kernels in the same order on both sides"
        )
    tasks = pools.tasks
    fanin = pools.fanin.astype(np.int64)
    args = pools.args.astype(np.int64)
    operands = pools.operands
    kernels = tasks["kernel"].astype(np.int64)
    arg_counts = tasks["arg_count"].astype(np.int64)
    fanin_counts = tasks["fanin_count"].astype(np.int64)

    _refuse_if("tasks.kind", tasks["kind"] != 0, tasks["kind"], "must be 0 (a kernel call)")
    _refuse_if("tasks.flags", tasks["flags"] != 0, tasks["flags"], "must be 0")
    _refuse_if("tasks.kernel", kernels >= len(table), kernels, f"must be below {len(table)}, the kernels known")
    _check_packed("fanin", tasks["fanin_start"].astype(np.int64), fanin_counts, fanin.size)
    _check_packed("arg", tasks["arg_start"].astype(np.int64), arg_counts, args.size)
    arities, masks, _ = table.summary()
    wanted = arities[kernels]
    _refuse_if("tasks.arg_count", (wanted >= 0) & (wanted != arg_counts), arg_counts, "differs from the kernel's")
    _refuse_if("args", (args < 0) | (args >= operands.size), args, f"must lie in 0 to {operands.size - 1}")
    _check_operands(operands, memory, pools.sections[0])

    masks = masks[kernels]
    writable = output_flags(masks, arg_counts, args.size)
    refused = writable & ((operands["kind"] != KIND_TENSOR) | (operands["region"] == 0))[args]
    declared = np.repeat(masks != ALL_WRITABLE, arg_counts)
    _refuse_if("args", refused & declared, args, "is an output, so it must be a tensor outside the image")
    order = _order(fanin_counts, fanin)
    return CheckedGraph(kernels, arg_counts, args, writable & ~refused, operands, order)


def _refuse_if(field: str, bad: Flags, values: NDArray[np.generic], bound: str) -> None:
    if bad.any():
        position = int(bad.argmax())
        raise ImageCorrupt(f"image: {field}[{position}] is {values[position]}, {bound}")


def _check_packed(what: str, starts: Ints, counts: Ints, total: int) -> None:
    """Each task's range must begin where the one before ends, and the last end with the pool."""
    ends = np.cumsum(counts)  # fewer than 2**31 tasks of less than 2**32 each: no overflow
    _refuse_if(f"tasks.{what}_start", starts != ends - counts, starts, "must be where the range before ends")
    covered = int(ends[-1]) if ends.size else 0
    if covered != total:
        raise ImageCorrupt(f"image: tasks.{what}_count add up to {covered}, must be {total}, the size of the pool")


def _check_operands(operands: NDArray[np.void], memory: list[Bytes], user: Section) -> None:
    kinds, codes, regions, ndims = (operands[field] for field in ("kind", "dtype", "region", "ndim"))
    _refuse_if("operands.kind", kinds > KIND_FLOAT, kinds, f"must be at most {KIND_FLOAT}")
    _refuse_if("operands.dtype", codes >= len(DTYPES), codes, f"must be below {len(DTYPES)}")
    _refuse_if("operands.region", regions >= len(memory), regions, f"must be below {len(memory)}")
    _refuse_if("operands.ndim", ndims > MAX_NDIM, ndims, f"must be at most {MAX_NDIM}")
    padding: Flags = (operands["reserved"] != 0).max(axis=1)
    _refuse_if("operands.reserved", padding, operands["reserved"], "must be 0")
    shapes = operands["shape"]
    wrong: Flags = (shapes < 0).max(axis=1)
    _refuse_if("operands.shape", wrong, shapes, "must not be negative")
    wrong = ((np.arange(MAX_NDIM) >= ndims[:, None]) & (shapes != 1)).max(axis=1)
    _refuse_if("operands.shape", wrong, shapes, "must be 1 beyond ndim")

    tensor = kinds == KIND_TENSOR
    sizes = _ITEM_NBYTES[codes]
    extent = np.maximum(shapes, 1).prod(axis=1, dtype=np.float64) * sizes  # numpy bounds it for empty tensors too
    _refuse_if("operands.shape", extent > MAX_NBYTES, shapes, f"must not exceed {MAX_NBYTES} bytes in all")
    nbytes = shapes.prod(axis=1, dtype=np.int64) * sizes
    lowest = np.zeros(len(memory), np.int64)
    lowest[0] = user.offset
    ends = np.array([user.offset + user.n_records, *(array.size for array in memory[1:])], np.int64)
    offsets = operands["offset"]
    first = lowest[regions]
    last = ends[regions] - nbytes
    bad = tensor & ((offsets < first) | (offsets > last))
    if bad.any():
        row = int(bad.argmax())
        raise ImageCorrupt(
            f"image: operands.offset[{row}] is {offsets[row]}, must lie in {first[row]} to {last[row]} for "
            f"{nbytes[row]} bytes in region {regions[row]}"
        )
    _refuse_if("operands.offset", tensor & (offsets % sizes != 0), offsets, "must be a multiple of the item size")


def _order(fanin_counts: Ints, fanin: Ints) -> list[int] | None:
    """An order in which every task follows its producers, lowest id first; ``None`` if that is the list's own."""
    n_tasks = fanin_counts.size
    _refuse_if("fanin", (fanin < 0) | (fanin >= n_tasks), fanin, f"must lie in 0 to {n_tasks - 1}")
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
        _refuse_cycle(waiting)
    return order


def _refuse_cycle(waiting: list[int]) -> NoReturn:
    stuck = [task for task, left in enumerate(waiting) if left]
    raise ImageCorrupt(
        f"image: fanin has a cycle: {len(stuck)} of {len(waiting)} tasks can never run, the first is task {stuck[0]}"
    )
