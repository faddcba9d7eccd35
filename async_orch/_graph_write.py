"""Turns what a `GraphBuilder` collected into the image's bytes, one assignment a pool."""

from __future__ import annotations

from collections.abc import Mapping
from struct import pack_into
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    ARG,
    CHECKSUM_AT,
    HEADER_NBYTES,
    IMAGE_REGION,
    MAGIC,
    MAX_NBYTES,
    PACK_HEADER,
    REGION,
    REGION_NAME_NBYTES,
    SECTION_NBYTES,
    VERSION,
    Bytes,
    aligned,
    checksum,
)
from async_orch._graph_infer import DependencyInference
from async_orch._graph_kernels import KernelTable
from async_orch._graph_operands import OperandRows
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["Collected", "Declared", "Ints", "region_records", "write_image"]

Ints = NDArray[np.int64]


class Collected(NamedTuple):
    """One step's graph as flat lists; `args` are handles."""

    tasks: list[int]  # kind and flags, kernel, fanin_start, fanin_count, arg_start, arg_count of each
    args: list[int]
    fanin: list[int]
    user_end: int
    max_fanin: int


class Declared:
    """What stays from step to step: the kernels, the region pool, and the last inferred dependencies."""

    def __init__(self, table: KernelTable, regions: NDArray[np.void], infer: bool) -> None:
        self.table = table
        self.regions = regions
        self.inference = DependencyInference(table) if infer else None


def region_records(regions: Mapping[str, int]) -> NDArray[np.void]:
    """The region pool: name and size of each, the image first; `GraphError` for a name or size that cannot be."""
    records = np.zeros(len(regions) + 1, REGION)
    records["name"][0] = IMAGE_REGION.encode()
    for position, (name, nbytes) in enumerate(regions.items(), 1):
        encoded = name.encode()
        if not encoded or len(encoded) > REGION_NAME_NBYTES or b"\0" in encoded or name == IMAGE_REGION:
            raise GraphError(
                f"region name {name!r} must have 1 to {REGION_NAME_NBYTES} bytes, no NUL, and not be {IMAGE_REGION!r}"
            )
        if not 0 <= nbytes <= MAX_NBYTES:
            raise GraphError(f"region {name!r} cannot have {nbytes} bytes")
        records[position] = (encoded, nbytes)
    return records


def write_image(image: Bytes, declared: Declared, rows: OperandRows, graph: Collected) -> int:
    """Write header and pools; the inputs of `put` are in the image already. Returns the image's bytes."""
    n_tasks = len(graph.tasks) // 6
    n_args = len(graph.args)
    args, operands = rows.resolve(graph.args, lambda entry: _refuse_handle(declared, graph, entry))
    tasks, fanin = graph.tasks, graph.fanin
    if declared.inference is not None:
        tasks, fanin = declared.inference(tasks, args, operands, fanin)
        if len(fanin) > graph.max_fanin:
            raise GraphOverflow(
                f"fanin: {len(graph.fanin)} used, {graph.max_fanin} available, {len(fanin) - len(graph.fanin)} more "
                "requested by inferred dependencies; raise max_fanin"
            )

    counts = (
        graph.user_end - HEADER_NBYTES,
        len(declared.regions),
        n_tasks,
        len(fanin),
        n_args,
        operands.size,
    )
    sections: list[int] = []
    end = HEADER_NBYTES
    for count, record_nbytes in zip(counts, SECTION_NBYTES, strict=False):
        start = aligned(end)
        sections += (start, count)
        end = start + count * record_nbytes
    nbytes = aligned(end)
    if nbytes > image.size:
        raise GraphOverflow(
            f"image bytes: {graph.user_end} used by header and inputs, {image.size} available, "
            f"{nbytes - graph.user_end} more requested by {n_tasks} tasks, {len(fanin)} dependencies, {n_args} "
            f"arguments and {operands.size} operands; enlarge the slot's image"
        )
    image[graph.user_end : nbytes] = 0  # a staging buffer holds an earlier step's bytes where the pools are padded
    fingerprint = declared.table.fingerprint
    PACK_HEADER.pack_into(
        image.data, 0, MAGIC, VERSION, HEADER_NBYTES, nbytes, 0, 0, fingerprint, *sections, 0, 0, 0, 0
    )
    regions_at, tasks_at, fanin_at, args_at, operands_at = sections[2::2]
    _bytes_at(image, regions_at, declared.regions)
    pack_into(f"<{len(tasks)}I", image.data, tasks_at, *tasks)
    pack_into(f"<{len(fanin)}i", image.data, fanin_at, *fanin)
    _bytes_at(image, args_at, args.astype(ARG))
    _bytes_at(image, operands_at, operands)
    pack_into("<I", image.data, CHECKSUM_AT, checksum(image, image[regions_at:nbytes]))
    return nbytes


def _bytes_at(image: Bytes, offset: int, records: NDArray[np.generic]) -> None:
    image[offset : offset + records.nbytes] = records.view(np.uint8)


def _refuse_handle(declared: Declared, graph: Collected, entry: int) -> NoReturn:
    tasks = np.array(graph.tasks, np.int64).reshape(-1, 6)
    task = int(np.searchsorted(tasks[:, 4], entry, side="right")) - 1
    name = declared.table.names[tasks[task, 1]]
    raise GraphError(
        f"task {task} ({name}), argument {entry - int(tasks[task, 4])}: the handle is not one of this builder's, or it "
        "came from put(), reserve() or scalar() of an earlier step; ask for it again after reset()"
    )
