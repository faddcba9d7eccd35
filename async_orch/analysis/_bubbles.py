"""The times in which the device had nothing to do, and what it waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from async_orch.analysis._clock import host_clock
from async_orch.analysis._fields import MISSING
from async_orch.analysis._frames import StepFrame

__all__ = ["Bubble", "longest_bubbles"]

_FIELDS = (
    "seq",
    "bubble_ns",
    "device_start_ns",
    "accept_ns",
    "build_start_ns",
    "build_ns",
    "acquire_start_ns",
    "acquire_wait_ns",
    "h2d_start_ns",
    "h2d_ns",
    "launch_start_ns",
    "launch_ns",
)


@dataclass(frozen=True, slots=True)
class Bubble:
    """The device's idle time before step ``seq``: ``bubble_ns`` long, until ``end_ns``.

    ``cause`` is what took most of it (``parts``, in ns, may overlap): ``caller`` (the step was not accepted yet),
    ``queue`` (accepted, its build not begun), ``build``, ``slot`` (the wait for one), ``copy``, ``launch``, or
    ``hand-over`` for the rest. It is None where device times are not on the host's clock.
    """

    seq: int
    end_ns: int
    bubble_ns: int
    cause: str | None
    parts: dict[str, int]


def longest_bubbles(run: StepFrame, count: int = 15) -> tuple[Bubble, ...]:
    """The longest bubbles of one run, longest first."""
    bubble, start = run.column("bubble_ns"), run.column("device_start_ns")
    rows = np.flatnonzero((bubble != MISSING) & (bubble > 0) & (start != MISSING))
    rows = rows[np.argsort(-bubble[rows], kind="stable")][:count]
    chosen = run.take(rows)
    on_host = host_clock(run)[rows]
    columns = {name: chosen.column(name).tolist() for name in _FIELDS}
    found = []
    for row in range(len(rows)):
        step = {name: values[row] for name, values in columns.items()}
        end = step["device_start_ns"]
        begin = end - step["bubble_ns"]
        parts = _parts(step, begin, end) if on_host[row] else {}
        cause = max(parts, key=lambda part: parts[part]) if parts else None
        found.append(Bubble(step["seq"], end, step["bubble_ns"], cause, parts))
    return tuple(found)


def _parts(step: dict[str, int], begin: int, end: int) -> dict[str, int]:
    def inside(first: int, last: int) -> int:
        return 0 if MISSING in (first, last) else max(0, min(last, end) - max(first, begin))

    def stage(name: str, length: str) -> int:
        first, size = step[name], step[length]
        return 0 if MISSING in (first, size) else inside(first, first + size)

    parts = {
        "caller": inside(begin, step["accept_ns"]),
        "queue": inside(step["accept_ns"], step["build_start_ns"]),
        "build": stage("build_start_ns", "build_ns"),
        "slot": stage("acquire_start_ns", "acquire_wait_ns"),
        "copy": stage("h2d_start_ns", "h2d_ns"),
        "launch": stage("launch_start_ns", "launch_ns"),
    }
    parts["hand-over"] = max(0, end - begin - sum(parts.values()))
    return {name: length for name, length in parts.items() if length}
