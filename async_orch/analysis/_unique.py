"""One record a step: the first."""

from __future__ import annotations

import numpy as np

from async_orch.analysis._frames import StepFrame

__all__ = ["first_of_each_step", "missing_steps"]


def first_of_each_step(steps: StepFrame) -> tuple[StepFrame, int]:
    """The steps without further records of a (run, seq) that occurred before, and how many those were."""
    if len(steps) < 2:
        return steps, 0
    run = _run_numbers(steps)
    seq = steps.column("seq")
    order = np.lexsort((np.arange(len(seq)), seq, run)) if not _ordered(run, seq) else None
    if order is None:
        return steps, 0
    run, seq = run[order], seq[order]
    again = np.zeros(len(seq), np.bool_)
    again[1:] = (run[1:] == run[:-1]) & (seq[1:] == seq[:-1])
    count = int(np.count_nonzero(again))
    if not count:
        return steps, 0
    return steps.take(np.sort(order[~again])), count


def missing_steps(steps: StepFrame) -> int:
    """Steps between the first and the last ``seq`` of a run that have no record: steps without an end."""
    if not len(steps):
        return 0
    run, seq = _run_numbers(steps), steps.column("seq")
    if np.any(run[1:] < run[:-1]):
        order = np.argsort(run, kind="stable")
        run, seq = run[order], seq[order]
    starts = np.concatenate([[0], np.flatnonzero(run[1:] != run[:-1]) + 1])
    spans = np.maximum.reduceat(seq, starts) - np.minimum.reduceat(seq, starts)
    return int(sum(spans.tolist())) + len(starts) - len(seq)


def _run_numbers(steps: StepFrame) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    numbers: dict[str, int] = {}
    by_kind = np.array([numbers.setdefault(kind.run_id, len(numbers)) for kind in steps.kinds] or [0], np.int64)
    return by_kind[steps.kind]


def _ordered(run: np.ndarray[tuple[int], np.dtype[np.int64]], seq: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    """Whether the rows are in order of run and then of seq, without repetition."""
    same = run[1:] == run[:-1]
    return bool(np.all((run[1:] > run[:-1]) | (same & (seq[1:] > seq[:-1]))))
