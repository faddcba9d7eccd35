"""What changed between two logs, and whether the difference is more than chance.

The interval of a change is a percentile bootstrap: both logs are resampled, the statistic is taken of each pair of
samples, and the middle 95 % of the ratios are the interval. A percentile of a resample is one of the values, at a rank
that follows from a Beta distribution (the distribution of an order statistic of uniform numbers), so a resample costs
one random number however long the log is. Steps count as independent of each other; where slow steps come in spells,
the true interval is wider.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from async_orch.analysis._figures import SPECS, Spec
from async_orch.analysis._percentiles import rank_index
from async_orch.analysis._scan import LogFrames
from async_orch.analysis._summary import GroupName, grouped
from async_orch.analysis._table import MISSING, Column

__all__ = ["Change", "Comparison", "GroupComparison", "Word", "compare"]

Word = Literal["faster", "slower", "more", "less", "no difference shown"]

_RESAMPLES: Final = 4000
_CONFIDENCE: Final = 0.95
_STATISTICS: Final = (("p50", 50), ("p99", 99))
_LEAST_FOR_INTERVAL: Final = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One statistic of one figure in both logs, in the figure's unit.

    ``ratio`` is b / a, None where a is 0; ``low`` and ``high`` bound it with 95 % confidence, None where a log has
    fewer than five steps. ``word`` says which way it went: only where the whole interval, and the ratio by the least
    change asked for, lie on one side of 1. Times and rates are ``faster`` or ``slower``, sizes ``more`` or ``less``.
    """

    figure: str
    unit: str
    statistic: str
    a: int
    b: int
    ratio: float | None
    low: float | None
    high: float | None
    word: Word


@dataclass(frozen=True, slots=True)
class GroupComparison:
    """Cold, warm or unmarked steps of both logs; without changes where only one log has such steps."""

    name: GroupName
    steps_a: int
    steps_b: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two logs side by side, groups apart."""

    groups: tuple[GroupComparison, ...]


def compare(a: LogFrames, b: LogFrames, *, least_change: float = 0.01, seed: int = 0) -> Comparison:
    """Compare two logs figure by figure.

    A change of less than `least_change` (a part of one) counts as none, however sure. `seed` makes the intervals
    repeatable.
    """
    rng = np.random.default_rng(seed)
    first, second = grouped(a), grouped(b)
    groups: list[GroupComparison] = []
    for name in ("cold", "warm", "unmarked"):
        if name not in first and name not in second:
            continue
        one, other = first.get(name), second.get(name)
        changes: list[Change] = []
        if one is not None and other is not None:
            for spec in SPECS:
                values = [
                    intervals if spec.name == "step_ns" else rows.figure(spec.name) for rows, intervals in (one, other)
                ]
                changes += _changes(spec, values[0], values[1], least_change, rng)
        groups.append(GroupComparison(name, len(one[0]) if one else 0, len(other[0]) if other else 0, tuple(changes)))
    return Comparison(tuple(groups))


def _changes(spec: Spec, a: Column, b: Column, least_change: float, rng: np.random.Generator) -> list[Change]:
    a, b = np.sort(a[a != MISSING]), np.sort(b[b != MISSING])
    if not len(a) or not len(b):
        return []
    found = []
    for statistic, percent in _STATISTICS:
        value_a, value_b = int(a[rank_index(percent, len(a))]), int(b[rank_index(percent, len(b))])
        ratio = value_b / value_a if value_a > 0 else None
        low = high = None
        if ratio is not None and min(len(a), len(b)) >= _LEAST_FOR_INTERVAL:
            samples_a, samples_b = _resampled(a, percent, rng), _resampled(b, percent, rng)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios = samples_b / samples_a
            tail = (1 - _CONFIDENCE) / 2
            low, high = (float(bound) for bound in np.nanquantile(ratios, [tail, 1 - tail]))
        word = _word(spec, value_a, value_b, ratio, low, high, least_change)
        found.append(Change(spec.name, spec.unit, statistic, value_a, value_b, ratio, low, high, word))
    return found


def _resampled(ordered: Column, percent: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """The percentile of each of many resamples of `ordered`, by nearest rank."""
    count = len(ordered)
    rank = rank_index(percent, count) + 1
    uniform = rng.beta(rank, count - rank + 1, _RESAMPLES)
    return ordered[np.minimum((uniform * count).astype(np.int64), count - 1)].astype(np.float64)


def _word(
    spec: Spec, a: int, b: int, ratio: float | None, low: float | None, high: float | None, least_change: float
) -> Word:
    if ratio is None:
        # From nothing to something is a change of a size; a time that was 0 has no ratio to judge.
        return "more" if spec.unit == "B" and b > a else "no difference shown"
    if low is None or high is None or abs(ratio - 1) < least_change:
        return "no difference shown"
    if low > 1:
        grew = True
    elif high < 1:
        grew = False
    else:
        return "no difference shown"
    if spec.unit == "B":
        return "more" if grew else "less"
    return "slower" if grew == (spec.unit == "ns") else "faster"
