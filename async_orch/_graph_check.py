"""The device side's distrust: every field of an image is compared with its bound before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    ALIGNMENT,
    ARG,
    DTYPES,
    FANIN,
    HEADER,
    HEADER_NBYTES,
    IMAGE_REGION,
    KIND_FLOAT,
    KIND_TENSOR,
    MAGIC,
    MAX_NDIM,
    N_SECTIONS,
    OPERAND,
    REGION,
    SECTION_NAMES,
    SECTION_NBYTES,
    TASK,
    VERSION,
    Bytes,
    Section,
    checksum,
    require_bytes,
)
from async_orch._graph_kernels import KernelTable, output_flags
from async_orch.exceptions import ImageCorrupt

__all__ = ["CheckedGraph", "RegionMemory", "check_graph", "read_sections"]

Ints = NDArray[np.int64]
RegionMemory = Mapping[str, Bytes] | Sequence[Bytes]
"""The regions' memory by name, or in the builder's order; without the image."""

_ITEM_NBYTES = np.array([dtype.itemsize for dtype in DTYPES], np.int64)
_MAX_NBYTES = 1 << 52  # below it, products are exact in float64 and cannot overflow int64


@dataclass(frozen=True, slots=True)
class CheckedGraph:
    """A graph whose every index is known to be good.

    `memory` holds one uint8 array a region, the image first. `order` is ``None`` where the tasks may run as listed.
    `writable` says for each argument whether its view may be written.
    """

    memory: list[Bytes]
    kernels: Ints
    arg_counts: Ints
    args: Ints
    writable: NDArray[np.bool_]
    operands: NDArray[np.void]
    order: list[int] | None


def check_graph(image: Bytes, regions: RegionMemory, table: KernelTable) -> CheckedGraph:
    """Read and check a whole image; `ImageCorrupt` names the field, its value and its bound."""
    sections = read_sections(image)
    expected = table.fingerprint
    found = int(image[32:40].view("<u8")[0])
    if found != expected:
        raise ImageCorrupt(
            f"image header: kernel table fingerprint is {found:#018x}, the device's is {expected:#018x}; register the "
            "same kernels in the same order on both sides"
        )
    memory = _memory(image, _records(image, sections, 1, REGION), regions)
    tasks = _records(image, sections, 2, TASK)
    fanin = _records(image, sections, 3, FANIN).astype(np.int64)
    args = _records(image, sections, 4, ARG).astype(np.int64)
    operands = _records(image, sections, 5, OPERAND).copy()

    kernels = _column(tasks, "kernel")
    arg_counts = _column(tasks, "arg_count")
    fanin_counts = _column(tasks, "fanin_count")
    _refuse_if("tasks.kind", tasks["kind"] != 0, tasks["kind"], "must be 0 (a kernel call)")
    _refuse_if("tasks.flags", tasks["flags"] != 0, tasks["flags"], "must be 0")
    _refuse_if(
        "tasks.kernel", kernels >= len(table), kernels, f"must be below {len(table)}, the kernels known"
    )
    _check_packed("fanin", _column(tasks, "fanin_start"), fanin_counts, fanin.size)
    _check_packed("arg", _column(tasks, "arg_start"), arg_counts, args.size)
    arities, masks, _ = table.summary()
    wanted = arities[kernels]
    _refuse_if(
        "tasks.arg_count", (wanted >= 0) & (wanted != arg_counts), arg_counts, "differs from the kernel's"
    )
    _refuse_if("args", (args < 0) | (args >= operands.size), args, f"must lie in 0 to {operands.size - 1}")
    _check_operands(operands, memory, sections[0])

    read_only = ((operands["kind"] != KIND_TENSOR) | (operands["region"] == 0))[args]
    masks = masks[kernels]
    writable = output_flags(masks, arg_counts, args.size)
    refused = writable & read_only
    if refused.any():
        declared = refused & (np.repeat(masks, arg_counts) != -1)
        _refuse_if("args", declared, args, "is an output, so it must be a tensor outside the image")
        writable &= ~read_only
    order = _order(fanin_counts, fanin)
    return CheckedGraph(memory, kernels, arg_counts, args, writable, operands, order)


def read_sections(image: Bytes) -> list[Section]:
    """Check the header, the places of the pools and the checksum; gives the pools in the order of their names."""
    require_bytes(image, "image", writable=False)
    if image.size < HEADER_NBYTES:
        raise ImageCorrupt(f"image: {image.size} bytes, must be at least {HEADER_NBYTES} (the header)")
    header = image[:HEADER_NBYTES].view(HEADER)[0]
    nbytes = int(header["image_nbytes"])
    for field, value, wanted in (
        ("magic", bytes(image[:8]), MAGIC),
        ("version", int(header["version"]), VERSION),
        ("header_nbytes", int(header["header_nbytes"]), HEADER_NBYTES),
        ("flags", int(header["flags"]), 0),
        ("reserved", bytes(image[40:64]), bytes(24)),
    ):
        if value != wanted:
            raise ImageCorrupt(f"image header: {field} is {value!r}, must be {wanted!r}")
    if not HEADER_NBYTES <= nbytes <= image.size:
        raise ImageCorrupt(
            f"image header: image_nbytes is {nbytes}, must lie in {HEADER_NBYTES} to {image.size}"
        )
    sections = []
    end = HEADER_NBYTES
    for position, (name, record_nbytes) in enumerate(zip(SECTION_NAMES, SECTION_NBYTES, strict=True)):
        offset, count = (int(value) for value in header["sections"][position])
        if position >= N_SECTIONS:
            if offset or count:
                raise ImageCorrupt(f"image header: {name} is ({offset}, {count}), must be (0, 0)")
            continue
        if offset % ALIGNMENT or not end <= offset <= nbytes:
            raise ImageCorrupt(
                f"image header: {name}.offset is {offset}, must be a multiple of {ALIGNMENT} in {end} to {nbytes}"
            )
        room = (nbytes - offset) // record_nbytes
        if count > room:
            raise ImageCorrupt(f"image header: {name}.count is {count}, must be at most {room}")
        end = offset + count * record_nbytes
        sections.append(Section(offset, count))
    stored = int(header["checksum"])
    actual = checksum(image, sections[1].offset, nbytes)
    if stored != actual:
        raise ImageCorrupt(f"image header: checksum is {stored:#010x}, the bytes give {actual:#010x}")
    return sections


def _records(
    image: Bytes, sections: list[Section], index: int, record: np.dtype[np.void] | np.dtype[np.int32]
) -> NDArray[np.void]:
    offset, count = sections[index]
    view: NDArray[np.void] = image[offset : offset + count * record.itemsize].view(record)
    return view


def _column(tasks: NDArray[np.void], field: str) -> Ints:
    column: Ints = tasks[field].astype(np.int64)
    return column


def _refuse_if(field: str, bad: NDArray[np.bool_], values: NDArray[np.generic], bound: str) -> None:
    if bad.any():
        position = int(bad.argmax())
        raise ImageCorrupt(f"image: {field}[{position}] is {values[position]}, {bound}")


def _memory(image: Bytes, records: NDArray[np.void], regions: RegionMemory) -> list[Bytes]:
    """One array a region, in the order of region ids; the array's own length is the bound that holds."""
    names: list[bytes] = records["name"].tolist()
    if not names or names[0] != IMAGE_REGION.encode():
        raise ImageCorrupt(f"image: regions[0] is {names[:1]}, must be {IMAGE_REGION!r}")
    if isinstance(regions, Mapping):
        given = {name.encode(): memory for name, memory in regions.items()}
    else:
        given = dict(zip(names[1:], regions, strict=False))
    memory = [image]
    for position, (name, nbytes) in enumerate(zip(names[1:], records["nbytes"][1:].tolist(), strict=True), 1):
        array = given.get(name)
        if array is None:
            raise ImageCorrupt(f"image: regions[{position}] is {name!r}, must be one of {sorted(given)}")
        require_bytes(array, f"region {name!r}", writable=False)
        if nbytes > array.size:
            raise ImageCorrupt(
                f"image: regions[{position}].nbytes is {nbytes}, must be at most {array.size}, what {name!r} has here"
            )
        memory.append(array)
    return memory


