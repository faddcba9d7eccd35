"""Dependencies from the bytes that tasks read and write.

Each region is kept as a list of disjoint byte ranges, each with the task that last wrote it and the tasks that have
read it since. A read depends on the writers of the ranges it touches (read after write); a write depends on their
readers, or on the writer where nobody has read since (write after read, write after write), and becomes the writer.
What is further back is reached through these.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import DTYPES, KIND_TENSOR, structure_mask
from async_orch._graph_kernels import ALL_WRITABLE, KernelTable, output_flags
from async_orch.exceptions import GraphError

__all__ = ["DependencyInference", "RegionHistory"]

Ints = NDArray[np.int64]

_ITEM_NBYTES = np.array([dtype.itemsize for dtype in DTYPES], np.int64)
_NOBODY = -1


class RegionHistory:
    """Who last wrote, and who has read since, each byte of one region."""

    __slots__ = ("_readers", "_starts", "_writers")

    def __init__(self) -> None:
        # Range i is [starts[i], starts[i + 1]); the first starts at 0, the last has no end.
        self._starts = [0]
        self._writers = [_NOBODY]
        self._readers: list[tuple[int, ...]] = [()]

    def read(self, task: int, start: int, end: int, found: set[int]) -> None:
        """Record a read of bytes [start, end) and add the tasks it depends on to `found`."""
        first, last = self._cut(start, end)
        found.update(self._writers[first:last])
        for position in range(first, last):
            readers = self._readers[position]
            if not readers or readers[-1] != task:
                self._readers[position] = (*readers, task)

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


class DependencyInference:
    """Derives fan-ins, and gives the last answer again while the same tasks touch the same bytes."""

    def __init__(self, table: KernelTable) -> None:
        self._table = table
        self._given: tuple[list[int], list[int]] = ([], [])
        self._answer: tuple[list[int], list[int]] = ([], [])
        self._args: Ints = np.zeros(0, np.int64)
        self._structure = np.zeros(0, np.bool_)
        self._operands = np.zeros(0, np.uint8)

    def __call__(
        self, tasks: list[int], args: Ints, operands: NDArray[np.void], fanin: list[int]
    ) -> tuple[list[int], list[int]]:
        """The task pool (six fields a task) and the fan-in pool with the inferred dependencies added.

        `args` index `operands`; `fanin` are the explicit dependencies, which `tasks` refers to. Raises `GraphError`
        for a kernel that does not declare its outputs.
        """
        rows = operands.view(np.uint8)
        if (
            (tasks, fanin) != self._given
            or not np.array_equal(args, self._args)
            or rows.size != self._operands.size
            or ((rows != self._operands) & self._structure).any()
        ):
            self._answer = self._derived(np.array(tasks, np.int64).reshape(-1, 6), args, operands, fanin)
            self._given = (tasks.copy(), fanin.copy())
            self._args, self._operands, self._structure = args, rows, structure_mask(operands)
        return self._answer

    def _derived(
        self, tasks: Ints, args: Ints, operands: NDArray[np.void], fanin: list[int]
    ) -> tuple[list[int], list[int]]:
        masks = self._table.summary()[1][tasks[:, 1]]
        if (masks == ALL_WRITABLE).any():
            task = int((masks == ALL_WRITABLE).argmax())
            name = self._table.names[tasks[task, 1]]
            raise GraphError(f"task {task} ({name}): infer=True needs outputs=(...) in the kernel's registration")
        outputs = output_flags(masks, tasks[:, 5], args.size)
        # The image and scalars take no part: nobody writes them.
        starts = operands["offset"]
        ends = starts + _ITEM_NBYTES[operands["dtype"]] * operands["shape"].prod(axis=1, dtype=np.int64)
        region = np.where(operands["kind"] == KIND_TENSOR, operands["region"], 0).astype(np.int64)
        spans = np.stack((np.where(ends > starts, region, 0), starts, ends), axis=1)[args]
        counts, found = _derive(tasks[:, 5], spans, outputs, tasks[:, 3], fanin)
        tasks[:, 2] = np.cumsum(counts) - counts
        tasks[:, 3] = counts
        return tasks.ravel().tolist(), found


def _derive(
    arg_counts: Ints,
    spans: Ints,
    outputs: NDArray[np.bool_],
    explicit_counts: Ints,
    explicit: list[int],
) -> tuple[list[int], list[int]]:
    """The number of producers of each task, and all of them; `spans` are region, start and end of each argument."""
    histories: dict[int, RegionHistory] = {}
    accesses = list(zip(spans.tolist(), outputs.tolist(), strict=True))
    counts: list[int] = []
    fanin: list[int] = []
    arg = 0
    given = 0
    for task, (n_args, n_given) in enumerate(zip(arg_counts.tolist(), explicit_counts.tolist(), strict=True)):
        found = set(explicit[given : given + n_given])
        given += n_given
        # An output may be read as well; as a write it waits for the same tasks, and for more.
        for written in (False, True):
            for (region, start, end), is_output in accesses[arg : arg + n_args]:
                if region and is_output == written:
                    history = histories.setdefault(region, RegionHistory())
                    (history.write if written else history.read)(task, start, end, found)
        arg += n_args
        found.discard(task)
        found.discard(_NOBODY)
        counts.append(len(found))
        fanin += sorted(found)
    return counts, fanin
