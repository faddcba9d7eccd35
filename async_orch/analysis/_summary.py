"""From frames to figures: one group of steps each for cold, warm and unmarked, and one entry a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from async_orch.analysis._at_p50 import h2d_at_p50, sm_nbytes_range
from async_orch.analysis._clock import host_clock_kinds
from async_orch.analysis._columns import JoinedRows, Rows, StepRows
from async_orch.analysis._distributions import distributions
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._figures import FIGURES, LINE_FIGURES
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._log_frames import LogFrames
from async_orch.analysis._overlap import Overlap, overlap_of, workers_of
from async_orch.analysis._percentiles import Distribution, distribution, exact_sum
from async_orch.analysis._pieces import Record
from async_orch.analysis._reading import Reading
from async_orch.analysis._scan import Scanner, read_frames
from async_orch.analysis._sources import Source
from async_orch.analysis._spans import PhaseSummary, SpanGroup, summarize_phases, summarize_spans
from async_orch.analysis._timeline import device_time, step_intervals
from async_orch.analysis._unique import missing_steps
from async_orch.analysis._verdict import Verdict, verdict_of
from async_orch.logs import HostOrch, StepRecord

__all__ = [
    "Analysis",
    "Group",
    "GroupName",
    "Run",
    "RunPart",
    "Summary",
    "analyze",
    "is_whole",
    "step_parts",
    "summarize",
    "summarize_frames",
]

GroupName = Literal["cold", "warm", "unmarked"]

_WHOLE_EVENTS = frozenset({"step.completed", "step.detached"})


@dataclass(frozen=True, slots=True)
class Group:
    """Steps of one kind, of one ``program`` of a run (None for lines, which do not name it).

    ``cold`` steps paid a one-time cost (``cold_reasons`` counts which), ``warm`` steps did not, ``unmarked`` are
    ``host-orch:`` lines, which do not say. ``figures`` holds a `Distribution` for each of `FIGURES` that at least
    one step has. ``h2d_at_p50`` is (H2D, graph, sm) in ns of the step whose H2D is the p50, None where it lacks
    one of them. ``sm_nbytes_range`` bounds the bytes of the task table of the line whose ``sm_bw`` is the p50: the
    line does not hold them, only what follows from its rounded rate. ``verdict`` is None where the figures for it
    are missing.
    """

    name: GroupName
    program: str | None
    steps: int
    cold_reasons: dict[str, int]
    figures: dict[str, Distribution]
    h2d_at_p50: tuple[int, int, int] | None
    sm_nbytes_range: tuple[int, int] | None
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an orchestrator on one device, as far as the log holds it.

    ``mode`` is None where the log lacks the run's ``orchestrator.opened``. ``steps``: terminal events of any kind.
    ``missing_steps``: gaps in ``seq``, steps whose end is not in the log. ``groups``: its cold and its warm steps, each
    program's apart.
    ``device_window_ns``: from the first kernel's start to the last one's end. ``device_busy_ns``: how long of that
    kernels ran. ``device_starved_ns``: how long of it the device waited for the caller. All are None unless two steps
    or more were timed. ``overlap``: its rate against the bound, None where that is not known.
    """

    run_id: str
    device: str
    mode: str | None
    steps: int
    missing_steps: int
    groups: tuple[Group, ...]
    device_window_ns: int | None
    device_busy_ns: int | None
    device_starved_ns: int | None
    overlap: Overlap | None

    @property
    def device_idle_share(self) -> float | None:
        """The part of the window, 0 to 1, in which no kernel ran; None if unknown or the window is empty."""
        if self.device_busy_ns is None or not self.device_window_ns:
            return None
        return 1 - self.device_busy_ns / self.device_window_ns

    @property
    def device_starved_share(self) -> float | None:
        """The part of the window, 0 to 1, in which the device waited for the caller; None if unknown."""
        if self.device_starved_ns is None or not self.device_window_ns:
            return None
        return self.device_starved_ns / self.device_window_ns


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a log: ``events`` counts terminal events, ``groups`` are those of the only run, and of lines.

    Where there are several ``runs``, which may differ in mode and in size, each has its own groups and none join them.
    Groups are made of steps that went the whole way, ``step.completed`` and ``step.detached``. Failed and cancelled
    steps are counted, and their kernels keep the device busy; their other figures are left out. ``spans`` groups
    ``[STRACE]`` spans by name,
    ``rootless_invocations`` counts those whose root span is not in the log; ``phases`` sums ``bind phase=`` lines.
    """

    events: dict[str, int]
    groups: tuple[Group, ...]
    runs: tuple[Run, ...]
    spans: tuple[SpanGroup, ...] = ()
    rootless_invocations: int = 0
    phases: PhaseSummary | None = None

    def group(self, name: GroupName) -> Group | None:
        """The group of that name; None if there is none, or more than one: of several runs or programs."""
        found = [group for group in self.groups if group.name == name]
        return found[0] if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class Analysis:
    """What was read from one or more sources, and what it amounts to."""

    reading: Reading
    summary: Summary


def is_whole(record: Record) -> bool:
    """Whether a record's figures enter a group: a ``host-orch:`` line, or a step that ran to its end."""
    return isinstance(record, HostOrch) or (isinstance(record, StepRecord) and record.event in _WHOLE_EVENTS)


def summarize(records: Iterable[Record]) -> Summary:
    """Summarize records in any order, in one pass.

    It keeps at most 8 bytes for each integer field of a step, and nothing else that grows with the number of steps.
    A log as a whole is summarized several times faster by `analyze`.
    """
    scanner = Scanner()
    scanner.add(records)
    return summarize_frames(scanner.frames())


