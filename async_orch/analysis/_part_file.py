"""What a process read of a log's parts, as it hands it over: written to a file that the other one maps."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import FIGURE_FIELDS, HeldColumn
from async_orch.analysis._table import Block

__all__ = ["PartHeader", "PartRead", "received", "send"]

_ALIGNED_NBYTES: Final = 8


class BlockHeader(msgspec.Struct):
    """Some rows of a part: how many, the columns that have one value only, and those that are kept in 32 bits."""

    rows: int
    constant: dict[str, int]
    short: list[str]


class PartHeader(msgspec.Struct):
    """What was read of part ``number``, beside the columns: counts, the runs that it opens, kinds by number.

    ``steps_only`` is false where the part holds something that the columns do not; then there are none. ``blocks``
    says what is written of each block of rows: `send` adds it.
    """

    number: int
    steps_only: bool
    lines: int = 0
    invalid: int = 0
    unknown_schema: int = 0
    other_events: int = 0
    skipped: dict[str, int] = {}
    runs: dict[str, dict[str, Any]] = {}
    kinds: list[list[Any]] = []
    blocks: list[BlockHeader] = []


class PartRead(NamedTuple):
    """A part that holds nothing but steps, in columns."""

    header: PartHeader
    blocks: list[Block]


def send(target: IO[bytes], part: PartRead) -> None:
    """Write what was read of a part."""
    header = msgspec.structs.replace(part.header, blocks=[_block_header(block) for block in part.blocks])
    text = msgspec.json.encode(header)
    _write(target, len(text).to_bytes(_ALIGNED_NBYTES, "little"))
    _write(target, text)
    for block in part.blocks:
        for values in (block.kinds, *block.columns.values()):
            if not _is_constant(values):
                _write(target, values.view(np.uint8).data)
    target.flush()


def _write(target: IO[bytes], data: bytes | memoryview) -> None:
    target.write(data)
    target.write(bytes(-len(data) % _ALIGNED_NBYTES))


def _block_header(block: Block) -> BlockHeader:
    columns = block.columns.items()
    constant = {name: int(values[0]) for name, values in columns if _is_constant(values)}
    short = [name for name, values in columns if values.dtype == np.int32]
    return BlockHeader(len(block.kinds), constant, short)


def _is_constant(values: HeldColumn) -> bool:
    """Whether a column is one value, held once."""
    return values.strides == (0,)


def received(file: IO[bytes], *, mapped: bool) -> Iterator[PartRead]:
    """The parts that a child wrote, as far as it came.

    `mapped`: they keep the file's memory, and a descriptor, as long as they are in use; else they have their own.
    """
    if not os.fstat(file.fileno()).st_size:
        return
    file.seek(0)
    try:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if mapped else file.read()
    except OSError:
        return  # no descriptor or no memory left: whoever has read the log elsewhere can do without
    written = _Written(memory)
    with suppress(msgspec.DecodeError, _CutOffError):
        while True:
            size = int(written.take(1, np.int64)[0])
            header = msgspec.json.decode(written.take(size, np.uint8).data, type=PartHeader)
            yield PartRead(header, [written.block(block) for block in header.blocks])


class _CutOffError(Exception):
    """There is nothing more, or not all of it."""


class _Written:
    """Takes what `_write` wrote, one after the other, from the memory of the file."""

    def __init__(self, memory: mmap.mmap | bytes) -> None:
        self._memory = memory
        self._position = 0

    def take(self, count: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
        """The next `count` values. Raises `_CutOffError`."""
        nbytes = count * np.dtype(dtype).itemsize
        first, end = self._position, self._position + nbytes
        if not 0 <= first <= end <= len(self._memory):
            raise _CutOffError
        self._position = end + -end % _ALIGNED_NBYTES
        return np.frombuffer(self._memory, dtype, count, first) if count else np.empty(0, dtype)

    def block(self, header: BlockHeader) -> Block:
        """The next block. Raises `_CutOffError`."""
        kinds = self.take(header.rows, np.int32)
        columns: dict[str, HeldColumn] = {}
        for name in FIGURE_FIELDS:
            if name in header.constant:
                columns[name] = np.broadcast_to(np.int64(header.constant[name]), (header.rows,))
            else:
                columns[name] = self.take(header.rows, np.int32 if name in header.short else np.int64)
        return Block(columns, kinds)
