"""An analysis as a table in the shape of a ``host-orch:`` line, as markdown, CSV and one JSON object."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from async_orch.analysis._figures import SPECS, Spec
from async_orch.analysis._percentiles import Distribution
from async_orch.analysis._pieces import Record
from async_orch.analysis._reading import Reading
from async_orch.analysis._shown import shown, shown_json
from async_orch.analysis._summary import Analysis, Group, Run, is_whole
from async_orch.analysis._text_table import aligned
from async_orch.analysis._units import duration, duration_number, in_unit, share
from async_orch.logs import HostOrch, StepRecord, host_orch_line

__all__ = [
    "Table",
    "as_csv",
    "as_json",
    "as_markdown",
    "as_table",
    "contradiction_lines",
    "document",
    "group_table",
    "host_orch_lines",
    "reading_line",
]

_REPORT_ROWS: Final = frozenset({"orch_ns", "h2d_ns", "alloc_nbytes", "copy_nbytes", "bw", "sm_bw"})
_PERCENTILES: Final = ("p50", "p90", "p99", "max")
_MAX_RUNS_SHOWN: Final = 20
_WIDTH: Final = 100  # of running text

Table = list[list[str]]


def as_table(analysis: Analysis, name: str) -> str:
    """Text for a terminal, ending with a line end; `name` says where the log came from."""
    return "\n".join(_document(analysis, name, _text_table)) + "\n"


def as_markdown(analysis: Analysis, name: str) -> str:
    """The same as `as_table`, with markdown tables; no text of the log can become markup."""
    text = "\n".join(_document(analysis, name, _markdown_table)) + "\n"
    return text.replace("<", "&lt;").replace("[", "\\[")


def _document(analysis: Analysis, name: str, render: Callable[[Table], Iterator[str]]) -> list[str]:
    summary = analysis.summary
    lines = [f"{name}: {reading_line(analysis.reading)}"]
    lines += [*analysis.reading.damaged, *(f"left out: {why}" for why in analysis.reading.unread)]
    lines += contradiction_lines(analysis.reading)
    if summary.events:
        counts = (f"{count} {event.removeprefix('step.')}" for event, count in summary.events.items())
        lines.append("steps: " + ", ".join(counts))
    several = len(summary.runs) > 1  # runs may differ in mode and size, so their steps are not shown as one
    for run in summary.runs[:_MAX_RUNS_SHOWN]:
        lines += ["", *_run(run)]
        for group in run.groups if several else ():
            lines += ["", *_group(group, render)]
    if len(summary.runs) > _MAX_RUNS_SHOWN:
        lines += ["", f"... and {len(summary.runs) - _MAX_RUNS_SHOWN} more runs; --format json shows them"]
    for group in summary.groups:
        if group.name == "unmarked" or not several:
            lines += ["", *_group(group, render)]
    lines += _spans(analysis, render)
    lines += _phases(analysis, render)
    return lines


def reading_line(reading: Reading) -> str:
    """What was read and what was skipped, by kind, in one line."""
    counted = (
        (reading.steps, "step record"),
        (reading.host_orch_lines, "host-orch line"),
        (reading.spans, "span"),
        (reading.bind_phases, "bind phase"),
        (reading.clock_anchors, "clock anchor"),
    )
    read = [f"{count} {what}{'s' if count != 1 else ''}" for count, what in counted if count]
    listed = ", ".join([*read[:-2], " and ".join(read[-2:])]) if read else "nothing"
    text = f"{listed} read from {reading.lines} line{'s' if reading.lines != 1 else ''}"
    if reading.other_events:
        text += f", {reading.other_events} other event{'s' if reading.other_events != 1 else ''} passed over"
    if reading.skipped:
        kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in reading.skipped.items())
        return f"{text}, {sum(reading.skipped.values())} skipped ({kinds})"
    return f"{text}, none skipped"


def contradiction_lines(reading: Reading) -> Iterator[str]:
    """Which records disagree with themselves, and how, in lines of text; none if none does."""
    if reading.contradictions:
        lines = "1 host-orch line disagrees with itself"
        if reading.contradictions > 1:
            lines = f"{reading.contradictions} host-orch lines disagree with themselves"
        yield f"warning: {lines}; figures are as printed, bw is computed from them:"
        yield from (f"  line {item.line_number}: {item.text}" for item in reading.first_contradictions)
        if reading.contradictions > len(reading.first_contradictions):
            yield "  ..."
    of_steps = reading.step_contradictions
    if of_steps.steps:
        records = "1 step record disagrees with itself"
        if of_steps.steps > 1:
            records = f"{of_steps.steps} step records disagree with themselves"
        kinds = ", ".join(f"{count} x {kind}" for kind, count in of_steps.kinds.items())
        yield f"warning: {records}; figures are taken as they stand ({kinds}):"
        yield from (f"  {text}" for text in of_steps.first)
        if of_steps.steps > len(of_steps.first):
            yield "  ..."


def group_table(group: Group) -> tuple[str, Table]:
    """A group's title and its figures as text; a single step has one column of values."""
    note = ""
    if group.name == "cold":
        note = " (" + ", ".join(f"{count} {shown(reason)}" for reason, count in group.cold_reasons.items()) + ")"
    elif group.name == "unmarked":
        note = " (host-orch lines do not say cold or warm)"
    program = "" if group.program is None or group.program == "default" else f"{shown(group.program)}, "
    title = f"{program}{group.name}: {group.steps} step{'s' if group.steps != 1 else ''}{note}"
    single = group.steps == 1
    table: Table = [["", "value"]] if single else [["", "n", *_PERCENTILES]]
    for spec in SPECS:
        known = group.figures.get(spec.name)
        if single and spec.label.startswith(" "):
            continue  # one step shows graph and sm in brackets only
        if known is not None:
            table.append(_row(group, spec, known, single=single))
        elif spec.name in _REPORT_ROWS:
            table.append([spec.label, "-"] if single else [spec.label, "0", *("-" for _ in _PERCENTILES)])
        if spec.name == "sm_bw" and group.sm_nbytes_range is not None:
            least, most = group.sm_nbytes_range
            cells = [f"{least} to {most} B"]
            table.append(["sm_bytes", *cells] if single else ["sm_bytes", "", *cells, "", "", ""])
    return title, table