def summarize_frames(frames: LogFrames) -> Summary:
    """Summarize what `read_frames` gave."""
    steps = frames.steps
    events: Counter[str] = Counter()
    for kind, count in zip(steps.kinds, steps.counts().tolist(), strict=True):
        events[kind.event] += count
    runs = tuple(run.summary() for run in _runs(frames))
    of_steps = runs[0].groups if len(runs) == 1 else ()
    spans, rootless = summarize_spans(frames.spans)
    return Summary(
        events=dict(sorted((event, count) for event, count in events.items() if count)),
        groups=of_steps + _with_steps(_group("unmarked", None, frames.host_orch)),
        runs=runs,
        spans=spans,
        rootless_invocations=rootless,
        phases=summarize_phases(frames.phases),
    )


def step_parts(frames: LogFrames) -> list[tuple[str | None, RunPart]]:
    """The parts of every run, each with the run's mode, None where it is not known."""
    return [(run.mode, part) for run in _runs(frames) for part in run.parts]


def _runs(frames: LogFrames) -> Iterator[_RunParts]:
    """Every run that has a step, one at a time."""
    for (run_id, device), steps in frames.steps.split(lambda kind: (kind.run_id, kind.device)).items():
        yield _RunParts(steps, run_id, device, frames.opened.get(run_id))


@dataclass(frozen=True, slots=True)
class RunPart:
    """The cold or the warm steps of one program of a run, and the times from the end of any step before to theirs."""

    name: GroupName
    program: str
    rows: StepRows
    step_ns: Column

    def cold_reasons(self) -> dict[str, int]:
        """How many steps paid each one-time cost, most frequent first."""
        reasons: Counter[str] = Counter()
        for kind, count in zip(self.rows.frame.kinds, self.rows.frame.counts().tolist(), strict=True):
            if count and kind.cold_reason is not None:
                reasons[kind.cold_reason] += count
        return dict(reasons.most_common())

    def group(self) -> Group:
        """Its figures."""
        return _group(self.name, self.program, self.rows, self.step_ns, self.cold_reasons())


class _RunParts:
    """The steps of one run, divided."""

    def __init__(self, steps: StepFrame, run_id: str, device: str, opened: dict[str, object] | None) -> None:
        self.run_id, self.device, self.opened = run_id, device, opened
        self.frame = steps
        self.steps = len(self.frame)
        config = opened.get("config") if opened else None
        mode = config.get("mode") if isinstance(config, dict) else None
        self.mode = mode if isinstance(mode, str) else None
        # Clocks are one in all of a run or in none of it: cold steps alone may not show that they are two.
        on_host = cache(lambda: host_clock_kinds(steps))
        divided: list[tuple[GroupName, str, StepRows]] = []
        for program, steps_of in self.frame.split(lambda kind: kind.program).items():
            whole = steps_of.where(lambda kind: kind.event in _WHOLE_EVENTS)
            cold = whole.where(lambda kind: kind.cold_reason is not None)
            warm = whole.where(lambda kind: kind.cold_reason is None)
            divided.append(("cold", program, StepRows(cold, on_host)))
            divided.append(("warm", program, StepRows(warm, on_host)))
        intervals = step_intervals([rows for *_, rows in divided]) if divided else []
        self.parts = [
            RunPart(name, program, rows, step_ns)
            for (name, program, rows), step_ns in zip(divided, intervals, strict=True)
            if len(rows)
        ]

    def summary(self) -> Run:
        everything = StepRows(self.frame)
        window_ns, busy_ns = device_time([everything]) or (None, None)
        starved = everything.figure("starved_ns")
        starved = starved[starved != MISSING]
        # Where every step is cold, as in naive mode, those are the run.
        warm = [part for part in self.parts if part.name == "warm"] or self.parts
        rows: Rows = warm[0].rows if len(warm) == 1 else JoinedRows([part.rows for part in warm])
        step_ns = np.concatenate([np.empty(0, np.int64), *(part.step_ns for part in warm)])
        return Run(
            self.run_id,
            self.device,
            self.mode,
            self.steps,
            missing_steps(self.frame),
            tuple(part.group() for part in self.parts),
            window_ns,
            busy_ns,
            None if window_ns is None or not len(starved) else exact_sum(starved),
            overlap_of(rows, step_ns, workers_of(self.opened)),
        )


def _with_steps(*groups: Group) -> tuple[Group, ...]:
    return tuple(group for group in groups if group.steps)


def _group(
    name: GroupName,
    program: str | None,
    rows: Rows,
    step_ns: Column | None = None,
    cold_reasons: dict[str, int] | None = None,
) -> Group:
    figures = distributions(rows, LINE_FIGURES if name == "unmarked" else FIGURES[:-1])
    intervals = None if step_ns is None else distribution(step_ns)
    if intervals is not None:
        figures["step_ns"] = intervals
    return Group(
        name=name,
        program=program,
        steps=len(rows),
        cold_reasons=cold_reasons or {},
        figures=figures,
        h2d_at_p50=h2d_at_p50(rows),
        sm_nbytes_range=sm_nbytes_range(rows) if name == "unmarked" else None,
        verdict=verdict_of(rows, estimated=name == "unmarked", intervals=step_ns),
    )


def analyze(*sources: Source) -> Analysis:
    """Read and summarize logs: paths, or anything with ``read(size) -> bytes``; gzip and zstd as well as text.

    Raises `OSError` if one cannot be opened or read. Logs that hold nothing of use give a `Summary` without
    groups and events.
    """
    frames = read_frames(*sources)
    return Analysis(frames.reading, summarize_frames(frames))
