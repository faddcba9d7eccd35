"""What metrics add up over step records: counts of outcomes, distributions of durations, idle time of the device."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator
from typing import Final, NamedTuple

from async_orch.logs import StepRecord

__all__ = ["BUCKETS_S", "STAGES", "Distribution", "StepTotals", "idle_ns", "stage_durations"]

BUCKETS_S: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
"""Upper bounds of the buckets of durations: from a step that does nothing to a prefill of a large model."""

_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in BUCKETS_S)

STAGES: Final = ("build", "acquire", "h2d", "launch", "device", "retire")
"""The stages that have a duration, and the device's own time, in the order of a step's way."""


def stage_durations(record: StepRecord) -> Iterator[tuple[str, int]]:
    """Each stage's name and duration in ns; without those that the step did not reach or nobody could time."""
    durations = (
        record.build_ns,
        record.acquire_wait_ns,
        record.h2d_ns,
        record.launch_ns,
        record.device_ns,
        record.retire_ns,
    )
    for stage, duration_ns in zip(STAGES, durations, strict=True):
        if duration_ns is not None:
            yield stage, duration_ns


def idle_ns(record: StepRecord) -> tuple[int, int]:
    """Idle time of the device before the step, and the part of it before the step was accepted; ns, never negative.

    A device with an inexact clock may report a bubble a little below zero.
    """
    bubble_ns = max(record.bubble_ns or 0, 0)
    return bubble_ns, min(record.starved_ns or 0, bubble_ns)


class Distribution:
    """Durations counted in buckets."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_NS) + 1)
        self.sum_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count a duration; a bound belongs to the bucket below it."""
        self.counts[bisect_left(_BOUNDS_NS, duration_ns)] += 1
        self.sum_ns += duration_ns

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of an upper bound in seconds and the count of durations up to it, ``+Inf`` last."""
        total, pairs = 0, []
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], self.counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs


class TotalsSnapshot(NamedTuple):
    """The sums at one moment; distributions as pairs of `Distribution.cumulative` and a sum in seconds."""

    steps: dict[str, int]
    idle_s: float
    starved_s: float
    durations: dict[str, tuple[list[tuple[str, float]], float]]
    stages: dict[str, tuple[list[tuple[str, float]], float]]


class StepTotals:
    """Adds up records on the writer's thread; any thread may take a snapshot."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[str, int] = dict.fromkeys(("completed", "failed", "cancelled", "detached"), 0)
        self._idle_ns = 0
        self._starved_ns = 0
        self._durations: dict[str, Distribution] = {}
        self._stages = {stage: Distribution() for stage in STAGES}

    def add(self, record: StepRecord) -> None:
        """Count a step. Durations are those of completed steps, so that failures do not look like fast ones."""
        outcome = record.event.partition(".")[2]
        idle, starved = idle_ns(record)
        with self._lock:
            self._steps[outcome] += 1
            self._idle_ns += idle
            self._starved_ns += starved
            if outcome != "completed":
                return
            if record.total_ns is not None:
                durations = self._durations.get(record.program)
                if durations is None:
                    durations = self._durations[record.program] = Distribution()
                durations.add(record.total_ns)
            for stage, duration_ns in stage_durations(record):
                self._stages[stage].add(duration_ns)

    def snapshot(self) -> TotalsSnapshot:
        """Everything as of now, consistent in itself."""
        with self._lock:
            return TotalsSnapshot(
                dict(self._steps),
                self._idle_ns / 1e9,
                self._starved_ns / 1e9,
                {name: (d.cumulative(), d.sum_ns / 1e9) for name, d in self._durations.items()},
                {name: (d.cumulative(), d.sum_ns / 1e9) for name, d in self._stages.items()},
            )
