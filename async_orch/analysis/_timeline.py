"""What only the order of a run's steps tells: the time from step to step, and when the device had nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from async_orch.analysis._columns import JoinedRows, Rows, chosen
from async_orch.analysis._fields import MISSING, Column

__all__ = ["device_time", "step_intervals"]


def step_intervals(groups: Sequence[Rows]) -> list[Column]:
    """For each group of one run, the times from the end of the step before (of any group) to a step's end.

    The first step of a run has none, so a group gives at most as many values as it has steps.
    """
    end = JoinedRows(groups).figure("end_ns")
    group = np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
    known = end != MISSING
    end, group = chosen(end, known), chosen(group, known)
    if np.any(end[1:] < end[:-1]):
        order = np.argsort(end, kind="stable")
        end, group = end[order], group[order]
    interval, group = np.diff(end), group[1:]
    return [interval[group == index] for index in range(len(groups))]


def device_time(groups: Sequence[Rows]) -> tuple[int, int] | None:
    """A run's device window, first kernel's start to last one's end, and the time in it that kernels ran, in ns.

    Kernels that overlap count once. None for fewer than two kernels: one fills its own window.
    """
    start = JoinedRows(groups).figure("device_start_ns")
    length = JoinedRows(groups).figure("device_ns")
    known = (start != MISSING) & (length != MISSING)
    start, length = chosen(start, known), chosen(length, known)
    if len(start) < 2:
        return None
    if np.any(start[1:] < start[:-1]):
        order = np.argsort(start, kind="stable")
        start, length = start[order], length[order]
    end = start + length
    if np.any(end[1:] < end[:-1]):
        end = np.maximum.accumulate(end)
    busy_ns = int(length[0] + np.maximum(end[1:] - np.maximum(start[1:], end[:-1]), 0).sum())
    return int(end[-1] - start[0]), busy_ns
