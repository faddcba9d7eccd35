"""A large log in many parts, read by several processes that take the next part whenever they are done with one.

Decoding holds the GIL, so more cores help only as more processes. Children of this interpreter and the process itself
draw parts from one pipe; the children keep what they read in columns and write those to their standard output when no
part is left. A part in which there is more than step records and events of ours, or whose child could not do its work,
is read here once more, so that the result is the same either way.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec
import numpy as np

from async_orch.analysis._cores import cores
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._lines import MAX_LINE_NBYTES
from async_orch.analysis._sources import COMPRESSED
from async_orch.analysis._table import FIGURE_FIELDS, Block, Column

__all__ = ["Division", "Part", "PartHeader", "PartRead", "divided", "drawn", "send"]

_LEAST_NBYTES: Final = 64 << 20
_PART_NBYTES: Final = 16 << 20
_MAX_PARTS: Final = 512  # their numbers fit a pipe at once
_MAX_PROCESSES: Final = 4
_TICKET_NBYTES: Final = 2
_LENGTH_NBYTES: Final = 8


class Part(NamedTuple):
    """Whole lines of a file: the bytes from ``start`` to ``end``."""

    start: int
    end: int


class PartHeader(msgspec.Struct):
    """What was read of part ``number``, beside the columns: counts, kinds by number, columns with one value only.

    ``steps_only`` is false where the part holds something that the columns do not; then there are none.
    """

    number: int
    steps_only: bool
    rows: int = 0
    lines: int = 0
    invalid: int = 0
    unknown_schema: int = 0
    other_events: int = 0
    skipped: dict[str, int] = {}
    runs: dict[str, dict[str, Any]] = {}
    kinds: list[list[Any]] = []
    constant: dict[str, int] = {}


class PartRead(NamedTuple):
    """A part that holds nothing but steps, in columns."""

    header: PartHeader
    blocks: list[Block]


@dataclass(frozen=True, slots=True)
class Division:
    """A file in parts, in their order, and the children that read some of them. Without children there are none."""

    parts: list[Part]
    children: list[subprocess.Popen[bytes]]
    tickets: int

    def draw(self) -> Iterator[int]:
        """Numbers of parts for this process to read, as long as there are any."""
        return drawn(self.tickets)

    def collect(self) -> dict[int, PartRead]:
        """What the children read, by number of the part; what they could not read is missing."""
        found: dict[int, PartRead] = {}
        for child in self.children:
            while child.stdout is not None and (part := _receive(child.stdout)) is not None:
                if part.header.steps_only and 0 <= part.header.number < len(self.parts):
                    found[part.header.number] = part
        return found


@contextmanager
def divided(path: Path) -> Iterator[Division]:
    """Divide a file and start children that read parts of it; those that are left at the end are killed.

    A small or compressed file, and any file where there is one core, is not divided.
    """
    parts = _parts_of(path)
    with ExitStack() as stack:
        if not parts:
            yield Division([], [], -1)
            return
        tickets, numbers = os.pipe()
        stack.callback(os.close, tickets)
        with open(numbers, "wb") as pipe:  # noqa: PTH123 - a descriptor
            pipe.write(b"".join(number.to_bytes(_TICKET_NBYTES, "little") for number in range(len(parts))))
        children = []
        for _ in range(min(cores(), _MAX_PROCESSES) - 1):
            command = [sys.executable, "-m", "async_orch.analysis._worker", os.fspath(path)]
            command += [f"{part.start}-{part.end}" for part in parts]
            child = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
                command, stdin=tickets, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            stack.callback(_end, child)
            children.append(child)
        yield Division(parts, children, tickets)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.communicate()


def drawn(tickets: int) -> Iterator[int]:
    """Numbers of parts from the pipe `tickets`, which several processes read: each number comes up in one of them."""
    while len(ticket := os.read(tickets, _TICKET_NBYTES)) == _TICKET_NBYTES:
        yield int.from_bytes(ticket, "little")


def _parts_of(path: Path) -> list[Part]:
    """The whole lines of a file in parts; none if it is not worth dividing. What follows the last one is left."""
    if min(cores(), _MAX_PROCESSES) < 2 or not sys.executable or not path.is_file():
        return []
    size = path.stat().st_size
    if size < _LEAST_NBYTES:
        return []
    with path.open("rb") as file:
        if file.read(4).startswith(COMPRESSED):
            return []
        count = min(max(size // _PART_NBYTES, 2), _MAX_PARTS)
        bounds = [0]
        for number in range(1, count):
            file.seek(size * number // count)
            after = file.readline(MAX_LINE_NBYTES)
            if not after.endswith(b"\n"):
                return []
            bounds.append(file.tell())
        file.seek(size - MAX_LINE_NBYTES)
        last = file.read(MAX_LINE_NBYTES).rfind(b"\n")
    bounds.append(size - MAX_LINE_NBYTES + last + 1)
    parts = [Part(start, end) for start, end in itertools.pairwise(bounds)]
    return parts if last >= 0 and all(part.start < part.end for part in parts) else []


def send(target: IO[bytes], header: PartHeader, frame: StepFrame) -> None:
    """Write a part's header and its steps, holding one column at a time."""
    for name in FIGURE_FIELDS if len(frame) else ():
        values = frame.column(name)
        if np.all(values == values[0]):
            header.constant[name] = int(values[0])
    text = msgspec.json.encode(header)
    target.write(len(text).to_bytes(_LENGTH_NBYTES, "little") + text)
    if header.steps_only:
        target.write(frame.kind.astype(np.int64).tobytes())
        for name in FIGURE_FIELDS:
            if name not in header.constant:
                target.write(frame.column(name).tobytes())
    target.flush()


def _receive(source: IO[bytes]) -> PartRead | None:
    """The next part that a child read; None if it has no more, or failed."""
    length = source.read(_LENGTH_NBYTES)
    if len(length) < _LENGTH_NBYTES:
        return None
    try:
        header = msgspec.json.decode(source.read(int.from_bytes(length, "little")), type=PartHeader)
    except msgspec.DecodeError:
        return None
    if not header.steps_only:
        return PartRead(header, [])
    kinds = _column(source, header.rows)
    columns: dict[str, Column] = {}
    for name in FIGURE_FIELDS:
        if name in header.constant:
            columns[name] = np.broadcast_to(np.int64(header.constant[name]), (header.rows,))
        elif kinds is not None and (values := _column(source, header.rows)) is not None:
            columns[name] = values
        else:
            return None
    return None if kinds is None else PartRead(header, [Block(columns, kinds.astype(np.int32))])


def _column(source: IO[bytes], rows: int) -> Column | None:
    values = np.empty(rows, np.int64)
    view = values.data.cast("B")
    position = 0
    while position < len(view):
        count = source.readinto(view[position:])  # type: ignore[attr-defined] # a pipe is a BufferedReader
        if not count:
            return None
        position += count
    return values
