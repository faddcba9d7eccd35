"""Step records whose figures cannot all be true: counted by kind, and the first few shown with their numbers.

The figures of such a step are taken as they stand; which of two that disagree is wrong cannot be known. Times of the
device are not held against the host's here, since their clock may be inexact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._shown import shown

__all__ = ["NO_CONTRADICTIONS", "StepContradictions", "step_contradictions"]

_MAX_SHOWN: Final = 5

_Broken: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepContradictions:
    """How many ``steps`` disagree with themselves, how often by kind (``kinds``), and the ``first`` few in words."""

    steps: int
    kinds: dict[str, int]
    first: tuple[str, ...]


NO_CONTRADICTIONS: Final = StepContradictions(0, {}, ())


@dataclass(frozen=True, slots=True)
class _Rule:
    """What cannot be: its kind, the fields that it looks at, and where it is so, given their columns."""

    kind: str
    fields: tuple[str, ...]
    broken: Callable[..., _Broken]


def _before(later: str, earlier: str) -> _Rule:
    return _Rule(f"{later} before {earlier}", (later, earlier), lambda after, before: after < before)


def _longer(part: str, whole: str) -> _Rule:
    return _Rule(f"{part} longer than {whole}", (part, whole), lambda first, second: first > second)


def _ends_late(start: str, length: str) -> _Rule:
    return _Rule(
        f"{start} + {length} after the step's end",
        (start, length, "accept_ns", "total_ns"),
        lambda begin, size, accept, total: begin + size > accept + total,
    )


_RULES: Final = (
    _before("accept_ns", "submit_ns"),
    _before("build_start_ns", "accept_ns"),
    _before("acquire_start_ns", "build_start_ns"),
    _before("launch_start_ns", "acquire_start_ns"),
    _before("retire_start_ns", "launch_start_ns"),
    _longer("build_ns", "total_ns"),
    _longer("acquire_wait_ns", "total_ns"),
    _longer("launch_ns", "total_ns"),
    _longer("retire_ns", "total_ns"),
    _ends_late("build_start_ns", "build_ns"),
    _ends_late("acquire_start_ns", "acquire_wait_ns"),
    _ends_late("launch_start_ns", "launch_ns"),
    _ends_late("retire_start_ns", "retire_ns"),
    _Rule(
        "h2d_graph_ns + h2d_sm_ns is not h2d_ns",
        ("h2d_ns", "h2d_graph_ns", "h2d_sm_ns"),
        lambda whole, graph, sm: graph + sm != whole,
    ),
    _Rule(
        "starved_ns longer than bubble_ns",
        ("starved_ns", "bubble_ns"),
        lambda starved, bubble: starved > np.maximum(bubble, 0),
    ),
    _Rule("sm_nbytes more than copy_nbytes", ("sm_nbytes", "copy_nbytes"), lambda part, whole: part > whole),
    _Rule(
        "alloc_nbytes without an allocation",
        ("alloc_nbytes", "alloc_count"),
        lambda nbytes, count: (count == 0) & (nbytes > 0),
    ),
)


def step_contradictions(steps: StepFrame) -> StepContradictions:
    """Hold each step against what must be true of any step."""
    found = 0
    kinds: dict[str, int] = {}
    shown: list[str] = []
    for part in steps.parts():
        columns: dict[str, Column] = {}
        any_broken: _Broken = np.zeros(len(part), np.bool_)
        first: dict[int, _Rule] = {}  # of the first rows that break a rule, the first one that each does
        for rule in _RULES:
            for name in rule.fields:
                if name not in columns:
                    columns[name] = part.column(name)
            values = [columns[name] for name in rule.fields]
            broken = rule.broken(*values)
            for column in values:
                broken &= column != MISSING
            if not np.any(broken):
                continue
            kinds[rule.kind] = kinds.get(rule.kind, 0) + int(np.count_nonzero(broken))
            for row in np.flatnonzero(broken & ~any_broken)[: _MAX_SHOWN - len(shown)].tolist():
                first[row] = rule
            any_broken |= broken
        shown += [_words(part, row, rule) for row, rule in sorted(first.items())[: _MAX_SHOWN - len(shown)]]
        found += int(np.count_nonzero(any_broken))
    return StepContradictions(found, dict(sorted(kinds.items(), key=lambda item: (-item[1], item[0]))), tuple(shown))


def _words(part: StepFrame, row: int, rule: _Rule) -> str:
    run_id = part.kinds[part.kind[row]].run_id
    numbers = ", ".join(f"{name}={part.column(name)[row]}" for name in rule.fields)
    return f"step {part.column('seq')[row]} of run {shown(run_id)}: {rule.kind}: {numbers}"
