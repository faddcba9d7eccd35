"""What only the order of a run's steps tells: the time from step to step, and when the device had nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from async_orch.analysis._columns import Rows
from async_orch.analysis._table import MISSING, Column

__all__ = ["device_time", "step_intervals"]


def step_intervals(groups: Sequence[Rows]) -> list[Column]:
    """For each group of one run, the times from the end of the step before (of any group) to a step's end.

    The first step of a run has none, so a group gives at most as many values as it has steps.
    """
    end = np.concatenate([rows.figure("end_ns") for rows in groups])
    group = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    known = end != MISSING
    end, group = end[known], group[known]
    if np.any(end[1:] < end[:-1]):
        order = np.argsort(end, kind="stable")
        end, group = end[order], group[order]
    interval, group = np.diff(end), group[1:]
    return [interval[group == index] for index in range(len(groups))]


def device_time(groups: Sequence[Rows]) -> tuple[int, int] | None:
    """A run's device window, first kernel's start to last one's end, and the time in it that kernels ran, in ns.

    Kernels that overlap count once. None for fewer than two kernels: one fills its own window.
    """
    start = np.concatenate([rows.figure("device_start_ns") for rows in groups])
    length = np.concatenate([rows.figure("device_ns") for rows in groups])
    known = (start != MISSING) & (length != MISSING)
    start, length = start[known], length[known]
    if len(start) < 2:
        return None
    order = np.argsort(start, kind="stable")
    start, length = start[order], length[order]
    end = np.maximum.accumulate(start + length)
    covered_until = np.concatenate((start[:1], end[:-1]))
    busy = np.maximum(end - np.maximum(start, covered_until), 0)
    return int(end[-1] - start[0]), int(busy.sum())
