"""``[STRACE]`` spans and bind phases in columns, and what they amount to."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from async_orch.analysis._fields import Column
from async_orch.analysis._markers import BindPhase, Span
from async_orch.analysis._percentiles import Distribution, distribution

__all__ = [
    "CONTROL_PLANE",
    "PhaseFrame",
    "PhaseSummary",
    "SpanFrame",
    "SpanGroup",
    "summarize_phases",
    "summarize_spans",
]

CONTROL_PLANE: Final = frozenset({"host_orch", "graph_upload", "relocate", "sm_h2d", "arena_h2d"})
"""Phases of a bind that are the host's own work for a step: building the graph and bringing it to the device."""

_CLOSING_PHASE: Final = "arena_h2d"
_MAX_NAMES: Final = 1 << 16
_OTHER: Final = "(other names)"


class _Names:
    """Texts by number, in bounded memory: past the bound all further ones are one."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        found = self._numbers.get(text)
        if found is None:
            if len(self._numbers) >= _MAX_NAMES:
                text = _OTHER
            found = self._numbers.setdefault(text, len(self._numbers))
        return found

    def texts(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class SpanFrame:
    """Spans in columns of int64: pid, tid, inv, depth, name (a number into `names`), ts_ns, dur_ns, device_clock."""

    COLUMNS: Final = ("pid", "tid", "inv", "depth", "name", "ts_ns", "dur_ns", "device_clock")

    def __init__(self) -> None:
        self._values = array("q")
        self._names = _Names()
        self.cut = 0

    def add(self, span: Span) -> None:
        """Append a span."""
        number = self._names.number(span.name)
        self._values.extend(
            (span.pid, span.tid, span.inv, span.depth, number, span.ts_ns, span.dur_ns, span.device_clock)
        )
        self.cut += span.cut

    def __len__(self) -> int:
        return len(self._values) // len(self.COLUMNS)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of spans by number."""
        return self._names.texts()

    def column(self, name: str) -> Column:
        """A column, shape (spans,)."""
        return np.frombuffer(self._values, np.int64)[self.COLUMNS.index(name) :: len(self.COLUMNS)].copy()


class PhaseFrame:
    """Bind phases in columns of int64: name and thread (numbers), start_ns, dur_ns; in the order of the log."""

    COLUMNS: Final = ("name", "thread", "start_ns", "dur_ns")

    def __init__(self) -> None:
        self._values = array("q")
        self._names, self._threads = _Names(), _Names()

    def add(self, phase: BindPhase) -> None:
        """Append a phase."""
        self._values.extend(
            (self._names.number(phase.name), self._threads.number(phase.thread), phase.start_ns, phase.dur_ns)
        )

    def __len__(self) -> int:
        return len(self._values) // len(self.COLUMNS)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of phases by number."""
        return self._names.texts()

    def column(self, name: str) -> Column:
        """A column, shape (phases,)."""
        return np.frombuffer(self._values, np.int64)[self.COLUMNS.index(name) :: len(self.COLUMNS)].copy()


@dataclass(frozen=True, slots=True)
class SpanGroup:
    """Spans of one name: their depth in the tree, the clock they were taken on, and their durations in ns."""

    name: str
    depth: int
    device_clock: bool
    dur_ns: Distribution


@dataclass(frozen=True, slots=True)
class PhaseSummary:
    """Passes of binding a run.

    ``passes`` counts those that were closed (by ``arena_h2d``), ``open_phases`` the phases after the last close of
    their thread, which enter nothing. ``phases``: for each name the sum a pass, in ns; ``control_plane_ns``: the sum
    of `CONTROL_PLANE` a pass.
    """

    passes: int
    open_phases: int
    phases: dict[str, Distribution]
    control_plane_ns: Distribution | None


def summarize_spans(spans: SpanFrame) -> tuple[tuple[SpanGroup, ...], int]:
    """Groups by name, depth and clock, in the order of the tree; and how many invocations lack their root span."""
    if not len(spans):
        return (), 0
    name, depth, clock, length = (spans.column(key) for key in ("name", "depth", "device_clock", "dur_ns"))
    keys, group = np.unique(np.stack([depth, name, clock]), axis=1, return_inverse=True)
    names = spans.names
    groups = []
    for index in range(keys.shape[1]):
        known = distribution(length[group.reshape(-1) == index])
        if known is not None:
            groups.append(SpanGroup(names[keys[1, index]], int(keys[0, index]), bool(keys[2, index]), known))
    invocations = np.stack([spans.column("pid"), spans.column("inv")], axis=1)
    with_root = np.unique(invocations[depth == 0], axis=0)
    missing = len(np.unique(invocations, axis=0)) - len(with_root)
    return tuple(sorted(groups, key=lambda item: (item.name, item.depth))), missing


def summarize_phases(phases: PhaseFrame) -> PhaseSummary | None:
    """Sum the phases of each pass; None without any. Passes of different threads are kept apart."""
    if not len(phases):
        return None
    names = phases.names
    sums: dict[str, list[int]] = {}
    control: list[int] = []
    open_passes: dict[int, dict[str, int]] = {}
    open_counts: dict[int, int] = {}
    columns: Sequence[list[int]] = [phases.column(key).tolist() for key in ("name", "thread", "dur_ns")]
    for number, thread, length in zip(*columns, strict=True):
        current = open_passes.setdefault(thread, {})
        text = names[number]
        current[text] = current.get(text, 0) + length
        open_counts[thread] = open_counts.get(thread, 0) + 1
        if text == _CLOSING_PHASE:
            for key, value in current.items():
                sums.setdefault(key, []).append(value)
            control.append(sum(value for key, value in current.items() if key in CONTROL_PLANE))
            del open_passes[thread], open_counts[thread]
    found = {key: distribution(np.array(values, np.int64)) for key, values in sums.items()}
    return PhaseSummary(
        passes=len(control),
        open_phases=sum(open_counts.values()),
        phases={key: value for key, value in found.items() if value is not None},
        control_plane_ns=distribution(np.array(control, np.int64)),
    )
