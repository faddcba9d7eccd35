"""From records to figures: one group of steps each for cold, warm and unmarked, and one entry a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from async_orch.analysis._columns import MISSING, Column, LineRows, Rows, StepRows
from async_orch.analysis._lines import ByteSource
from async_orch.analysis._percentiles import Distribution, distribution, rank_index
from async_orch.analysis._reader import Reading, Record, read
from async_orch.analysis._timeline import Run, device_time, step_intervals
from async_orch.analysis._verdict import Verdict, verdict_of
from async_orch.logs import HostOrch, StepRecord

__all__ = ["Analysis", "FIGURES", "Group", "GroupName", "Summary", "analyze", "is_whole", "summarize"]

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
class Summary:
    """The figures of a log: ``events`` counts terminal events, ``groups`` are those that have steps.

    Groups are made of steps that went the whole way, ``step.completed`` and ``step.detached``. Failed and
    cancelled steps are counted, and their kernels keep the device busy; their other figures are left out.
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
    cold, warm, unfinished, unmarked = StepRows(), StepRows(), StepRows(), LineRows()
    events: Counter[str] = Counter()
    cold_reasons: Counter[str] = Counter()
    run_numbers: dict[tuple[str, str], int] = {}
    run_steps: Counter[int] = Counter()
    for record in records:
        if isinstance(record, StepRecord):
            run = run_numbers.setdefault((record.run_id, record.device), len(run_numbers))
            run_steps[run] += 1
            events[record.event] += 1
            if not is_whole(record):
                unfinished.add(record, run)
            elif record.cold_reason is None:
                warm.add(record, run)
            else:
                cold_reasons[record.cold_reason] += 1
                cold.add(record, run)
        else:
            unmarked.add(record)
    cold_ns, warm_ns = step_intervals([cold, warm])
    found = (
        _group("cold", cold, step_ns=cold_ns, cold_reasons=dict(cold_reasons.most_common())),
        _group("warm", warm, step_ns=warm_ns),
        _group("unmarked", unmarked),
    )
    device = device_time([cold, warm, unfinished], len(run_numbers))
    runs = tuple(
        Run(run_id, name, run_steps[number], *(device[number] or (None, None)))
        for (run_id, name), number in run_numbers.items()
    )
    return Summary(
        events=dict(sorted(events.items())), groups=tuple(group for group in found if group.steps), runs=runs
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
