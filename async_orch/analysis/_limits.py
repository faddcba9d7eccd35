"""Limits that a log must keep, for CI: each run is held against each limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from async_orch.analysis._figures import FIGURES
from async_orch.analysis._shown import shown
from async_orch.analysis._summary import Analysis, Group, GroupName, Run

__all__ = ["SHORTHANDS", "Finding", "Limit", "LimitError", "check", "limits_from"]

_STATISTICS: Final = ("count", "min", "p50", "p90", "p99", "max", "mean")


class LimitError(ValueError):
    """A limit that cannot be checked; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: ``measure`` (see `limits_from`) must be at most, or at least, ``value``.

    ``name`` is what the user called it; ``scale`` turns the measure's unit into that of ``value``.
    """

    name: str
    measure: str
    side: Literal["max", "min"]
    value: float
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A limit held against one run (None: the whole log), and one ``program`` of it if it has several.

    ``held`` is None where the figure is not known.
    """

    limit: Limit
    run_id: str | None
    measured: float | None
    held: bool | None
    program: str | None = None

    @property
    def text(self) -> str:
        """In one line: what was asked for, what was found."""
        where = "" if self.run_id is None else f" in run {shown(self.run_id)}"
        if self.program is not None:
            where += f", program {shown(self.program)}"
        limit = f"{self.limit.name} {self.limit.value:g}"
        if self.measured is None:
            return f"unknown: {limit}: {self.limit.measure} is not in the log{where}"
        word = "kept" if self.held else "violated"
        unit = " ms" if self.limit.scale == _MS else ""
        return f"{word}: {limit}: {self.limit.measure} is {self.measured:.10g}{unit}{where}"


_MS: Final = 1e-6
SHORTHANDS: Final[Mapping[str, tuple[str, Literal["max", "min"], float, str]]] = {
    "max_alloc_nbytes": ("alloc_nbytes.max", "max", 1, "bytes allocated on the path of any step"),
    "max_p50_ms": ("total_ns.p50", "max", _MS, "p50 from acceptance to end, ms"),
    "max_p99_ms": ("total_ns.p99", "max", _MS, "p99 from acceptance to end, ms"),
    "max_step_p50_ms": ("step_ns.p50", "max", _MS, "p50 from step to step, ms"),
    "max_step_p99_ms": ("step_ns.p99", "max", _MS, "p99 from step to step, ms"),
    "max_bubble_p99_ms": ("bubble_ns.p99", "max", _MS, "p99 of the device's idle time before a step, ms"),
    "min_overlap": ("overlap", "min", 1, "bound over measured time a step, 0 to 1"),
    "max_idle": ("idle", "max", 1, "part of the time in which no kernel ran, 0 to 1"),
    "max_starved": ("starved", "max", 1, "part of the time in which the device waited for the caller, 0 to 1"),
    "max_failed": ("failed", "max", 1, "steps that failed"),
    "max_missing": ("missing", "max", 1, "steps whose end is not in the log"),
    "max_skipped": ("skipped", "max", 1, "pieces of the log that could not be read"),
    "max_contradictions": ("contradictions", "max", 1, "records whose figures disagree with each other"),
    "min_steps": ("steps", "min", 1, "steps in the log"),
}
"""Limits with a name of their own: the measure, the side, its scale, and what it is."""

_OF_THE_LOG: Final = frozenset({"failed", "skipped", "contradictions", "steps"})
_OF_A_RUN: Final[dict[str, Callable[[Run], float | None]]] = {
    "overlap": lambda run: None if run.overlap is None else run.overlap.efficiency,
    "idle": lambda run: run.device_idle_share,
    "starved": lambda run: run.device_starved_share,
    "missing": lambda run: run.missing_steps,
}


def limits_from(settings: Mapping[str, Any]) -> list[Limit]:
    """Limits by name: `SHORTHANDS`, or in the tables ``max`` and ``min`` any ``FIGURE.STATISTIC`` of a group.

    ``{"max_p99_ms": 40, "max": {"device_ns.p99": 39_000_000}}`` limits p99 from acceptance to end to 40 ms, and that
    of the device time to 39 ms. Raises `LimitError` for a name or a value that cannot be meant.
    """
    limits = []
    for name, value in settings.items():
        if name in ("max", "min"):
            if not isinstance(value, Mapping):
                raise LimitError(f"{name} must be a table of FIGURE.STATISTIC = VALUE")
            side: Literal["max", "min"] = "max" if name == "max" else "min"
            for measure, bound in value.items():
                figure, _, statistic = measure.partition(".")
                if figure not in FIGURES or statistic not in _STATISTICS:
                    raise LimitError(
                        f"{name}.{measure!r}: give FIGURE.STATISTIC, one of {', '.join(FIGURES)} "
                        f"and one of {', '.join(_STATISTICS)}"
                    )
                limits.append(Limit(f"{name} {measure}", measure, side, _number(measure, bound)))
        elif name in SHORTHANDS:
            measure, side, scale, _ = SHORTHANDS[name]
            limits.append(Limit(name.replace("_", "-"), measure, side, _number(name, value), scale))
        else:
            raise LimitError(f"unknown limit {name!r}; known are {', '.join(SHORTHANDS)}, max and min")
    return limits


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise LimitError(f"{name} must be a number, not {value!r}")
    return value


def check(analysis: Analysis, limits: Iterable[Limit], *, group: GroupName = "warm") -> tuple[Finding, ...]:
    """Hold each run against each limit; figures of steps are those of `group`, of lines those of ``unmarked``."""
    findings = []
    for limit in limits:
        if limit.measure in _OF_THE_LOG:
            findings.append(_finding(limit, None, float(_of_the_log(analysis, limit.measure))))
            continue
        for run in analysis.summary.runs:
            if limit.measure in _OF_A_RUN:
                findings.append(_finding(limit, run.run_id, _OF_A_RUN[limit.measure](run)))
                continue
            chosen = [item for item in run.groups if item.name == group]
            for found in chosen or (None,):
                program = None if found is None or len(chosen) == 1 else found.program
                findings.append(_finding(limit, run.run_id, _statistic(found, limit.measure), program))
        lines = analysis.summary.group("unmarked")
        if lines is not None or not analysis.summary.runs:
            of_lines = None if limit.measure in _OF_A_RUN else _statistic(lines, limit.measure)
            findings.append(_finding(limit, None, of_lines))
    return tuple(findings)


def _finding(limit: Limit, run_id: str | None, measured: float | None, program: str | None = None) -> Finding:
    if measured is None:
        return Finding(limit, run_id, None, None, program)
    measured *= limit.scale
    held = measured <= limit.value if limit.side == "max" else measured >= limit.value
    return Finding(limit, run_id, measured, held, program)


def _of_the_log(analysis: Analysis, measure: str) -> int:
    if measure == "failed":
        return analysis.summary.events.get("step.failed", 0)
    if measure == "skipped":
        return sum(analysis.reading.skipped.values()) + len(analysis.reading.damaged)
    if measure == "contradictions":
        return analysis.reading.contradictions + analysis.reading.step_contradictions.steps
    return analysis.reading.steps + analysis.reading.host_orch_lines


def _statistic(group: Group | None, measure: str) -> float | None:
    figure, _, statistic = measure.partition(".")
    known = None if group is None else group.figures.get(figure)
    return None if known is None else getattr(known, statistic)
