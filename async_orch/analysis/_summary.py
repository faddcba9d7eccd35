"""From records to figures: one group of steps each for cold, warm and unmarked, and one entry a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from async_orch.analysis._columns import MISSING, Column, JoinedRows, LineRows, Rows, StepRows
from async_orch.analysis._lines import ByteSource
from async_orch.analysis._percentiles import Distribution, distribution, rank_index
from async_orch.analysis._reader import Reading, Record, read
from async_orch.analysis._timeline import device_time, step_intervals
from async_orch.analysis._verdict import Verdict, verdict_of
from async_orch.logs import HostOrch, StepRecord

__all__ = ["Analysis", "FIGURES", "Group", "GroupName", "Run", "Summary", "analyze", "is_whole", "summarize"]

GroupName = Literal["cold", "warm", "unmarked"]

FIGURES: Final = (
    "orch_ns",
    "h2d_ns",
    "graph_ns",
    "sm_ns",
    "alloc_nbytes",
    "copy_nbytes",
    "bw",
    "sm_bw",
    "alloc_ns",
    "copy_ns",
    "device_ns",
    "bubble_ns",
    "total_ns",
    "step_ns",
)
"""Names of the figures of a group.

Those of a ``host-orch:`` line come first, see `async_orch.logs.HostOrch`; ``bw`` is always computed from the others.
The rest only step records have: ``alloc_ns``, ``copy_ns`` (the copy alone, so ``h2d_ns`` is their sum), the times of
`async_orch.logs.StepRecord`, and ``step_ns``, the time from the end of the step before to the end of this one.
"""

_LINE_FIGURES: Final = FIGURES[: FIGURES.index("alloc_ns")]


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of one kind.

    ``cold`` steps paid a one-time cost (``cold_reasons`` counts which), ``warm`` steps did not, ``unmarked`` are
    ``host-orch:`` lines, which do not say. ``figures`` holds a `Distribution` for each of `FIGURES` that at least
    one step has. ``h2d_at_p50`` is (H2D, graph, sm) in ns of the step whose H2D is the p50, None where it lacks
    one of them. ``verdict`` is None where the figures for it are missing.
    """

    name: GroupName
    steps: int
    cold_reasons: dict[str, int]
    figures: dict[str, Distribution]
    h2d_at_p50: tuple[int, int, int] | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an orchestrator on one device, as far as the log holds it.

    ``steps``: terminal events of any kind. ``groups``: its cold and its warm steps. ``device_window_ns``: from the
    first kernel's start to the last one's end. ``device_busy_ns``: how long of that kernels ran. Both are None unless
    two steps or more were timed.
    """

    run_id: str
    device: str
    steps: int
    groups: tuple[Group, ...]
    device_window_ns: int | None
    device_busy_ns: int | None

    @property
    def device_idle_share(self) -> float | None:
        """The part of the window, 0 to 1, in which no kernel ran; None if unknown or the window is empty."""
        if self.device_busy_ns is None or not self.device_window_ns:
            return None
        return 1 - self.device_busy_ns / self.device_window_ns


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a log: ``events`` counts terminal events, ``groups`` join the steps of all ``runs``.

    Where runs differ, in mode or in size, each run's own groups are the ones to look at. Groups are made of steps that
    went the whole way, ``step.completed`` and ``step.detached``. Failed and cancelled steps are counted, and their
    kernels keep the device busy; their other figures are left out.
    """

    events: dict[str, int]
    groups: tuple[Group, ...]
    runs: tuple[Run, ...]

    def group(self, name: GroupName) -> Group | None:
        """The group of that name, or None if it has no steps."""
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True, slots=True)
class Analysis:
    """What was read from one source, and what it amounts to."""

    reading: Reading
    summary: Summary


def is_whole(record: Record) -> bool:
    """Whether a record's figures enter a group: the step ran to its end, whether or not anyone wanted the result."""
    return isinstance(record, HostOrch) or record.event in {"step.completed", "step.detached"}


