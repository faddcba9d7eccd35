"""The figures of a group of steps by name, in columns, whichever form the steps were logged in."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from async_orch.analysis._clock import host_clock_kinds
from async_orch.analysis._fields import FIGURE_FIELDS, MISSING, Column, Kind
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._host_orch import estimate_allocation
from async_orch.logs import HostOrch

__all__ = ["JoinedRows", "LineRows", "Rows", "StepRows", "added", "between", "chosen", "copied_ns", "known_of"]


class Rows(Protocol):
    """Steps of one kind, with their figures in columns."""

    def __len__(self) -> int: ...

    def figure(self, name: str) -> Column:
        """A value a step, `MISSING` where a step does not have it; all of them, where no step of the kind does."""
        ...

    def parts(self) -> Iterator[Rows]:
        """The same steps some at a time, where they are held so: their figures stay in the processor's cache."""
        ...


# Figures that are a field of the record under the name that a host-orch line gives it.
_RENAMED: Final = {"orch_ns": "build_ns", "sm_ns": "h2d_sm_ns"}
_DEVICE: Final = frozenset({"device_start_ns", "device_ns", "bubble_ns", "starved_ns"})


class StepRows:
    """Figures of step records.

    ``copy_ns`` is the copy without allocation, 0 where nothing was copied, ``end_ns`` the end of retire, the
    ``..._wait_ns`` are times in the queues between the stages; the other names are those of `async_orch.logs.HostOrch`
    and `StepRecord`. What compares a moment on the host with one on the device is known only where both clocks are one,
    see `kinds_on_host_clock`: for the kinds that `on_host_clock` gives, by default those of which the frame shows it.
    """

    def __init__(self, frame: StepFrame, on_host_clock: Callable[[], frozenset[Kind]] | None = None) -> None:
        self.frame = frame
        # Asked once: what is true of a kind in all of a run need not show in a part of it.
        self._on_host_clock = on_host_clock or cache(partial(host_clock_kinds, frame))
        self._derived: dict[str, Callable[[], Column]] = {
            "copy_ns": lambda: copied_ns(self.frame),
            "graph_ns": lambda: added(self.figure("alloc_ns"), self.figure("h2d_graph_ns")),
            "h2d_ns": lambda: added(self.figure("graph_ns"), self.figure("sm_ns")),
            "bw": lambda: rate(self.figure("copy_nbytes"), self.figure("h2d_ns")),
            "sm_bw": lambda: rate(self._timed_sm_nbytes(), self.figure("sm_ns")),
            "end_ns": lambda: added(self.figure("accept_ns"), self.figure("total_ns")),
            "submit_wait_ns": lambda: between(self.figure("submit_ns"), self.figure("accept_ns")),
            "build_wait_ns": lambda: between(self.figure("accept_ns"), self.figure("build_start_ns")),
            "copy_wait_ns": lambda: self._if_comparable(between(self._acquired_ns(), self.figure("h2d_start_ns"))),
            "launch_wait_ns": lambda: between(self._acquired_ns(), self.figure("launch_start_ns")),
            "device_wait_ns": lambda: self._if_comparable(between(self._ready_ns(), self.figure("device_start_ns"))),
            "retire_wait_ns": lambda: self._if_comparable(between(self._output_ns(), self.figure("retire_start_ns"))),
            "device_end_ns": lambda: added(self.figure("device_start_ns"), self.figure("device_ns")),
        }

    def __len__(self) -> int:
        return len(self.frame)

    def figure(self, name: str) -> Column:
        """See `Rows.figure`."""
        if name in self._derived:
            return self._derived[name]()
        name = _RENAMED.get(name, name)
        if name not in FIGURE_FIELDS:
            return np.full(len(self), MISSING, np.int64)
        values = self.frame.column(name)
        if name in _DEVICE:
            timed = [kind.device_clock not in (None, "none") for kind in self.frame.kinds]
            return self._of_kinds(np.array(timed, np.bool_), values)
        return values

    def parts(self) -> Iterator[StepRows]:
        """See `Rows.parts`."""
        for frame in self.frame.parts():
            yield StepRows(frame, self._on_host_clock)

    def stated_h2d_ns(self) -> Column:
        """The record's own ``h2d_ns``: the copy without allocation."""
        return self.frame.column("h2d_ns")

    def _timed_sm_nbytes(self) -> Column:
        measured = [kind.h2d_split == "measured" for kind in self.frame.kinds]
        return self._of_kinds(np.array(measured, np.bool_), self.frame.column("sm_nbytes"))

    def _acquired_ns(self) -> Column:
        return added(self.figure("acquire_start_ns"), self.figure("acquire_wait_ns"))

    def _ready_ns(self) -> Column:
        """When the kernels could have started: launched, and their image there."""
        launched, copied = self.figure("launch_start_ns"), added(self.figure("h2d_start_ns"), self.figure("copy_ns"))
        return np.where(launched == MISSING, MISSING, np.maximum(launched, copied))

    def _output_ns(self) -> Column:
        d2h = self.figure("d2h_ns")
        return added(self.figure("device_end_ns"), np.where(d2h == MISSING, 0, d2h))

    def _if_comparable(self, values: Column) -> Column:
        """Times from a moment on the host to one on the device, or back: of steps for which both clocks are one."""
        kinds = self._on_host_clock()
        return self._of_kinds(np.array([kind in kinds for kind in self.frame.kinds] or [False]), values)

    def _of_kinds(self, wanted: npt.NDArray[np.bool_], values: Column) -> Column:
        """The values of steps of the kinds that are `wanted`, shape (kinds,); the column itself if all are."""
        return values if wanted.all() else np.where(wanted[self.frame.kind], values, MISSING)


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


