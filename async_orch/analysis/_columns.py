"""The figures of each step as rows of 64-bit integers: 8 bytes a figure and step, whatever the log's size.

A row holds what a record states; what follows from it (sums, bandwidths) is computed over whole columns, by the
arithmetic of `async_orch.logs.host_orch`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from async_orch.analysis._host_orch import estimate_allocation
from async_orch.logs import HostOrch, StepRecord

__all__ = ["MISSING", "Column", "JoinedRows", "LineRows", "Rows", "StepRows"]

MISSING: Final = -(2**63)
"""Stands for a figure that a step does not have; no figure can have this value."""

Column: TypeAlias = npt.NDArray[np.int64]


class Rows(Protocol):
    """Steps of one kind, with their figures in columns."""

    def __len__(self) -> int: ...

    def column(self, name: str) -> Column:
        """A value a step, `MISSING` where a step does not have it; all of them, where no step of the kind does."""
        ...


class _Table:
    """Rows of integers that grow at their end."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._index = {name: index for index, name in enumerate(names)}
        self._values = array("q")

    def append(self, figures: tuple[int | None, ...]) -> None:
        """Add a row: a figure for each name, None where it is missing."""
        self._values.fromlist([MISSING if figure is None else figure for figure in figures])

    def __len__(self) -> int:
        return len(self._values) // len(self._index)

    def column(self, name: str) -> Column:
        if name not in self._index:
            return np.full(len(self), MISSING, np.int64)
        # The copy ends the loan of the array's memory at once; an array that is lent out cannot grow.
        return np.frombuffer(self._values, dtype=np.int64)[self._index[name] :: len(self._index)].copy()


class StepRows:
    """Rows of step records.

    ``copy_ns`` is the copy without allocation, ``end_ns`` the end of retire; the other names are those of
    `async_orch.logs.HostOrch` and `StepRecord`.
    """

    def __init__(self) -> None:
        self._table = _Table(
            (
                "orch_ns",
                "alloc_ns",
                "h2d_graph_ns",
                "sm_ns",
                "copy_ns",
                "alloc_nbytes",
                "copy_nbytes",
                "timed_sm_nbytes",
                "device_start_ns",
                "device_ns",
                "bubble_ns",
                "total_ns",
                "accept_ns",
            )
        )

    def __len__(self) -> int:
        return len(self._table)

    def add(self, record: StepRecord) -> None:
        """Append a step's figures."""
        clock = record.device_clock
        timed = clock is not None and clock != "none"
        self._table.append(
            (
                record.build_ns,
                record.alloc_ns,
                record.h2d_graph_ns,
                record.h2d_sm_ns,
                record.h2d_ns,
                record.alloc_nbytes,
                record.copy_nbytes,
                record.sm_nbytes if record.h2d_split == "measured" else None,
                record.device_start_ns if timed else None,
                record.device_ns if timed else None,
                record.bubble_ns if timed else None,
                record.total_ns,
                record.accept_ns,
            )
        )

    def column(self, name: str) -> Column:
        """See `Rows.column`."""
        stated = self._table.column
        match name:
            case "graph_ns":
                return _sum(stated("alloc_ns"), stated("h2d_graph_ns"))
            case "h2d_ns":
                return _sum(self.column("graph_ns"), stated("sm_ns"))
            case "bw":
                return _rate(stated("copy_nbytes"), self.column("h2d_ns"))
            case "sm_bw":
                return _rate(stated("timed_sm_nbytes"), stated("sm_ns"))
            case "end_ns":
                return _sum(stated("accept_ns"), stated("total_ns"))
            case _:
                return stated(name)


class LineRows:
    """Rows of ``host-orch:`` lines.

    ``alloc_ns``, ``copy_ns`` (the copy without allocation) and ``graph_nbytes`` are estimates, see
    `estimate_allocation`.
    """

    def __init__(self) -> None:
        self._table = _Table((*HostOrch._fields, "alloc_ns", "copy_ns", "graph_nbytes"))

    def __len__(self) -> int:
        return len(self._table)

    def add(self, line: HostOrch) -> None:
        """Append a line's figures."""
        estimate = estimate_allocation(line)
        if estimate is None:
            self._table.append((*line, None, None, None))
        else:
            copy_ns = None if line.sm_ns is None else estimate.graph_copy_ns + line.sm_ns
            self._table.append((*line, estimate.alloc_ns, copy_ns, estimate.graph_nbytes))

    def column(self, name: str) -> Column:
        """See `Rows.column`; ``bw`` is computed from the line's other figures, and as printed where it cannot be."""
        stated = self._table.column
        if name == "bw":
            computed = _rate(stated("copy_nbytes"), stated("h2d_ns"))
            return np.where(computed == MISSING, stated("bw"), computed)
        return stated(name)


class JoinedRows:
    """The rows of several runs as one."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def column(self, name: str) -> Column:
        """See `Rows.column`."""
        return np.concatenate([np.empty(0, np.int64), *(part.column(name) for part in self._parts)])


def _sum(first: Column, second: Column) -> Column:
    known = (first != MISSING) & (second != MISSING)
    return np.where(known, np.where(known, first, 0) + np.where(known, second, 0), MISSING)


def _rate(nbytes: Column, nanoseconds: Column) -> Column:
    """`async_orch.logs.bandwidth_mb_per_s`; 2**53 bytes, the most a record can state, times 1000 fit 64 bits."""
    known = (nbytes != MISSING) & (nanoseconds != MISSING) & (nanoseconds != 0)
    return np.where(known, np.where(known, nbytes, 0) * 1000 // np.where(known, nanoseconds, 1), MISSING)
