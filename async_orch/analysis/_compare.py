"""What changed between two logs, and whether the difference is more than chance.

The interval of a change is a percentile bootstrap: both logs are resampled, the statistic is taken of each pair of
samples, and the middle 95 % of the ratios are the interval. A percentile of a resample is one of the values, at a rank
that follows from a Beta distribution (the distribution of an order statistic of uniform numbers), so a resample costs
one random number however long the log is. Steps count as independent of each other; where slow steps come in spells,
the true interval is wider.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from async_orch.analysis._columns import JoinedRows, Rows
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._figures import SPECS, Spec
from async_orch.analysis._log_frames import LogFrames
from async_orch.analysis._percentiles import rank_index
from async_orch.analysis._summary import GroupName, RunPart, step_parts

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
    fewer than five steps; ``high`` is infinite where a may as well be 0. ``word`` says which way it went: only where
    the whole interval, and the ratio by the least change asked for, lie on one side of 1. Times and rates are
    ``faster`` or ``slower``, sizes ``more`` or ``less``.
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
    """Cold, warm or unmarked steps of both logs; without changes where only one log has such steps.

    ``mode`` and ``program`` tell groups apart where a log has several of them; where each log has one, they are None
    and the two are compared whatever they are called.
    """

    name: GroupName
    mode: str | None
    program: str | None
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
    repeatable. Raises `ValueError` for a `least_change` that is negative or not finite.
    """
    if not math.isfinite(least_change) or least_change < 0:
        raise ValueError(f"least_change={least_change!r} must be a finite part from 0, such as 0.01 for 1 %")
    rng = np.random.default_rng(seed)
    first, second = step_parts(a), step_parts(b)
    by_mode = any(len({mode for mode, _ in log}) > 1 for log in (first, second))
    by_program = any(len({part.program for _, part in log}) > 1 for log in (first, second))
    one, other = (_joined(log, by_mode=by_mode, by_program=by_program) for log in (first, second))
    for log, frames in ((one, a), (other, b)):
        if len(frames.host_orch):
            log["unmarked", None, None] = frames.host_orch, np.empty(0, np.int64)
    groups: list[GroupComparison] = []
    for key in sorted(one.keys() | other.keys(), key=lambda key: (_ORDER.index(key[0]), key[1] or "", key[2] or "")):
        (rows_a, step_ns_a), (rows_b, step_ns_b) = one.get(key, _NOTHING), other.get(key, _NOTHING)
        changes: list[Change] = []
        for spec in SPECS if len(rows_a) and len(rows_b) else ():
            whole = spec.name == "step_ns"
            values_a = step_ns_a if whole else rows_a.figure(spec.name)
            values_b = step_ns_b if whole else rows_b.figure(spec.name)
            changes += _changes(spec, values_a, values_b, least_change, rng)
        groups.append(GroupComparison(*key, len(rows_a), len(rows_b), tuple(changes)))
    return Comparison(tuple(groups))


_ORDER: Final[tuple[GroupName, ...]] = ("cold", "warm", "unmarked")
_NOTHING: Final[tuple[Rows, Column]] = JoinedRows([]), np.empty(0, np.int64)
_Key: TypeAlias = tuple[GroupName, str | None, str | None]


def _joined(
    parts: list[tuple[str | None, RunPart]], *, by_mode: bool, by_program: bool
) -> dict[_Key, tuple[Rows, Column]]:
    """The parts of all runs, joined where nothing tells them apart."""
    found: dict[_Key, list[RunPart]] = {}
    for mode, part in parts:
        key = (part.name, mode if by_mode else None, part.program if by_program else None)
        found.setdefault(key, []).append(part)
    return {
        key: (JoinedRows([part.rows for part in of_key]), np.concatenate([part.step_ns for part in of_key]))
        for key, of_key in found.items()
    }


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
            low, high = _middle(ratios)
        word = _word(spec, value_a, value_b, ratio, low, high, least_change)
        found.append(Change(spec.name, spec.unit, statistic, value_a, value_b, ratio, low, high, word))
    return found


def _middle(ratios: npt.NDArray[np.float64]) -> tuple[float, float]:
    """What bounds the middle of the ratios that are any."""
    tail = (1 - _CONFIDENCE) / 2
    # Between a number and infinity, what a sample of nothing but zeros gives, there is nothing to interpolate.
    method: Literal["linear", "inverted_cdf"] = "inverted_cdf" if bool(np.isinf(ratios).any()) else "linear"
    low, high = np.nanquantile(ratios, [tail, 1 - tail], method=method).tolist()
    return low, high


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