def _group(group: Group, render: Callable[[Table], Iterator[str]]) -> Iterator[str]:
    title, table = group_table(group)
    yield title
    yield from render(table)
    verdict = "none, the figures for it are missing" if group.verdict is None else group.verdict.text
    yield from textwrap.wrap(f"verdict: {verdict}", _WIDTH, initial_indent="  ", subsequent_indent="    ")


def _row(group: Group, spec: Spec, known: Distribution, *, single: bool) -> list[str]:
    cells = _cells(known, spec.unit, ("p50",) if single else _PERCENTILES)
    if spec.name == "h2d_ns" and group.h2d_at_p50 is not None:
        _, graph, sm = group.h2d_at_p50
        cells[0] += f" ({duration_number(graph)} + {duration_number(sm)})"
    return [spec.label, *cells] if single else [spec.label, str(known.count), *cells]


def _cells(known: Distribution, unit: str, percentiles: tuple[str, ...]) -> list[str]:
    values = {"p50": known.p50, "p90": known.p90, "p99": known.p99, "max": known.max}
    return [in_unit(values[percentile], unit) for percentile in percentiles]


def _text_table(table: Table) -> Iterator[str]:
    single = len(table[0]) == 2
    if single:
        table = table[1:]
    yield from aligned(table, left=(0, 1) if single else (0,))


def _markdown_table(table: Table) -> Iterator[str]:
    head, *rows = table
    yield ""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" + "---:|" * (len(head) - 1)
    for cells in rows:
        first, *rest = (cell.replace("|", "\\|") for cell in cells)
        label = ("&nbsp;&nbsp;" + first.strip()) if first.startswith(" ") else first
        yield "| " + " | ".join([label, *rest]) + " |"
    yield ""


def _run(run: Run) -> Iterator[str]:
    text = f"run {shown(run.run_id)} on {shown(run.device)}{f', {shown(run.mode)}' if run.mode else ''}: "
    text += f"{run.steps} step{'s' if run.steps != 1 else ''}, device "
    if run.device_idle_share is None or run.device_window_ns is None or run.device_busy_ns is None:
        text += "idle share not known"
    else:
        starved = "" if run.device_starved_share is None else f", {share(run.device_starved_share)} starved"
        text += (
            f"idle {share(run.device_idle_share)}{starved} "
            f"(busy {duration(run.device_busy_ns)} of {duration(run.device_window_ns)})"
        )
    yield text
    if run.missing_steps:
        yield f"  {run.missing_steps} step{'s' if run.missing_steps != 1 else ''} without an end in the log"
    if run.overlap is not None:
        loads = ", ".join(f"{name} {duration(load)}" for name, load in run.overlap.resources.items())
        yield (
            f"  overlap {share(run.overlap.efficiency)}: bound {duration(run.overlap.bound_ns)} a step by the "
            f"{run.overlap.critical} ({run.overlap.critical_stage}), measured {duration(run.overlap.measured_ns)}; "
            f"{loads}"
        )


