"""A large log in many parts, read by several processes that take the next part whenever they are done with one.

Decoding holds the GIL, so more cores help only as more processes. Children of this interpreter and the process itself
draw parts from one pipe. Children write what they read to files in memory, which this process maps when no part is
left, so that nobody waits for the other. A part in which there is more than step records and events of ours, or whose
child could not do its work or not even start, is read here once more: the result is the same either way.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Final, NamedTuple

from async_orch.analysis._cores import cores
from async_orch.analysis._lines import MAX_LINE_NBYTES
from async_orch.analysis._part_file import PartRead, received
from async_orch.analysis._sources import COMPRESSED

__all__ = ["Division", "Part", "divided", "drawn", "identity"]

_LEAST_NBYTES: Final = 64 << 20
_PART_NBYTES: Final = 16 << 20
_MAX_PARTS: Final = 512  # their numbers fit a pipe at once
_MAX_PROCESSES: Final = 4
_TICKET_NBYTES: Final = 2
_LOOKED_AT_NBYTES: Final = 1 << 13
_CHILD_ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1"}  # nothing here needs threads that multiply, and they spin


class Part(NamedTuple):
    """Whole lines of a file: the bytes from ``start`` to ``end``."""

    start: int
    end: int


class Child(NamedTuple):
    """A process that reads parts, and the file that they go to."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]


@dataclass(frozen=True, slots=True)
class Division:
    """An open file in parts, in their order, and the children that read some of them."""

    file: FileIO
    parts: list[Part]
    children: list[Child]
    tickets: int

    def draw(self) -> Iterator[int]:
        """Numbers of parts for this process to read, as long as there are any."""
        return drawn(self.tickets)

    def collect(self, *, mapped: bool) -> dict[int, PartRead]:
        """What the children read, by number of the part; what they could not read is missing. See `received`."""
        found: dict[int, PartRead] = {}
        for child in self.children:
            child.process.wait()
            for part in received(child.output, mapped=mapped):
                if part.header.steps_only and 0 <= part.header.number < len(self.parts):
                    found[part.header.number] = part
        return found


@contextmanager
def divided(path: Path) -> Iterator[Division | None]:
    """Divide a file and start children that read parts of it; those that are left at the end are killed.

    A small or compressed file, and any file where there is one core, is not divided.
    """
    with ExitStack() as stack:
        yield _division(path, stack)


def _division(path: Path, stack: ExitStack) -> Division | None:
    if min(cores(), _MAX_PROCESSES) < 2 or not sys.executable or not path.is_file():
        return None
    # Read through this one description only: a log that is replaced meanwhile stays the log that was divided.
    file = stack.enter_context(path.open("rb", buffering=0))
    parts = _parts_of(file)
    if not parts:
        return None
    command = [sys.executable, "-P", "-m", "async_orch.analysis._worker", os.fspath(path), identity(file)]
    command += [f"{part.start}-{part.end}" for part in parts]
    division = None
    # No descriptors, processes or room left, or no interpreter there: then those that started do the work.
    with suppress(OSError):
        division = Division(file, parts, [], _tickets(len(parts), stack))
        for _ in range(min(cores(), _MAX_PROCESSES) - 1):
            division.children.append(_child(command, division.tickets, stack))
    return division


def _tickets(count: int, stack: ExitStack) -> int:
    """A pipe from which the numbers of the parts can be read, and nothing else."""
    tickets, numbers = os.pipe()
    stack.callback(os.close, tickets)
    with open(numbers, "wb") as pipe:  # noqa: PTH123 - a descriptor
        pipe.write(b"".join(number.to_bytes(_TICKET_NBYTES, "little") for number in range(count)))
    return tickets


def _child(command: list[str], tickets: int, stack: ExitStack) -> Child:
    """Start a child that draws `tickets`. Raises `OSError`."""
    output = stack.enter_context(_file_in_memory())
    process = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
        command, stdin=tickets, stdout=output, stderr=subprocess.DEVNULL, env=_child_environment()
    )
    stack.callback(_end, process)
    return Child(process, output)


def _child_environment() -> dict[str, str]:
    # Modules come from where they come from here: not from the working directory, where anything may lie.
    path = os.pathsep.join(entry for entry in sys.path if isinstance(entry, str))
    return os.environ | _CHILD_ENVIRONMENT | {"PYTHONPATH": path}


def identity(file: FileIO) -> str:
    """Which file it is, whatever its name stands for by now."""
    status = os.fstat(file.fileno())
    return f"{status.st_dev}-{status.st_ino}"


def _file_in_memory() -> IO[bytes]:
    """A file without a name; on a disk where there are none in memory."""
    with suppress(AttributeError, OSError):  # there are none on this system, or none allowed
        return open(os.memfd_create("async_orch.analysis"), "w+b")  # noqa: PTH123 - a descriptor
    return tempfile.TemporaryFile()


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def drawn(tickets: int) -> Iterator[int]:
    """Numbers of parts from the pipe `tickets`, which several processes read: each number comes up in one of them."""
    while len(ticket := os.read(tickets, _TICKET_NBYTES)) == _TICKET_NBYTES:
        yield int.from_bytes(ticket, "little")


def _parts_of(file: FileIO) -> list[Part]:
    """The whole lines of a file in parts; none if it is not worth dividing. What follows the last one is left."""
    size = os.fstat(file.fileno()).st_size
    if size < _LEAST_NBYTES or file.read(4).startswith(COMPRESSED):
        return []
    count = min(max(size // _PART_NBYTES, 2), _MAX_PARTS)
    bounds = [0]
    for number in range(1, count):
        end = _first_line_end(file, size * number // count)
        if end is None:
            return []
        bounds.append(end)
    file.seek(size - MAX_LINE_NBYTES)
    last = file.read(MAX_LINE_NBYTES).rfind(b"\n")
    bounds.append(size - MAX_LINE_NBYTES + last + 1)
    parts = [Part(start, end) for start, end in itertools.pairwise(bounds)]
    return parts if last >= 0 and all(part.start < part.end for part in parts) else []


def _first_line_end(file: FileIO, position: int) -> int | None:
    """The place behind the first line end from `position` on; None if a line is too long for one."""
    file.seek(position)
    for _ in range(MAX_LINE_NBYTES // _LOOKED_AT_NBYTES):
        found = file.read(_LOOKED_AT_NBYTES)
        if (end := found.find(b"\n") + 1) > 0:
            return position + end
        position += len(found)
    return None