class LineRows:
    """Figures of ``host-orch:`` lines.

    ``alloc_ns``, ``copy_ns`` (the copy without allocation) and ``graph_nbytes`` are estimates, see
    `estimate_allocation`. ``sm_least_nbytes`` and ``sm_most_nbytes`` bound the bytes of the task table, which are not
    on the line.
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

    def figure(self, name: str) -> Column:
        """See `Rows.figure`; ``bw`` is computed from the line's other figures, and as printed where it cannot be."""
        stated = self._table.column
        match name:
            case "bw":
                computed = rate(stated("copy_nbytes"), stated("h2d_ns"))
                return np.where(computed == MISSING, stated("bw"), computed)
            case "sm_least_nbytes":
                return self._sm_nbytes(0)
            case "sm_most_nbytes":
                return self._sm_nbytes(1)
            case _:
                return stated(name)

    def parts(self) -> Iterator[LineRows]:
        """See `Rows.parts`."""
        yield self

    def _sm_nbytes(self, more: int) -> Column:
        """The bytes for which ``floor(bytes x 1000 / sm_ns)`` is `sm_bw`, from ceil(sm_bw x sm_ns / 1000) on."""
        sm_bw, sm_ns = self._table.column("sm_bw").tolist(), self._table.column("sm_ns").tolist()
        copied = self._table.column("copy_nbytes").tolist()
        found = np.full(len(self), MISSING, np.int64)
        for row, (mb_per_s, nanoseconds, most) in enumerate(zip(sm_bw, sm_ns, copied, strict=True)):
            if mb_per_s == MISSING or nanoseconds in (MISSING, 0):
                continue
            nbytes = -(-(mb_per_s + more) * nanoseconds // 1000) - more
            found[row] = min(nbytes, 2**62 if most == MISSING else most)
        return found


class JoinedRows:
    """The rows of several runs as one."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def figure(self, name: str) -> Column:
        """See `Rows.figure`."""
        parts = [part.figure(name) for part in self._parts]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def parts(self) -> Iterator[Rows]:
        """See `Rows.parts`."""
        for rows in self._parts:
            yield from rows.parts()


def copied_ns(steps: StepFrame) -> Column:
    """How long each step's copy took: 0 where it had nothing to copy, which no clock has measured."""
    values = steps.column("h2d_ns")
    missing = values == MISSING
    if not missing.any():
        return values
    return np.where(missing & (steps.column("copy_nbytes") == 0), 0, values)


def known_of(values: Column) -> Column:
    """Those that are not missing; the column itself if none is."""
    known = values != MISSING
    return values if known.all() else values[known]


def chosen(values: Column, mask: npt.NDArray[np.bool_]) -> Column:
    """Those where the mask is true; the column itself if it is true everywhere."""
    return values if mask.all() else values[mask]


def added(first: Column, second: Column) -> Column:
    """The sum of two columns, missing where one of them is."""
    known = _both(first, second)
    if known.all():
        return first + second
    return np.where(known, np.where(known, first, 0) + np.where(known, second, 0), MISSING)


def between(first: Column, second: Column) -> Column:
    """The time from `first` to `second`, missing where one of them is, and where it would be negative."""
    known = _both(first, second)
    known &= second >= first
    if known.all():
        return second - first
    return np.where(known, np.where(known, second, 0) - np.where(known, first, 0), MISSING)


def rate(nbytes: Column, nanoseconds: Column) -> Column:
    """`async_orch.logs.bandwidth_mb_per_s`; 2**53 bytes, the most a record can state, times 1000 fit 64 bits."""
    known = _both(nbytes, nanoseconds) & (nanoseconds != 0)
    return np.where(known, np.where(known, nbytes, 0) * 1000 // np.where(known, nanoseconds, 1), MISSING)


def _both(first: Column, second: Column) -> npt.NDArray[np.bool_]:
    known: npt.NDArray[np.bool_] = (first != MISSING) & (second != MISSING)
    return known
