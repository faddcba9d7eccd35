"""Turns what a `GraphBuilder` collected into the image's bytes, with one numpy assignment a field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    ARG,
    FANIN,
    HEADER_NBYTES,
    IMAGE_REGION,
    KIND_TENSOR,
    MAGIC,
    OPERAND,
    PACK_HEADER,
    REGION,
    REGION_NAME_NBYTES,
    SECTION_NBYTES,
    TASK,
    VERSION,
    Bytes,
    aligned,
    checksum,
)
from async_orch._graph_infer import DependencyInference
from async_orch._graph_kernels import KernelTable, output_flags
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["Collected", "Declared", "Ints", "region_records", "write_image"]

Ints = NDArray[np.int64]

_CHECKSUM_FIELD = slice(24, 28)


class Collected(NamedTuple):
    """One step's graph as flat lists. Argument handles are resolved and checked in `write_image`."""

    kernels: list[int]
    n_args: list[int]
    n_fanin: list[int]
    args: list[int]
    fanin: list[int]
    n_fixed: int
    step_base: int
    n_step: int
    user_end: int
    max_fanin: int


class Declared:
    """What stays from step to step: kernels, regions, and the operand rows that handles stand for."""

    def __init__(
        self, table: KernelTable, regions: NDArray[np.void], rows: NDArray[np.void], infer: bool
    ) -> None:
        self.table = table
        self.regions = regions
        self.rows = rows
        self.used = np.zeros(len(rows), np.bool_)
        self.renumbered = np.zeros(len(rows), np.int64)
        self.inference = DependencyInference() if infer else None


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
        if not 0 <= nbytes < 1 << 52:
            raise GraphError(f"region {name!r} cannot have {nbytes} bytes")
        records[position] = (encoded, nbytes)
    return records


def write_image(image: Bytes, declared: Declared, graph: Collected) -> int:
    """Write header and pools; the inputs of `put` are in the image already. Returns the image's bytes."""
    n_tasks = len(graph.kernels)
    n_args = len(graph.args)
    kernels = np.fromiter(graph.kernels, np.int64, n_tasks)
    arg_counts = np.fromiter(graph.n_args, np.int64, n_tasks)
    _, masks, fingerprint = declared.table.summary()

    rows = _operand_rows(declared, graph, arg_counts)
    used = declared.used
    used.fill(False)
    used[rows] = True
    rows_used = np.flatnonzero(used)
    declared.renumbered[rows_used] = np.arange(rows_used.size)
    args = declared.renumbered[rows]
    operands = declared.rows[rows_used]
    outputs = output_flags(masks[kernels], arg_counts, n_args)
    refused = outputs & ((operands["kind"] != KIND_TENSOR) | (operands["region"] == 0))[args]
    if refused.any():
        refused &= (
            masks[np.repeat(kernels, arg_counts)] != -1
        )  # undeclared outputs: such views come read-only
        if refused.any():
            _refuse(
                declared.table,
                graph,
                int(refused.argmax()),
                arg_counts,
                "the kernel writes it, but it is a scalar or lies in the image, which kernels may only read",
            )

    if declared.inference is None:
        fanin_counts = np.fromiter(graph.n_fanin, np.int64, n_tasks)
        fanin = np.fromiter(graph.fanin, np.int64, len(graph.fanin))
    else:
        undeclared = masks[kernels] == -1
        if undeclared.any():
            task = int(undeclared.argmax())
            name = declared.table.names[graph.kernels[task]]
            raise GraphError(
                f"task {task} ({name}): infer=True needs outputs=(...) in the kernel's registration"
            )
        fanin_counts, fanin = declared.inference(
            arg_counts, args, outputs, operands, graph.n_fanin, graph.fanin
        )
        if fanin.size > graph.max_fanin:
            raise GraphOverflow(
                f"fanin: 0 used, {graph.max_fanin} available, {fanin.size} more requested by inferred dependencies; "
                "raise max_fanin"
            )

    counts = (
        graph.user_end - HEADER_NBYTES,
        len(declared.regions),
        n_tasks,
        fanin.size,
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
            f"{nbytes - graph.user_end} more requested by {n_tasks} tasks, {fanin.size} dependencies, {n_args} arguments "
            f"and {operands.size} operands; enlarge the slot's image"
        )
    image[graph.user_end : nbytes] = 0  # the pools' padding; a staging buffer holds an earlier step's bytes
    PACK_HEADER.pack_into(
        image, 0, MAGIC, VERSION, HEADER_NBYTES, nbytes, 0, 0, fingerprint, *sections, 0, 0, 0, 0
    )

    _pool(image, sections, 1, REGION)[...] = declared.regions
    tasks = _pool(image, sections, 2, TASK)
    tasks["kernel"] = kernels
    tasks["fanin_start"] = np.cumsum(fanin_counts) - fanin_counts
    tasks["fanin_count"] = fanin_counts
    tasks["arg_start"] = np.cumsum(arg_counts) - arg_counts
    tasks["arg_count"] = arg_counts
    _pool(image, sections, 3, FANIN)[...] = fanin
    _pool(image, sections, 4, ARG)[...] = args
    _pool(image, sections, 5, OPERAND).view(np.uint8)[...] = operands.view(np.uint8)
    image[_CHECKSUM_FIELD].view("<u4")[0] = checksum(image, sections[2], nbytes)
    return nbytes


def _pool(
    image: Bytes, sections: list[int], section: int, record: np.dtype[np.void] | np.dtype[np.int32]
) -> NDArray[np.void]:
    start, count = sections[2 * section : 2 * section + 2]
    view: NDArray[np.void] = image[start : start + count * record.itemsize].view(record)
    return view


def _operand_rows(declared: Declared, graph: Collected, arg_counts: Ints) -> Ints:
    """The operand row of each argument's handle; `GraphError` for a handle that is not one of this step's."""
    handles = np.fromiter(graph.args, np.int64, len(graph.args))
    of_step = handles - graph.step_base
    fixed = (handles >= 0) & (handles < graph.n_fixed)
    valid = fixed | ((of_step >= 0) & (of_step < graph.n_step))
    if not valid.all():
        _refuse(
            declared.table,
            graph,
            int(valid.argmin()),
            arg_counts,
            "the handle is not one of this builder's, or it "
            "came from put(), reserve() or scalar() of an earlier step; ask for it again after reset()",
        )
    return np.where(fixed, handles, len(declared.rows) - 1 - of_step)


def _refuse(table: KernelTable, graph: Collected, entry: int, arg_counts: Ints, why: str) -> NoReturn:
    """Raise `GraphError` naming the task and argument that own an entry of the argument pool."""
    ends = np.cumsum(arg_counts)
    task = int(np.searchsorted(ends, entry, side="right"))
    position = entry - int(ends[task] - arg_counts[task])
    raise GraphError(f"task {task} ({table.names[graph.kernels[task]]}), argument {position}: {why}")