def _check_packed(what: str, starts: Ints, counts: Ints, total: int) -> None:
    """Each task's range must begin where the one before ends, and the last end with the pool."""
    ends = np.cumsum(counts)  # at most 2**32 tasks of 2**32 each: no overflow
    _refuse_if(f"tasks.{what}_start", starts != ends - counts, starts, "must be where the range before ends")
    covered = int(ends[-1]) if ends.size else 0
    if covered != total:
        raise ImageCorrupt(
            f"image: tasks.{what}_count add up to {covered}, must be {total}, the size of the pool"
        )


def _check_operands(operands: NDArray[np.void], memory: list[Bytes], user: Section) -> None:
    kinds = operands["kind"]
    _refuse_if("operands.kind", kinds > KIND_FLOAT, kinds, f"must be at most {KIND_FLOAT}")
    codes, regions, ndims = operands["dtype"], operands["region"], operands["ndim"]
    _refuse_if("operands.dtype", codes >= len(DTYPES), codes, f"must be below {len(DTYPES)}")
    _refuse_if("operands.region", regions >= len(memory), regions, f"must be below {len(memory)}")
    _refuse_if("operands.ndim", ndims > MAX_NDIM, ndims, f"must be at most {MAX_NDIM}")
    _refuse_if("operands.reserved", operands["reserved"].any(axis=1), operands["reserved"], "must be 0")
    shapes = operands["shape"]
    _refuse_if("operands.shape", (shapes < 0).any(axis=1), shapes, "must not be negative")
    unused = np.arange(MAX_NDIM) >= ndims[:, None]
    _refuse_if("operands.shape", (unused & (shapes != 1)).any(axis=1), shapes, "must be 1 beyond ndim")

    tensor = kinds == KIND_TENSOR
    sizes = _ITEM_NBYTES[codes]
    nbytes = shapes.prod(axis=1, dtype=np.float64) * sizes
    _refuse_if(
        "operands.shape", tensor & (nbytes > _MAX_NBYTES), shapes, f"must not exceed {_MAX_NBYTES} bytes"
    )
    first = np.zeros(len(memory), np.int64)
    first[0] = user.offset
    last = np.array([user.offset + user.count, *(array.size for array in memory[1:])], np.int64)
    offsets = operands["offset"]
    lowest = first[regions]
    highest = last[regions] - nbytes.astype(np.int64)
    bad = tensor & ((offsets < lowest) | (offsets > highest))
    if bad.any():
        row = int(bad.argmax())
        raise ImageCorrupt(
            f"image: operands.offset[{row}] is {offsets[row]}, must lie in {lowest[row]} to {highest[row]} for "
            f"{int(nbytes[row])} bytes in region {regions[row]}"
        )
    _refuse_if(
        "operands.offset", tensor & (offsets % sizes != 0), offsets, "must be a multiple of the item size"
    )


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
        f"image: fanin has a cycle; {len(stuck)} of {len(waiting)} tasks can never run, the first of them task {stuck[0]}"
    )