def summarize(records: Iterable[Record]) -> Summary:
    """Summarize step records and ``host-orch:`` lines, in any order, in one pass.

    It keeps 8 bytes for each of some 14 figures a step, and nothing else that grows with the number of steps.
    """
    runs: dict[tuple[str, str], _RunRows] = {}
    unmarked = LineRows()
    events: Counter[str] = Counter()
    for record in records:
        if not isinstance(record, StepRecord):
            unmarked.add(record)
            continue
        key = (record.run_id, record.device)
        rows = runs.get(key)
        if rows is None:
            rows = runs[key] = _RunRows()
        events[record.event] += 1
        if not is_whole(record):
            rows.unfinished.add(record)
        elif record.cold_reason is None:
            rows.warm.add(record)
        else:
            rows.cold_reasons[record.cold_reason] += 1
            rows.cold.add(record)
    run_summaries = tuple(_run(run_id, device, rows) for (run_id, device), rows in runs.items())
    single = len(run_summaries) == 1
    joined = run_summaries[0].groups if single else _with_steps(*_cold_and_warm(list(runs.values())))
    return Summary(
        events=dict(sorted(events.items())),
        groups=joined + _with_steps(_group("unmarked", unmarked)),
        runs=run_summaries,
    )


class _RunRows:
    def __init__(self) -> None:
        self.cold, self.warm, self.unfinished = StepRows(), StepRows(), StepRows()
        self.cold_reasons: Counter[str] = Counter()


def _run(run_id: str, device: str, rows: _RunRows) -> Run:
    parts = (rows.cold, rows.warm, rows.unfinished)
    window_ns, busy_ns = device_time(parts) or (None, None)
    return Run(run_id, device, sum(map(len, parts)), _with_steps(*_cold_and_warm([rows])), window_ns, busy_ns)


def _with_steps(*groups: Group) -> tuple[Group, ...]:
    return tuple(group for group in groups if group.steps)


def _cold_and_warm(runs: Sequence[_RunRows]) -> tuple[Group, Group]:
    intervals = [step_intervals((rows.cold, rows.warm)) for rows in runs]
    cold_reasons = sum((rows.cold_reasons for rows in runs), Counter[str]())
    nothing = np.empty(0, np.int64)
    return (
        _group(
            "cold",
            JoinedRows([rows.cold for rows in runs]),
            step_ns=np.concatenate([nothing, *(cold for cold, _ in intervals)]),
            cold_reasons=dict(cold_reasons.most_common()),
        ),
        _group(
            "warm",
            JoinedRows([rows.warm for rows in runs]),
            step_ns=np.concatenate([nothing, *(warm for _, warm in intervals)]),
        ),
    )


def _group(
    name: GroupName, rows: Rows, step_ns: Column | None = None, cold_reasons: dict[str, int] | None = None
) -> Group:
    figures: dict[str, Distribution] = {}
    for figure in _LINE_FIGURES if name == "unmarked" else FIGURES[:-1]:
        values = rows.column(figure)
        known = distribution(values[values != MISSING])
        if known is not None:
            figures[figure] = known
    intervals = None if step_ns is None else distribution(step_ns)
    if intervals is not None:
        figures["step_ns"] = intervals
    return Group(
        name=name,
        steps=len(rows),
        cold_reasons=cold_reasons or {},
        figures=figures,
        h2d_at_p50=_h2d_at_p50(rows),
        verdict=verdict_of(rows, estimated=name == "unmarked"),
    )


def _h2d_at_p50(rows: Rows) -> tuple[int, int, int] | None:
    h2d = rows.column("h2d_ns")
    known = np.flatnonzero(h2d != MISSING)
    if len(known) == 0:
        return None
    order = np.argsort(h2d[known], kind="stable")
    step = known[order[rank_index(50, len(known))]]
    graph, sm = int(rows.column("graph_ns")[step]), int(rows.column("sm_ns")[step])
    return None if MISSING in (graph, sm) else (int(h2d[step]), graph, sm)


def analyze(source: str | os.PathLike[str] | ByteSource) -> Analysis:
    """Read and summarize a log: a path, or anything with ``read(size) -> bytes``.

    Raises `OSError` if it cannot be opened or read. A log that holds nothing of use gives a `Summary` without
    groups and events.
    """
    reader = read(source)
    summary = summarize(reader)
    return Analysis(reader.reading, summary)
