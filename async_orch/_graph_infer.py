"""Dependencies from the bytes that tasks read and write.

Each *base* - a region, or a parameter of a Definition - is kept as a list of disjoint byte ranges, each with the task
that last wrote it and the tasks that have read it since. A read depends on the writers of the ranges it touches (read
after write); a write depends on their readers, or on the writer where nobody has read since (write after read, write
after write), and becomes the writer. What is further back is reached through these.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import DTYPES, KIND_TENSOR
from async_orch.exceptions import GraphError

__all__ = ["ITEM_NBYTES", "Access", "Derivation", "Range", "merged", "spans_of"]

Ints = NDArray[np.int64]
Range = tuple[int, int, int]
"""Base, first byte, and the byte behind the last."""

ITEM_NBYTES = np.array([dtype.itemsize for dtype in DTYPES], np.int64)
_NOBODY = -1


class Access(NamedTuple):
    """Bytes [start, end) of a base that a task reads or writes.

    `base` is a region's number, from 1, or -1 minus a parameter's. `argument` is the position of the task's argument,
    -1 for memory that is fixed in a Definition.
    """

    base: int
    start: int
    end: int
    written: bool
    argument: int


class Derivation:
    """Derives dependencies task by task, in the order of the tasks' ids."""

    def __init__(self) -> None:
        self._histories: dict[int, _History] = {}

    def add(self, task: int, accesses: Sequence[Access], explicit: Iterable[int]) -> tuple[list[int], list[Access]]:
        """The tasks that `task` depends on, the explicit ones among them, and its reads of bytes nobody wrote."""
        found = set(explicit)
        unwritten: list[Access] = []
        # An output may be read as well; as a write it waits for the same tasks, and for more.
        for written in (False, True):
            for access in accesses:
                if access.written != written or access.start >= access.end:
                    continue
                history = self._histories.get(access.base)
                if history is None:
                    history = self._histories[access.base] = _History()
                if written:
                    history.write(task, access.start, access.end, found)
                else:
                    gaps = history.read(task, access.start, access.end, found)
                    unwritten += [access._replace(start=start, end=end) for start, end in gaps]
        found.discard(task)
        found.discard(_NOBODY)
        return sorted(found), unwritten

    def written(self) -> Iterator[Range]:
        """All ranges that a task wrote."""
        for base, history in self._histories.items():
            for start, end in history.written():
                yield base, start, end


class _History:
    """Who last wrote, and who has read since, each byte of one base."""

    __slots__ = ("_readers", "_starts", "_writers")

    def __init__(self) -> None:
        # Range i is [starts[i], starts[i + 1]); the first starts at 0, the last has no end.
        self._starts = [0]
        self._writers = [_NOBODY]
        self._readers: list[tuple[int, ...]] = [()]

    def read(self, task: int, start: int, end: int, found: set[int]) -> list[tuple[int, int]]:
        """Record a read of bytes [start, end), add what it depends on to `found`; gives the ranges nobody wrote."""
        first, last = self._cut(start, end)
        writers = self._writers[first:last]
        found.update(writers)
        for position in range(first, last):
            readers = self._readers[position]
            if not readers or readers[-1] != task:
                self._readers[position] = (*readers, task)
        if _NOBODY not in writers:
            return []
        edges = [*self._starts[first:last], end]
        return [(edges[i], edges[i + 1]) for i, writer in enumerate(writers) if writer == _NOBODY]

    def write(self, task: int, start: int, end: int, found: set[int]) -> None:
        """Record a write of bytes [start, end) and add the tasks it depends on to `found`."""
        first, last = self._cut(start, end)
        for position in range(first, last):
            earlier = [reader for reader in self._readers[position] if reader != task]
            if earlier:
                found.update(earlier)
            else:
                found.add(self._writers[position])
        self._starts[first:last] = [start]
        self._writers[first:last] = [task]
        self._readers[first:last] = [()]

    def written(self) -> list[tuple[int, int]]:
        """The ranges that have a writer; the last range, without an end, has none."""
        starts = self._starts
        return [(starts[i], starts[i + 1]) for i in range(len(starts) - 1) if self._writers[i] != _NOBODY]

    def _cut(self, start: int, end: int) -> tuple[int, int]:
        """Split ranges so that [start, end) is exactly the ranges first to last - 1."""
        first = self._cut_at(start)
        return first, self._cut_at(end)

    def _cut_at(self, byte: int) -> int:
        position = bisect_right(self._starts, byte) - 1
        if self._starts[position] == byte:
            return position
        self._starts.insert(position + 1, byte)
        self._writers.insert(position + 1, self._writers[position])
        self._readers.insert(position + 1, self._readers[position])
        return position + 1


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The same bytes in as few ranges as possible, sorted."""
    found: list[Range] = []
    for base, start, end in sorted(ranges):
        if found and found[-1][0] == base and found[-1][2] >= start:
            found[-1] = (base, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((base, start, end))
    return found


def spans_of(operands: NDArray[np.void]) -> Ints:
    """Region, first byte and byte behind the last of each operand; region 0 for the image and for scalars.

    Nobody writes to the image, so it takes no part in dependencies.
    """
    tensor = operands["kind"] == KIND_TENSOR
    starts = operands["offset"]
    nbytes = ITEM_NBYTES[operands["dtype"]] * operands["shape"].prod(axis=1, dtype=np.int64)
    region = np.where(tensor & (nbytes > 0), operands["region"], 0)
    return np.stack((region.astype(np.int64), starts, starts + nbytes), axis=1)


def refuse_overlaps(accesses: Sequence[Access], names: Sequence[str], where: str) -> None:
    """`GraphError` if a replay's arguments share bytes with each other, or with fixed tensors, that are written.

    The dependencies inside a Definition were found for arguments that lie apart.
    """
    running: list[Access] = []
    for access in sorted(accesses):
        running = [other for other in running if other.base == access.base and other.end > access.start]
        for other in running:
            if other.argument != access.argument and (other.written or access.written):
                pair = " and ".join(_argument(names, one.argument) for one in (other, access))
                raise GraphError(
                    f"{where}: {pair} share bytes {access.start} to {min(other.end, access.end)} of a region, and the "
                    "Definition writes there; bind memory that lies apart, or record with one parameter for both"
                )
        running.append(access)


def _argument(names: Sequence[str], position: int) -> str:
    return "a tensor fixed in the Definition" if position < 0 else f"argument {names[position]!r}"
