"""Percentiles by nearest rank: the p-th percentile of n sorted values is the one at rank ceil(p x n / 100).

It is always a value that occurred, so a percentile of nanoseconds is a whole number of nanoseconds, equal to what
a plain loop over the same log finds, and it can be looked up in the log. Of an even count, p50 is the lower
of the two values in the middle. For bandwidths as for durations, p99 is the value that 99 of 100 steps do not
exceed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Distribution", "distribution", "exact_sum", "rank_index"]


@dataclass(frozen=True, slots=True)
class Distribution:
    """How a figure is distributed over `count` steps (at least one), in the figure's own unit."""

    count: int
    min: int
    p50: int
    p90: int
    p99: int
    max: int
    sum: int

    @property
    def mean(self) -> float:
        """Arithmetic mean."""
        return self.sum / self.count


def rank_index(percent: int, count: int) -> int:
    """Index, from 0, of a percentile (1 to 100) among `count` sorted values, by nearest rank."""
    return (percent * count + 99) // 100 - 1


def distribution(values: npt.NDArray[np.int64], *, is_scratch: bool = False) -> Distribution | None:
    """Describe `values`; None if there are none. `is_scratch`: they may be left in another order."""
    count = len(values)
    if count == 0:
        return None
    least, most = int(values.min()), int(values.max())
    if least == most:
        return Distribution(count, least, least, least, least, least, least * count)
    total = _sum(values, least, most)
    placed = values if is_scratch else values.copy()
    found: list[int] = []
    first = 0
    for percent in (50, 90, 99):
        # One rank after the other, each among the values above the last: numpy has no fast way for several at once.
        rank = rank_index(percent, count)
        if rank >= first:
            placed[first:].partition(rank - first)
            first = rank + 1
        found.append(int(placed[rank]))
    p50, p90, p99 = found
    return Distribution(count=count, min=least, p50=p50, p90=p90, p99=p99, max=most, sum=total)


def exact_sum(values: npt.NDArray[np.int64]) -> int:
    """The sum as a Python integer, also where it does not fit 64 bits."""
    return _sum(values, int(values.min()), int(values.max())) if len(values) else 0


def _sum(values: npt.NDArray[np.int64], least: int, most: int) -> int:
    if max(abs(least), abs(most)) * len(values) < 2**63:
        return int(values.sum())
    # Sums of the upper and lower half of each value cannot overflow for fewer than 2**31 values.
    return (int(np.sum(values >> 32)) << 32) + int(np.sum(values & 0xFFFFFFFF))
