"""Turns what was collected into bytes - an image's or a Definition's - with one assignment a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import pack, pack_into
from typing import NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_definition import DefinitionSet
from async_orch._graph_dependencies import DependencyInference, Words
from async_orch._graph_format import (
    ARG,
    CHECKSUM_AT,
    DEFINITION,
    HEADER_NBYTES,
    IMAGE_REGION,
    MAGIC,
    MAX_EXPANDED,
    MAX_NBYTES,
    N_SECTIONS,
    PACK_HEADER,
    REGION,
    REGION_NAME_NBYTES,
    SECTION_NBYTES,
    TASK_GRAPH,
    VERSION,
    WHERE_CARRIED,
    WHERE_RESIDENT,
    Bytes,
    aligned,
    checksum,
)
from async_orch._graph_kernels import KernelTable
from async_orch._graph_operands import OperandRows
from async_orch._graph_tasks import TaskPools
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["Declared", "Ints", "lay_out", "region_records", "seal", "words", "write_image"]

Ints = NDArray[np.int64]


class Declared:
    """What stays from step to step: kernels, regions, Definitions, and the last inferred dependencies."""

    def __init__(
        self,
        table: KernelTable,
        regions: Mapping[str, int],
        definitions: DefinitionSet,
        *,
        infer: bool,
        scratch: frozenset[str],
    ) -> None:
        self.table = table
        self.regions = region_records(regions)
        self.definitions = definitions
        if unknown := scratch - set(regions):
            raise GraphError(f"scratch names unknown regions {sorted(unknown)}; declared: {', '.join(regions)}")
        if scratch and not infer:
            raise GraphError("scratch needs infer=True: reads and writes are known only where they are derived")
        self.scratch = scratch
        self.inference = DependencyInference(table, (IMAGE_REGION, *regions), scratch) if infer else None


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


def words(numbers: list[int], columns: int) -> Words:
    """The numbers as rows of unsigned 32-bit words; struct packs a list in half of numpy's time."""
    return np.frombuffer(pack(f"<{len(numbers)}I", *numbers), np.uint32).reshape(-1, columns)


def lay_out(user_end: int, counts: Sequence[int], record_nbytes: Sequence[int]) -> tuple[list[int], int]:
    """Offset and count of each pool behind the user area, in one list, and the bytes of the whole.

    The last two pools are (0, 0) where both are empty, as in a graph without Definitions.
    """
    places: list[int] = [HEADER_NBYTES, user_end - HEADER_NBYTES]
    end = user_end
    n_pools = len(counts) if any(counts[N_SECTIONS - 1 :]) else N_SECTIONS - 1
    for count, nbytes in zip(counts[:n_pools], record_nbytes[:n_pools], strict=True):
        start = aligned(end)
        places += (start, count)
        end = start + count * nbytes
    return places + [0] * (2 * len(SECTION_NBYTES) - len(places)), aligned(end)


def seal(target: Bytes, magic: bytes, table: KernelTable, places: list[int], nbytes: int) -> None:
    """Write the header; every other byte is in place."""
    PACK_HEADER.pack_into(target.data, 0, magic, VERSION, HEADER_NBYTES, nbytes, 0, 0, table.fingerprint, *places)
    pack_into("<I", target.data, CHECKSUM_AT, checksum(target, target[places[2] : nbytes]))


