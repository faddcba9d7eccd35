"""A comparison as a table and as JSON."""

from __future__ import annotations

from async_orch.analysis._compare import Change, Comparison
from async_orch.analysis._figures import SPECS
from async_orch.analysis._shown import shown, shown_json
from async_orch.analysis._text_table import aligned
from async_orch.analysis._units import in_unit

__all__ = ["as_json", "as_table"]

_LABELS = {spec.name: spec.label.strip() for spec in SPECS}


def as_json(comparison: Comparison) -> str:
    """One JSON object on one line: the attributes of `Comparison`."""
    return shown_json(comparison) + "\n"


def as_table(comparison: Comparison, a: str, b: str) -> str:
    """Text for a terminal; `a` and `b` name the logs."""
    lines = [f"A: {a}", f"B: {b}"]
    for group in comparison.groups:
        names = [shown(name) for name in (group.mode, group.program) if name is not None]
        lines += ["", f"{' '.join([*names, group.name])}: {_steps(group.steps_a)} in A, {group.steps_b} in B"]
        if not group.changes:
            lines.append("  nothing to compare")
            continue
        table = [["", "", "A", "B", "B/A", "95 % interval", ""]]
        table += [_row(change) for change in group.changes if change.a or change.b]
        lines += aligned(table, left=(0, 1, 6))
    return "\n".join(lines) + "\n"


def _row(change: Change) -> list[str]:
    ratio = "-" if change.ratio is None else f"{change.ratio:.3f}"
    interval = "-" if change.low is None or change.high is None else f"{change.low:.3f} to {change.high:.3f}"
    return [
        _LABELS[change.figure],
        change.statistic,
        in_unit(change.a, change.unit),
        in_unit(change.b, change.unit),
        ratio,
        interval,
        change.word,
    ]


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
