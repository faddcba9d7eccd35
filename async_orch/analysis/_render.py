"""An analysis as a table in the shape of a ``host-orch:`` line, and as one JSON object."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from async_orch.analysis._percentiles import Distribution
from async_orch.analysis._reader import Reading, Record
from async_orch.analysis._summary import Analysis, Group, Run, is_whole
from async_orch.analysis._units import bandwidth, duration, duration_number, share, size
from async_orch.logs import HostOrch, host_orch_line

__all__ = ["as_json", "as_table", "host_orch_lines", "reading_line"]

# The rows of the table: the figures of the report's line in its order, then what only step records know.
_ROWS: Final[tuple[tuple[str, str, Callable[[int], str]], ...]] = (
    ("orch", "orch_ns", duration),
    ("H2D", "h2d_ns", duration),
    ("  graph", "graph_ns", duration),
    ("  sm", "sm_ns", duration),
    ("alloc", "alloc_nbytes", size),
    ("copy", "copy_nbytes", size),
    ("bw", "bw", bandwidth),
    ("sm_bw", "sm_bw", bandwidth),
    ("alloc time", "alloc_ns", duration),
    ("copy time", "copy_ns", duration),
    ("device", "device_ns", duration),
    ("bubble", "bubble_ns", duration),
    ("accept to end", "total_ns", duration),
    ("step to step", "step_ns", duration),
)
_REPORT_ROWS: Final = frozenset({"orch_ns", "h2d_ns", "alloc_nbytes", "copy_nbytes", "bw", "sm_bw"})
_PERCENTILES: Final = ("p50", "p90", "p99", "max")
_MAX_RUNS_SHOWN: Final = 20
_WIDTH: Final = 100  # of running text


def as_table(analysis: Analysis, name: str) -> str:
    """Text for a terminal, ending with a line end; `name` says where the log came from."""
    lines = [f"{name}: {reading_line(analysis.reading)}"]
    lines += _contradictions(analysis.reading)
    events = analysis.summary.events
    if events:
        lines.append("steps: " + ", ".join(f"{count} {event.removeprefix('step.')}" for event, count in events.items()))
    runs = analysis.summary.runs
    several = len(runs) > 1  # runs may differ in mode and size, so their steps are not shown as one
    for run in runs[:_MAX_RUNS_SHOWN]:
        lines += ["", _run(run, analysis.reading.modes.get(run.run_id))]
        for group in run.groups if several else ():
            lines += ["", *_group(group)]
    if len(runs) > _MAX_RUNS_SHOWN:
        lines += ["", f"... and {len(runs) - _MAX_RUNS_SHOWN} more runs; --format json shows them"]
    for group in analysis.summary.groups:
        if group.name == "unmarked" or not several:
            lines += ["", *_group(group)]
    return "\n".join(lines) + "\n"


def reading_line(reading: Reading) -> str:
    """What was read and what was skipped, by kind, in one line."""
    read = [
        f"{count} {what}{'s' if count != 1 else ''}"
        for count, what in ((reading.steps, "step record"), (reading.host_orch_lines, "host-orch line"))
        if count
    ]
    text = f"{' and '.join(read) or 'nothing'} read from {reading.lines} line{'s' if reading.lines != 1 else ''}"
    if reading.other_events:
        text += f", {reading.other_events} other event{'s' if reading.other_events != 1 else ''} passed over"
    if reading.skipped:
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in reading.skipped.items())
        return f"{text}, {sum(reading.skipped.values())} skipped ({kinds})"
    return f"{text}, none skipped"


def _contradictions(reading: Reading) -> Iterator[str]:
    if reading.contradictions:
        lines = "1 host-orch line disagrees with itself"
        if reading.contradictions > 1:
            lines = f"{reading.contradictions} host-orch lines disagree with themselves"
        yield f"warning: {lines}; figures are as printed, bw is computed from them:"
        yield from (f"  line {item.line_number}: {item.text}" for item in reading.first_contradictions)
        if reading.contradictions > len(reading.first_contradictions):
            yield "  ..."


def _group(group: Group) -> Iterator[str]:
    note = ""
    if group.name == "cold":
        note = " (" + ", ".join(f"{count} {reason}" for reason, count in group.cold_reasons.items()) + ")"
    elif group.name == "unmarked":
        note = " (host-orch lines do not say cold or warm)"
    yield f"{group.name}: {group.steps} step{'s' if group.steps != 1 else ''}{note}"
    single = group.steps == 1
    table: list[list[str]] = [] if single else [["", "n", *_PERCENTILES]]
    for label, figure, unit in _ROWS:
        known = group.figures.get(figure)
        if single and label.startswith(" "):
            continue  # one step shows graph and sm in brackets only
        if known is None:
            if figure in _REPORT_ROWS:
                table.append([label, "-"] if single else [label, "0", *("-" for _ in _PERCENTILES)])
            continue
        cells = _cells(known, unit, ("p50",) if single else _PERCENTILES)
        if figure == "h2d_ns" and group.h2d_at_p50 is not None:
            _, graph, sm = group.h2d_at_p50
            cells[0] += f" ({duration_number(graph)} + {duration_number(sm)})"
        table.append([label, *cells] if single else [label, str(known.count), *cells])
    yield from _aligned(table, right=not single)
    verdict = "none, the figures for it are missing" if group.verdict is None else group.verdict.text
    yield from textwrap.wrap(f"verdict: {verdict}", _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _cells(known: Distribution, unit: Callable[[int], str], percentiles: tuple[str, ...]) -> list[str]:
    values = {"p50": known.p50, "p90": known.p90, "p99": known.p99, "max": known.max}
    return [unit(values[percentile]) for percentile in percentiles]


def _aligned(table: list[list[str]], *, right: bool) -> Iterator[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for first, *rest in table:
        cells = [
            cell.rjust(width) if right else cell.ljust(width) for cell, width in zip(rest, widths[1:], strict=True)
        ]
        yield "  " + "  ".join([first.ljust(widths[0]), *cells]).rstrip()


def _run(run: Run, mode: str | None) -> str:
    text = f"run {run.run_id} on {run.device}{f', {mode}' if mode else ''}: "
    text += f"{run.steps} step{'s' if run.steps != 1 else ''}, device "
    if run.device_idle_share is None or run.device_window_ns is None or run.device_busy_ns is None:
        return text + "idle share not known"
    return (
        text + f"idle {share(run.device_idle_share)} "
        f"(busy {duration(run.device_busy_ns)} of {duration(run.device_window_ns)})"
    )


def host_orch_lines(records: Iterable[Record]) -> Iterator[str]:
    """Each step that ran to its end as a ``host-orch:`` line with its line end; lines read as such are repeated."""
    for record in records:
        if is_whole(record):
            yield (record.line() if isinstance(record, HostOrch) else host_orch_line(record)) + "\n"


def as_json(analysis: Analysis, name: str) -> str:
    """One JSON object on one line, ending with a line end: durations in ns, sizes in bytes, shares from 0 to 1.

    Its keys are the attributes of `Analysis` and what it holds, with each run's ``device_idle_share`` and ``mode``.
    """
    summary = analysis.summary
    runs = [
        {
            **msgspec.to_builtins(run),
            "device_idle_share": run.device_idle_share,
            "mode": analysis.reading.modes.get(run.run_id),
        }
        for run in summary.runs
    ]
    document = {
        "source": name,
        "reading": {**msgspec.to_builtins(analysis.reading), "records": analysis.reading.records},
        "events": summary.events,
        "groups": summary.groups,
        "runs": runs,
    }
    return msgspec.json.encode(document).decode() + "\n"
