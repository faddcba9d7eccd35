"""How close a run comes to the rate that its slowest resource allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from async_orch.analysis._columns import Rows, known_of
from async_orch.analysis._fields import Column
from async_orch.analysis._percentiles import exact_sum

__all__ = ["Overlap", "Workers", "overlap_of", "workers_of"]

Workers = int
"""Threads that build; 0: builds run on the loop's thread, with launch and retire."""

_LOOP_PARTS: Final = ("alloc_ns", "feed_ns", "launch_ns", "retire_ns")
_LABELS: Final = {
    "orch_ns": "build",
    "alloc_ns": "allocation",
    "copy_ns": "copy",
    "feed_ns": "feed",
    "launch_ns": "launch",
    "d2d_ns": "device",
    "device_ns": "device",
    "d2h_ns": "device",
    "retire_ns": "retire",
}


@dataclass(frozen=True, slots=True)
class Overlap:
    """A run's rate against the bound of it, from the means of its warm steps.

    ``resources`` gives the work of a mean step on each thing that works on one step at a time, in ns, floored:
    ``loop`` (the event loop's thread), ``builders`` (their threads together), ``copy stream`` and ``compute stream``.
    No pipeline can be faster than the largest, ``bound_ns``. ``measured_ns`` is the mean time from step to step,
    ``efficiency`` bound over measured. ``critical`` is the resource that bounds, ``critical_stage`` the stage that
    takes most of it.
    """

    steps: int
    measured_ns: int
    bound_ns: int
    efficiency: float
    critical: str
    critical_stage: str
    resources: dict[str, int]


def workers_of(opened: dict[str, Any] | None) -> Workers:
    """Build threads of a run by its ``orchestrator.opened``; inline where that is not in the log."""
    config = None if opened is None else opened.get("config")
    if not isinstance(config, dict) or config.get("build_in") not in ("thread", "process"):
        return 0
    count = config.get("build_workers")
    return count if isinstance(count, int) and 0 < count <= 4096 else 1


def overlap_of(rows: Rows, intervals: Column, workers: Workers) -> Overlap | None:
    """Judge steps of one run; None where a resource or the time from step to step is not known."""
    means = {name: _mean(rows, name) for name in _LABELS}
    build, copy, device = means["orch_ns"], means["copy_ns"], means["device_ns"]
    if len(intervals) == 0 or build is None or device is None:
        return None
    resources: dict[str, dict[str, float]] = {
        "loop": {name: means[name] or 0.0 for name in _LOOP_PARTS},
        "copy stream": {"copy_ns": copy or 0.0},
        "compute stream": {name: means[name] or 0.0 for name in ("d2d_ns", "device_ns", "d2h_ns")},
    }
    if workers:
        resources["builders"] = {"orch_ns": build / workers}
    else:
        resources["loop"]["orch_ns"] = build
    loads = {name: sum(parts.values()) for name, parts in resources.items()}
    critical = max(loads, key=lambda name: loads[name])
    measured = exact_sum(intervals) / len(intervals)
    if loads[critical] <= 0 or measured <= 0:
        return None
    parts = resources[critical]
    return Overlap(
        steps=len(intervals),
        measured_ns=int(measured),
        bound_ns=int(loads[critical]),
        efficiency=loads[critical] / measured,
        critical=critical,
        critical_stage=_LABELS[max(parts, key=lambda name: parts[name])],
        resources={name: int(load) for name, load in loads.items()},
    )


def _mean(rows: Rows, name: str) -> float | None:
    """The mean over the steps that have the figure; None if none has it."""
    total = count = 0
    for part in rows.parts():
        known = known_of(part.figure(name))
        total += exact_sum(known)
        count += len(known)
    return total / count if count else None
