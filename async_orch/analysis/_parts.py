"""A large log in several parts, each read by a process of its own.

Decoding holds the GIL, so more cores help only as more processes. A part goes to a child of this interpreter, which
reads it into columns and writes those to its standard output. A part in which there is more than step records and
events of ours, or whose child could not do its work, is read here instead, so that the result is the same either way.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from async_orch.analysis._lines import MAX_LINE_NBYTES
from async_orch.analysis._sources import COMPRESSED
from async_orch.analysis._table import FIGURE_FIELDS, Block, Column

__all__ = ["PartHeader", "PartProcess", "divided", "receive", "send"]

_LEAST_NBYTES: Final = 64 << 20
_MAX_PROCESSES: Final = 4
_LENGTH_NBYTES: Final = 8


class PartHeader(msgspec.Struct):
    """What a child says of its part before the columns: counts, kinds by number, columns with one value only.

    ``steps_only`` is false where the part holds something that the columns do not; then nothing follows.
    """

    steps_only: bool
    rows: int = 0
    lines: int = 0
    invalid: int = 0
    other_events: int = 0
    skipped: dict[str, int] = {}
    runs: dict[str, dict[str, Any]] = {}
    kinds: list[list[Any]] = []
    constant: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class PartProcess:
    """A child that reads the bytes from ``start`` to ``end`` of a file."""

    start: int
    end: int
    process: subprocess.Popen[bytes]


@contextmanager
def divided(path: Path) -> Iterator[tuple[int, list[PartProcess]]]:
    """Start children for all but the first part of a file; gives the end of the first part, and the others in order.

    Without children (a small or compressed file, one core) the first part ends at 0. Children that are left at the
    end are killed.
    """
    processes: list[PartProcess] = []
    bounds = _bounds(path)
    try:
        for start, end in itertools.pairwise(bounds[1:]):
            command = [sys.executable, "-m", "async_orch.analysis._worker", os.fspath(path), str(start), str(end)]
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            processes.append(PartProcess(start, end, process))
        yield bounds[1] if processes else 0, processes
    finally:
        for part in processes:
            part.process.kill()
            part.process.communicate()


def _bounds(path: Path) -> list[int]:
    """Where parts begin and end, each after a line end; two or fewer if the file is not worth dividing."""
    count = min(_cores(), _MAX_PROCESSES)
    if count < 2 or not sys.executable or not path.is_file():
        return []
    size = path.stat().st_size
    if size < _LEAST_NBYTES:
        return []
    with path.open("rb") as file:
        if file.read(4).startswith(COMPRESSED):
            return []
        found = [0]
        for part in range(1, count):
            file.seek(size * part // count)
            after = file.readline(MAX_LINE_NBYTES)
            if not after.endswith(b"\n"):
                return []
            found.append(file.tell())
        file.seek(size - MAX_LINE_NBYTES)
        last = file.read(MAX_LINE_NBYTES).rfind(b"\n")
        return [*found, size - MAX_LINE_NBYTES + last + 1] if last >= 0 else []


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def send(target: IO[bytes], header: PartHeader, columns: dict[str, Column], kinds: Column) -> None:
    """Write a part's header and columns."""
    if header.steps_only:
        header.constant = {
            name: int(values[0])
            for name, values in columns.items()
            if len(values) and bool(np.all(values == values[0]))
        }
    text = msgspec.json.encode(header)
    target.write(len(text).to_bytes(_LENGTH_NBYTES, "little") + text)
    if header.steps_only:
        target.write(kinds.tobytes())
        for name in FIGURE_FIELDS:
            if name not in header.constant:
                target.write(columns[name].tobytes())
    target.flush()


def receive(part: PartProcess) -> tuple[PartHeader, Block] | None:
    """What a child found; None if it gave up or failed."""
    source = part.process.stdout
    if source is None:
        return None
    length = source.read(_LENGTH_NBYTES)
    if len(length) < _LENGTH_NBYTES:
        return None
    try:
        header = msgspec.json.decode(source.read(int.from_bytes(length, "little")), type=PartHeader)
    except msgspec.DecodeError:
        return None
    if not header.steps_only:
        return None
    kinds = _column(source, header.rows)
    columns: dict[str, Column] = {}
    for name in FIGURE_FIELDS:
        if name in header.constant:
            columns[name] = np.broadcast_to(np.int64(header.constant[name]), (header.rows,))
        elif kinds is not None and (values := _column(source, header.rows)) is not None:
            columns[name] = values
        else:
            return None
    if kinds is None or part.process.wait() != 0:
        return None
    return header, Block(columns, kinds.astype(np.int32))


def _column(source: IO[bytes], rows: int) -> Column | None:
    values = bytearray(rows * 8)
    view = memoryview(values)
    position = 0
    while position < len(view):
        piece = source.read(min(len(view) - position, 1 << 20))
        if not piece:
            return None
        view[position : position + len(piece)] = piece
        position += len(piece)
    return np.frombuffer(values, np.int64)