def _spans(analysis: Analysis, render: Callable[[Table], Iterator[str]]) -> Iterator[str]:
    spans, rootless = analysis.summary.spans, analysis.summary.rootless_invocations
    if not spans:
        return
    note = f" ({rootless} invocations without their root span)" if rootless else ""
    yield from ("", f"spans: {analysis.reading.spans}{note}")
    table: Table = [["", "n", *_PERCENTILES]]
    for item in spans:
        label = shown(item.name) + (" (device clock)" if item.device_clock else "")
        table.append([label, str(item.dur_ns.count), *_cells(item.dur_ns, "ns", _PERCENTILES)])
    yield from render(table)


def _phases(analysis: Analysis, render: Callable[[Table], Iterator[str]]) -> Iterator[str]:
    phases = analysis.summary.phases
    if phases is None:
        return
    note = f" ({phases.open_phases} phases of passes that were not closed)" if phases.open_phases else ""
    yield from ("", f"bind phases: {phases.passes} pass{'es' if phases.passes != 1 else ''}{note}")
    table: Table = [["", "n", *_PERCENTILES]]
    for name, known in phases.phases.items():
        table.append([shown(name), str(known.count), *_cells(known, "ns", _PERCENTILES)])
    if phases.control_plane_ns is not None:
        known = phases.control_plane_ns
        table.append(["control plane", str(known.count), *_cells(known, "ns", _PERCENTILES)])
        yield from render(table)


def host_orch_lines(records: Iterable[Record]) -> Iterator[str]:
    """Each step that ran to its end as a ``host-orch:`` line with its line end; lines read as such are repeated."""
    for record in records:
        if isinstance(record, HostOrch):
            yield record.line() + "\n"
        elif isinstance(record, StepRecord) and is_whole(record):
            yield host_orch_line(record) + "\n"


def as_csv(analysis: Analysis) -> str:
    """A line for each run, program, group and figure, behind a line of headings; runs first, then lines."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = ("count", "min", "p50", "p90", "p99", "max", "sum")
    writer.writerow(("run_id", "device", "mode", "program", "group", "figure", "unit", *columns))
    parts: list[tuple[tuple[str, str, str], Group]] = [
        ((shown(run.run_id), shown(run.device), shown(run.mode or "")), group)
        for run in analysis.summary.runs
        for group in run.groups
    ]
    parts += [(("", "", ""), group) for group in analysis.summary.groups if group.name == "unmarked"]
    for where, group in parts:
        for spec in SPECS:
            known = group.figures.get(spec.name)
            if known is not None:
                values = (getattr(known, column) for column in columns)
                writer.writerow((*where, shown(group.program or ""), group.name, spec.name, spec.unit, *values))
    return text.getvalue()


def document(analysis: Analysis, name: str) -> dict[str, Any]:
    """The analysis in plain containers: the content of `as_json`."""
    summary = analysis.summary
    runs = [
        {
            **msgspec.to_builtins(run),
            "device_idle_share": run.device_idle_share,
            "device_starved_share": run.device_starved_share,
        }
        for run in summary.runs
    ]
    return {
        "source": name,
        "reading": {**msgspec.to_builtins(analysis.reading), "records": analysis.reading.records},
        "events": summary.events,
        "groups": msgspec.to_builtins(summary.groups),
        "runs": runs,
        "spans": msgspec.to_builtins(summary.spans),
        "rootless_invocations": summary.rootless_invocations,
        "phases": msgspec.to_builtins(summary.phases),
    }


def as_json(analysis: Analysis, name: str) -> str:
    """One JSON object on one line, ending with a line end: durations in ns, sizes in bytes, shares from 0 to 1.

    Its keys are the attributes of `Analysis` and what it holds, with each run's shares of idle and starved time.
    """
    return shown_json(document(analysis, name)) + "\n"