def write_image(image: Bytes, declared: Declared, rows: OperandRows, graph: TaskPools) -> int:
    """Write header and pools; the inputs of `put` are in the image already. Returns the image's bytes."""
    tasks = cast("Words", graph.tasks.array()).reshape(-1, 6)
    handles = cast("Ints", graph.args.array())
    args, operands = rows.resolve(handles, lambda entry: _refuse_handle(declared, tasks, entry))
    explicit = cast("NDArray[np.int32]", graph.fanin.array())
    fanin = explicit
    if declared.inference is not None:
        tasks, fanin = declared.inference(tasks, args, operands, explicit, declared.definitions.items)
        if len(fanin) > graph.max_fanin:
            raise GraphOverflow(
                f"fanin: {len(explicit)} used, {graph.max_fanin} available, {len(fanin) - len(explicit)} more "
                "requested by inferred dependencies; raise max_fanin"
            )
    n_own = len(tasks) + len(args) + operands.size
    if graph.replayed and n_own + graph.n_expanded > MAX_EXPANDED:
        raise GraphOverflow(
            f"expanded records: {n_own} used by the graph, {MAX_EXPANDED} available, {graph.n_expanded} more requested "
            "by the tasks, arguments and operands of its replays; split the graph"
        )
    used = declared.definitions.closure(graph.replayed) if graph.replayed else []
    carried, carried_nbytes = _carried(declared.definitions, used)
    counts = (len(declared.regions), len(tasks), len(fanin), len(args), operands.size, len(used), carried_nbytes)
    places, nbytes = lay_out(graph.user_end, counts, SECTION_NBYTES[1:])
    if nbytes > image.size:
        raise GraphOverflow(
            f"image bytes: {graph.user_end} used by header and inputs, {image.size} available, "
            f"{nbytes - graph.user_end} more requested by {len(tasks)} tasks, {len(fanin)} dependencies, {len(args)} "
            f"arguments, {operands.size} operands and {carried_nbytes} bytes of Definitions that are not resident; "
            "enlarge the slot's image"
        )
    image[graph.user_end : nbytes] = 0  # a staging buffer holds an earlier step's bytes where the pools are padded
    regions_at, tasks_at, fanin_at, args_at, operands_at, definitions_at, carried_at = places[2::2]
    _bytes_at(image, regions_at, declared.regions)
    _bytes_at(image, tasks_at, tasks)
    _bytes_at(image, fanin_at, fanin)
    _bytes_at(image, args_at, args.astype(ARG))
    _bytes_at(image, operands_at, operands)
    if used:
        _number_definitions(image[tasks_at : tasks_at + tasks.nbytes], used)
        _bytes_at(image, definitions_at, _definition_records(declared.definitions, used, carried, carried_at))
        for number, start in carried.items():
            _bytes_at(image, carried_at + start, declared.definitions.items[number].content)
    seal(image, MAGIC, declared.table, places, nbytes)
    return nbytes


def _carried(definitions: DefinitionSet, used: list[int]) -> tuple[dict[int, int], int]:
    """The Definitions that are not resident and where each starts among the carried ones, and the bytes of all."""
    carried: dict[int, int] = {}
    end = 0
    n_resident = len(definitions.resident_at)
    for number in used:
        if number >= n_resident:
            carried[number] = end
            end += aligned(definitions.items[number].nbytes)
    return carried, end


def _number_definitions(tasks: Bytes, used: list[int]) -> None:
    """Let GRAPH tasks in the image name a Definition by its place in the image's pool."""
    if used == list(range(len(used))):
        return
    rows = tasks.view("<u4").reshape(-1, 6)
    numbers = np.zeros(used[-1] + 1, np.uint32)
    numbers[used] = np.arange(len(used))
    replays = rows[:, 0] == TASK_GRAPH
    rows[replays, 1] = numbers[rows[replays, 1]]


def _definition_records(
    definitions: DefinitionSet, used: list[int], carried: dict[int, int], carried_at: int
) -> NDArray[np.void]:
    records = np.zeros(len(used), DEFINITION)
    for position, number in enumerate(used):
        definition = definitions.items[number]
        if number in carried:
            where, offset = WHERE_CARRIED, carried_at + carried[number]
        else:
            where, offset = WHERE_RESIDENT, definitions.resident_at[number]
        records[position] = (definition.fingerprint, offset, definition.nbytes, where, 0)
    return records


def _bytes_at(image: Bytes, offset: int, records: NDArray[np.generic]) -> None:
    if records.size:
        image[offset : offset + records.nbytes] = np.ravel(records).view(np.uint8)


def _refuse_handle(declared: Declared, tasks: Words, entry: int) -> NoReturn:
    task = int(np.searchsorted(tasks[:, 4], entry, side="right")) - 1
    name = declared.table.names[tasks[task, 1]]
    raise GraphError(
        f"task {task} ({name}), argument {entry - int(tasks[task, 4])}: the handle is not one of this builder's, or it "
        "came from put(), reserve() or scalar() of an earlier step; ask for it again after reset()"
    )
