"""What the report's page draws: a sample of the steps, and ranges and histograms of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from async_orch.analysis._clock import host_clock
from async_orch.analysis._columns import added, known_of
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._percentiles import distribution
from async_orch.analysis._stages import DEVICE_STAGES, STAGES, in_use, lanes, stage_times
from async_orch.analysis._units import duration

__all__ = ["RunCharts", "charts_of"]

_WINDOWS: Final = 200
_WINDOW_STEPS: Final = 40
_MAX_OUTLIERS: Final = 4000
_BUCKETS: Final = 1000
_BINS: Final = 60
_FOCUS_STEPS: Final = 12
_MAX_CHANGES: Final = 60_000

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class RunCharts:
    """The drawing data of one run, and what it leaves out.

    Times in ``data`` are ns after ``origin_ns``. ``drawn`` of ``steps`` steps are in it, and ``outliers_drawn`` of
    ``outliers``. ``device_drawn`` is false where device times are on a clock of their own.
    """

    data: dict[str, Any]
    origin_ns: int
    drawn: int
    steps: int
    outliers: int
    outliers_drawn: int
    device_drawn: bool


def charts_of(run: StepFrame, slots: int | None) -> RunCharts:
    """Everything to draw of one run; `slots` is the size of its ring, if known. Times are ns after its first moment."""
    run = run.take(np.argsort(run.column("seq"), kind="stable"))
    times = stage_times(run)
    comparable = bool(host_clock(run).all())
    drawn = {stage: times[stage] for stage in STAGES if comparable or stage not in DEVICE_STAGES}
    nothing = np.full(len(run), MISSING, np.int64)
    for stage in STAGES:
        drawn.setdefault(stage, (nothing, nothing))
    accept, end = run.column("accept_ns"), added(run.column("accept_ns"), run.column("total_ns"))
    starts = [values[values != MISSING] for values in (accept, *(start for start, _ in drawn.values()))]
    origin = min((int(values.min()) for values in starts if len(values)), default=0)
    ends = [_last(start, length) for start, length in drawn.values()]
    span = max(max([*ends, int(end.max(initial=0))]) - origin, 1)
    step_ns = _from_step_to_step(end)
    outliers = _outliers(step_ns, run)
    kept_outliers = outliers[:_MAX_OUTLIERS]
    rows = _sample(len(run), kept_outliers)
    data: dict[str, Any] = {
        "steps": _sampled(run, rows, drawn, origin),
        "span": span,
        "focus": _focus(run, drawn, origin, span),
        "slots": slots,
        "occupancy": _occupancy(run, rows, end, origin),
        "times": _ranges(run.column("seq"), step_ns),
        "marked": _marked(run, step_ns, kept_outliers),
        "first_seq": int(run.column("seq").min()),
        "last_seq": int(run.column("seq").max()),
        "histograms": _histograms(times, step_ns),
    }
    return RunCharts(data, origin, len(rows), len(run), len(outliers), len(kept_outliers), comparable)


def _last(start: Column, length: Column) -> int:
    known = start != MISSING
    return int((start[known] + length[known]).max()) if bool(known.any()) else 0


def _from_step_to_step(end: Column) -> Column:
    """For each step, the time from the end before its own; missing for the first."""
    found = np.full(len(end), MISSING, np.int64)
    known = np.flatnonzero(end != MISSING)
    order = known[np.argsort(end[known], kind="stable")]
    found[order[1:]] = np.diff(end[order])
    return found


def _outliers(step_ns: Column, run: StepFrame) -> Rows:
    """Steps far beyond p99 in their time, their bubble or their whole way; the farthest first."""
    far = np.zeros(len(run), np.float64)
    for values in (step_ns, run.column("bubble_ns"), run.column("total_ns")):
        known = distribution(values[values != MISSING])
        if known is None or known.max == known.p50:
            continue
        bound = known.p99 + 3 * (known.p99 - known.p50)
        excess = np.where(values > bound, values / max(known.p99, 1), 0.0)
        far = np.maximum(far, excess)
    rows = np.flatnonzero(far > 0)
    return rows[np.argsort(-far[rows], kind="stable")]


def _sample(count: int, outliers: Rows) -> Rows:
    """Rows to draw: all, or even windows of steps that follow each other, and each outlier with its neighbours."""
    if count <= _WINDOWS * _WINDOW_STEPS:
        return np.arange(count)
    begins = np.linspace(0, count - _WINDOW_STEPS, _WINDOWS).astype(np.intp)
    windows = (begins[:, None] + np.arange(_WINDOW_STEPS)[None, :]).ravel()
    around = (outliers[:, None] + np.arange(-1, 2)[None, :]).ravel()
    return np.unique(np.concatenate([windows, np.clip(around, 0, count - 1)]))


def _listed(values: Column, missing_from: Column | None = None, offset: int = 0) -> list[int | None]:
    gone = (values if missing_from is None else missing_from) == MISSING
    return [None if absent else value - offset for value, absent in zip(values.tolist(), gone.tolist(), strict=True)]


def _sampled(run: StepFrame, rows: Rows, drawn: dict[str, tuple[Column, Column]], origin: int) -> dict[str, Any]:
    chosen = run.take(rows)
    steps: dict[str, Any] = {
        "seq": chosen.column("seq").tolist(),
        "slot": _listed(chosen.column("slot")),
        "cold": chosen.texts("cold_reason"),
    }
    for stage in STAGES:
        start, length = (column[rows] for column in drawn[stage])
        lane = lanes(start, length)
        steps[f"{stage}_start"] = _listed(start, offset=origin)
        steps[stage] = _listed(length, start)
        steps[f"{stage}_lane"] = lane.tolist()
        steps[f"{stage}_lanes"] = int(lane.max(initial=0)) + 1
    return steps


def _focus(run: StepFrame, drawn: dict[str, tuple[Column, Column]], origin: int, span: int) -> list[int]:
    """The window that is shown first: some steps in the middle of the run."""
    if len(run) <= _FOCUS_STEPS:
        return [0, span]
    middle = len(run) // 2
    rows = slice(middle, middle + _FOCUS_STEPS)
    starts = [start[rows][start[rows] != MISSING] for start, _ in drawn.values()]
    ends = [(start[rows] + length[rows])[start[rows] != MISSING] for start, length in drawn.values()]
    first = min((int(values.min()) for values in starts if len(values)), default=origin)
    last = max((int(values.max()) for values in ends if len(values)), default=origin + span)
    return [first - origin, max(last - origin, first - origin + 1)]


def _occupancy(run: StepFrame, rows: Rows, end: Column, origin: int) -> dict[str, list[int]]:
    acquired = added(run.column("acquire_start_ns"), run.column("acquire_wait_ns"))
    acquired = np.where(run.column("slot") == MISSING, MISSING, acquired)
    moments, counts = in_use(acquired, end)
    if len(moments) > _MAX_CHANGES:
        # Whole where steps are drawn; elsewhere nothing is drawn above it either.
        near = np.sort(known_of(acquired[rows]))
        if len(near) > 1:
            place = np.searchsorted(near, moments)
            distance = moments - near[np.clip(place - 1, 0, len(near) - 1)]
            close = distance <= np.median(np.diff(near)) * 4
            moments, counts = moments[close], counts[close]
        moments, counts = moments[:_MAX_CHANGES], counts[:_MAX_CHANGES]
    return {"at": (moments - origin).tolist(), "count": counts.tolist()}


def _ranges(seq: Column, values: Column) -> dict[str, list[int]]:
    """Least, median and most of up to 1000 groups of steps that follow each other."""
    known = values != MISSING
    seq, values = seq[known], values[known]
    found: dict[str, list[int]] = {"seq": [], "min": [], "p50": [], "max": []}
    for part, of_part in zip(
        np.array_split(seq, min(_BUCKETS, max(len(seq), 1))),
        np.array_split(values, min(_BUCKETS, max(len(seq), 1))),
        strict=True,
    ):
        if len(part):
            found["seq"].append(int(part[len(part) // 2]))
            found["min"].append(int(of_part.min()))
            found["p50"].append(int(np.sort(of_part)[(len(of_part) - 1) // 2]))
            found["max"].append(int(of_part.max()))
    return found


def _marked(run: StepFrame, step_ns: Column, outliers: Rows) -> dict[str, list[Any]]:
    """Cold steps (the first thousand), and outliers. The first step of a run shows its time from acceptance to end."""
    reasons = run.texts("cold_reason")
    cold = [row for row, reason in enumerate(reasons) if reason is not None][:1000]
    shown = np.where(step_ns == MISSING, run.column("total_ns"), step_ns)
    rows = [row for row in dict.fromkeys([*cold, *outliers.tolist()]) if shown[row] != MISSING]
    return {
        "seq": run.column("seq")[rows].tolist() if rows else [],
        "ns": shown[rows].tolist() if rows else [],
        "why": [reasons[row] or "outlier" for row in rows],
    }


def _histograms(times: dict[str, tuple[Column, Column]], step_ns: Column) -> list[dict[str, Any]]:
    found = []
    for label, stage, values in (("step to step", "", step_ns), *((name, name, times[name][1]) for name in STAGES)):
        known = values[values != MISSING]
        summary = distribution(known)
        if summary is None or summary.max == 0:
            continue
        low, high = max(summary.min, 1), max(summary.max, 2)
        wide = high > 50 * low  # then each bin is a factor wide, not a distance
        edges = np.geomspace(low, high, _BINS + 1) if wide else np.linspace(summary.min, high, _BINS + 1)
        counts, _ = np.histogram(np.clip(known, edges[0], edges[-1]), edges)
        found.append(
            {
                "label": label + (" (logarithmic)" if wide else ""),
                "stage": stage,
                "steps": summary.count,
                "p50": duration(summary.p50),
                "p99": duration(summary.p99),
                "edges": [float(edge) for edge in edges],
                "counts": counts.tolist(),
            }
        )
    return found
