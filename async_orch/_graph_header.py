"""Reads an image's header and takes a private copy of its pools, both checked against the memory that holds them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    ALIGNMENT,
    ARG,
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


@dataclass(frozen=True, slots=True)
class Pools:
    """The header's fields, and typed views of a copy of the pools, which nobody else can change.

    `content` are the copied bytes: everything from the region pool to the end of the image.
    """

    image_nbytes: int
    table: int
    sections: tuple[Section, ...]
    content: Bytes
    regions: NDArray[np.void]
    tasks: NDArray[np.void]
    fanin: NDArray[np.int32]
    args: NDArray[np.int32]
    operands: NDArray[np.void]

    @property
    def operands_at(self) -> int:
        """Where the operand pool begins in `content`."""
        return self.sections[5].offset - self.sections[1].offset


def read_pools(image: Bytes) -> Pools:
    """Check the header, the pools' places and the checksum; `ImageCorrupt` names field, value and bound."""
    require_bytes(image, "image", writable=False)
    if image.size < HEADER_NBYTES:
        raise ImageCorrupt(f"image: {image.size} bytes, must be at least {HEADER_NBYTES} (the header)")
    header = image[:HEADER_NBYTES].copy()
    magic, version, header_nbytes, nbytes, stored, flags, table, *places = PACK_HEADER.unpack(header.data)
    reserved = header[40:64].tobytes()
    for field, value, wanted in (
        ("magic", magic, MAGIC),
        ("version", version, VERSION),
        ("header_nbytes", header_nbytes, HEADER_NBYTES),
        ("flags", flags, 0),
        ("reserved", reserved, bytes(24)),
    ):
        if value != wanted:
            raise ImageCorrupt(f"image header: {field} is {value!r}, must be {wanted!r}")
    if not HEADER_NBYTES <= nbytes <= image.size:
        raise ImageCorrupt(f"image header: image_nbytes is {nbytes}, must lie in {HEADER_NBYTES} to {image.size}")
    sections = _sections(places, nbytes)
    start = sections[1].offset
    content = image[start:nbytes].copy()
    actual = checksum(header, content)
    if stored != actual:
        raise ImageCorrupt(f"image header: checksum is {stored:#010x}, the bytes give {actual:#010x}")
    spans = [
        content[section.offset - start : section.offset - start + section.n_records * record_nbytes]
        for section, record_nbytes in zip(sections[1:], SECTION_NBYTES[1:N_SECTIONS], strict=True)
    ]
    return Pools(
        nbytes,
        table,
        sections,
        content,
        spans[0].view(REGION),
        spans[1].view(TASK),
        spans[2].view(FANIN),
        spans[3].view(ARG),
        spans[4].view(OPERAND),
    )


def _sections(places: list[int], nbytes: int) -> tuple[Section, ...]:
    """The pools in the order of their names, each behind the one before and within the image."""
    sections = []
    end = HEADER_NBYTES
    for position, (name, record_nbytes) in enumerate(zip(SECTION_NAMES, SECTION_NBYTES, strict=True)):
        offset, count = places[2 * position : 2 * position + 2]
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
    return tuple(sections)
