"""A large log in many parts, read by several processes that take the next part whenever they are done with one.

Decoding holds the GIL, so more cores help only as more processes. Children of this interpreter and the process itself
draw parts from one pipe. Children write what they read to files in memory, which this process maps when no part is
left, so that nobody waits for the other. A part in which there is more than step records and events of ours, or whose
child could not do its work, is read here once more: the result is the same either way.
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
from pathlib import Path
from typing import IO, Final, NamedTuple

from async_orch.analysis._cores import cores
from async_orch.analysis._lines import MAX_LINE_NBYTES
from async_orch.analysis._part_file import PartRead, received
from async_orch.analysis._sources import COMPRESSED

__all__ = ["Division", "Part", "divided", "drawn"]

_LEAST_NBYTES: Final = 64 << 20
_PART_NBYTES: Final = 16 << 20
_MAX_PARTS: Final = 512  # their numbers fit a pipe at once
_MAX_PROCESSES: Final = 4
_TICKET_NBYTES: Final = 2
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
    """A file in parts, in their order, and the children that read some of them. Without children there are none."""

    parts: list[Part]
    children: list[Child]
    tickets: int

    def draw(self) -> Iterator[int]:
        """Numbers of parts for this process to read, as long as there are any."""
        return drawn(self.tickets)

    def collect(self) -> dict[int, PartRead]:
        """What the children read, by number of the part; what they could not read is missing."""
        found: dict[int, PartRead] = {}
        for child in self.children:
            child.process.wait()
            for part in received(child.output):
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
        environment = os.environ | _CHILD_ENVIRONMENT
        for _ in range(min(cores(), _MAX_PROCESSES) - 1):
            command = [sys.executable, "-m", "async_orch.analysis._worker", os.fspath(path)]
            command += [f"{part.start}-{part.end}" for part in parts]
            output = stack.enter_context(_file_in_memory())
            child = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
                command, stdin=tickets, stdout=output, stderr=subprocess.DEVNULL, env=environment
            )
            stack.callback(_end, child)
            children.append(Child(child, output))
        yield Division(parts, children, tickets)


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
