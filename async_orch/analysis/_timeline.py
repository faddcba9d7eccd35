"""What only the order of steps tells: the time from step to step, and how long the device had nothing to do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from async_orch.analysis._columns import MISSING, Column, StepRows

__all__ = ["Run", "device_time", "step_intervals"]


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an orchestrator on one device, as far as the log holds it.

    ``steps``: terminal events of any kind. ``device_window_ns``: from the first kernel's start to the last
    one's end. ``device_busy_ns``: how long of that kernels ran. Both are None unless two steps or more were timed.
    """

    run_id: str
    device: str
    steps: int
    device_window_ns: int | None
    device_busy_ns: int | None

    @property
    def device_idle_share(self) -> float | None:
        """The part of the window, 0 to 1, in which no kernel ran; None if unknown or the window is empty."""
        if self.device_busy_ns is None or not self.device_window_ns:
            return None
        return 1 - self.device_busy_ns / self.device_window_ns


def step_intervals(groups: Sequence[StepRows]) -> list[Column]:
    """For each group, the times from the end of the step before (of any group, in the same run) to a step's end.

    The first step of a run has none, so a group gives at most as many values as it has steps.
    """
    if not any(len(rows) for rows in groups):
        return [np.empty(0, np.int64) for _ in groups]
    end = np.concatenate([rows.column("end_ns") for rows in groups])
    run = np.concatenate([rows.column("run") for rows in groups])
    group = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    known = (end != MISSING) & (run != MISSING)
    end, run, group = end[known], run[known], group[known]
    order = np.lexsort((end, run))
    end, run, group = end[order], run[order], group[order]
    interval = np.diff(end)
    same_run = np.diff(run) == 0
    return [interval[same_run & (group[1:] == index)] for index in range(len(groups))]


def device_time(groups: Sequence[StepRows], runs: int) -> list[tuple[int, int] | None]:
    """For each run, the device's window and the time in it that kernels ran, in ns; None for fewer than 2 steps.

    Kernels that overlap count once.
    """
    start = np.concatenate([rows.column("device_start_ns") for rows in groups])
    length = np.concatenate([rows.column("device_ns") for rows in groups])
    run = np.concatenate([rows.column("run") for rows in groups])
    known = (start != MISSING) & (length != MISSING) & (run != MISSING)
    start, length, run = start[known], length[known], run[known]
    order = np.lexsort((start, run))
    start, length, run = start[order], length[order], run[order]
    bounds = np.searchsorted(run, np.arange(runs + 1))
    return [
        _window_and_busy(start[first:last], length[first:last]) if last - first >= 2 else None
        for first, last in itertools.pairwise(bounds)
    ]


def _window_and_busy(start: Column, length: Column) -> tuple[int, int]:
    """Of kernels in order of their start: from the first start to the last end, and the union of the kernels."""
    end = np.maximum.accumulate(start + length)
    covered_until = np.concatenate((start[:1], end[:-1]))
    busy = np.maximum(end - np.maximum(start, covered_until), 0)
    return int(end[-1] - start[0]), int(busy.sum())
