"""When each stage of each step began and how long it took: the timeline that a log gives back."""

from __future__ import annotations

import heapq
from typing import Final

import numpy as np
import numpy.typing as npt

from async_orch.analysis._columns import added
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._frames import StepFrame

__all__ = ["DEVICE_STAGES", "STAGES", "in_use", "lanes", "stage_times"]

STAGES: Final = ("build", "acquire", "h2d", "launch", "device", "d2h", "retire")
"""Parts of a step's way, in their order. ``acquire`` is the wait for a slot, ``d2h`` the copy of the output."""

DEVICE_STAGES: Final = frozenset({"h2d", "device", "d2h"})
"""Stages whose times are read from the device's clock."""

_FIELDS: Final = {
    "build": ("build_start_ns", "build_ns"),
    "acquire": ("acquire_start_ns", "acquire_wait_ns"),
    "h2d": ("h2d_start_ns", "h2d_ns"),
    "launch": ("launch_start_ns", "launch_ns"),
    "device": ("device_start_ns", "device_ns"),
    "retire": ("retire_start_ns", "retire_ns"),
}


def stage_times(frame: StepFrame) -> dict[str, tuple[Column, Column]]:
    """Start and duration of each of `STAGES` in ns, each of shape (steps,); both are `MISSING` where one is."""
    times: dict[str, tuple[Column, Column]] = {}
    for stage, (start_field, length_field) in _FIELDS.items():
        start, length = frame.column(start_field), frame.column(length_field)
        known = (start != MISSING) & (length != MISSING)
        times[stage] = np.where(known, start, MISSING), np.where(known, length, MISSING)
    device_end = added(*times["device"])
    d2h = frame.column("d2h_ns")
    known = (device_end != MISSING) & (d2h != MISSING)
    times["d2h"] = np.where(known, device_end, MISSING), np.where(known, d2h, MISSING)
    return {stage: times[stage] for stage in STAGES}


def lanes(start: Column, length: Column) -> npt.NDArray[np.int64]:
    """The lane, from 0, that each interval fits into without touching another; -1 for a missing one.

    Intervals take the lowest free lane in the order of their starts.
    """
    lane = np.full(len(start), -1, np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    opened = 0
    known = np.flatnonzero(start != MISSING)
    for row in known[np.argsort(start[known], kind="stable")].tolist():
        begin, end = int(start[row]), int(start[row] + length[row])
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane[row] = heapq.heappop(free)
        else:
            lane[row] = opened
            opened += 1
        heapq.heappush(busy, (end, int(lane[row])))
    return lane


def in_use(begin: Column, end: Column) -> tuple[Column, Column]:
    """How many of the intervals contain each moment: the moments of change, and the count from there on."""
    known = (begin != MISSING) & (end >= begin)
    moments = np.concatenate([begin[known], end[known]])
    steps = np.repeat(np.array([1, -1], np.int64), int(np.count_nonzero(known)))
    order = np.argsort(moments, kind="stable")
    moments, counts = moments[order], np.cumsum(steps[order])
    last = np.ones(len(moments), np.bool_)
    last[:-1] = moments[1:] != moments[:-1]
    return moments[last], counts[last]
