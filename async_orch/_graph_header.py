"""Reads the header of an image or a Definition and takes a private copy of its pools, checked against the memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    ALIGNMENT,
    ARG,
    DEFINITION,
    DEFINITION_MAGIC,
    FANIN,
    HEADER_NBYTES,
    MAGIC,
    N_SECTIONS,
    OPERAND,
    PACK_HEADER,
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
from async_orch.exceptions import ImageCorrupt

__all__ = ["Pools", "read_pools"]

_NOWHERE = Section(0, 0)


@dataclass(frozen=True, slots=True)
class Pools:
    """The header's fields, and typed views of a copy of the pools, which nobody else can change.

    `what` names them in errors. `content` are the copied bytes: everything from the region pool to the end.
    `definitions` are those that GRAPH tasks name; `tail` is the last section: carried Definitions in an image,
    parameters in a Definition.
    """

    what: str
    nbytes: int
    table: int
    sections: tuple[Section, ...]
    content: Bytes
    regions: NDArray[np.void]
    tasks: NDArray[np.void]
    fanin: NDArray[np.int32]
    args: NDArray[np.int32]
    operands: NDArray[np.void]
    definitions: NDArray[np.void]
    tail: Bytes

    @property
    def operands_at(self) -> int:
        """Where the operand pool begins in `content`."""
        return self.sections[5].offset - self.sections[1].offset


def read_pools(source: Bytes, what: str = "image", *, definition: bool = False) -> Pools:
    """Check the header, the pools' places and the checksum; `ImageCorrupt` names field, value and bound."""
    require_bytes(source, what, writable=False)
    if source.size < HEADER_NBYTES:
        raise ImageCorrupt(f"{what}: {source.size} bytes, must be at least {HEADER_NBYTES} (the header)")
    header = source[:HEADER_NBYTES].copy()
    magic, version, header_nbytes, nbytes, stored, flags, table, *places = PACK_HEADER.unpack(header.data)
    reserved = header[40:64].tobytes()
    for field, value, wanted in (
        ("magic", magic, DEFINITION_MAGIC if definition else MAGIC),
        ("version", version, VERSION),
        ("header_nbytes", header_nbytes, HEADER_NBYTES),
        ("flags", flags, 0),
        ("reserved", reserved, bytes(24)),
    ):
        if value != wanted:
            raise ImageCorrupt(f"{what} header: {field} is {value!r}, must be {wanted!r}")
    if not HEADER_NBYTES <= nbytes <= source.size:
        raise ImageCorrupt(f"{what} header: image_nbytes is {nbytes}, must lie in {HEADER_NBYTES} to {source.size}")
    record_nbytes = (*SECTION_NBYTES[:-1], OPERAND.itemsize if definition else SECTION_NBYTES[-1])
    sections = _sections(what, places, nbytes, record_nbytes)
    start = sections[1].offset
    content = source[start:nbytes].copy()
    actual = checksum(header, content)
    if stored != actual:
        raise ImageCorrupt(f"{what} header: checksum is {stored:#010x}, the bytes give {actual:#010x}")
    regions, tasks, fanin, args, operands, definitions, tail = (
        content[max(section.offset - start, 0) :][: section.n_records * size]
        for section, size in zip(sections[1:], record_nbytes[1:], strict=True)
    )
    return Pools(
        what,
        nbytes,
        table,
        sections,
        content,
        regions.view(REGION),
        tasks.view(TASK),
        fanin.view(FANIN),
        args.view(ARG),
        operands.view(OPERAND),
        definitions.view(DEFINITION),
        tail,
    )


def _sections(
    what: str, places: tuple[int, ...] | list[int], nbytes: int, record_nbytes: tuple[int, ...]
) -> tuple[Section, ...]:
    """The pools in the order of their names, each behind the one before and within the image."""
    sections: list[Section] = []
    end = HEADER_NBYTES
    for position, (name, size) in enumerate(zip(SECTION_NAMES, record_nbytes, strict=True)):
        offset, count = places[2 * position : 2 * position + 2]
        if position >= N_SECTIONS and not offset and not count:
            sections.append(_NOWHERE)
            continue
        if offset % ALIGNMENT or not end <= offset <= nbytes:
            raise ImageCorrupt(
                f"{what} header: {name}.offset is {offset}, must be a multiple of {ALIGNMENT} in {end} to {nbytes}"
            )
        room = (nbytes - offset) // size
        if count > room:
            raise ImageCorrupt(f"{what} header: {name}.count is {count}, must be at most {room}")
        end = offset + count * size
        sections.append(Section(offset, count))
    return tuple(sections)
