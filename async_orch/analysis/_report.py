"""The report: one HTML page that needs nothing but a browser."""

from __future__ import annotations

from html import escape
from importlib import resources
from string import Template
from typing import Any

import msgspec

from async_orch.analysis._bubbles import longest_bubbles
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._log_frames import LogFrames
from async_orch.analysis._render import Table, contradiction_lines, group_table, reading_line
from async_orch.analysis._report_data import RunCharts, charts_of
from async_orch.analysis._shown import shown, shown_json
from async_orch.analysis._stages import STAGES
from async_orch.analysis._summary import Group, Run, summarize_frames
from async_orch.analysis._units import duration, share

__all__ = ["MAX_REPORT_RUNS", "report_page"]

MAX_REPORT_RUNS = 12
"""Runs of a log that the page shows; the table shows all."""


def report_page(frames: LogFrames, name: str) -> bytes:
    """The page for a log, UTF-8; `name` says where the log came from.

    Steps are sampled where there are more than 8000 a run: windows of steps that follow each other, spread evenly, and
    every outlier. Figures, ranges and histograms are always of all steps; the page says what was left out.
    """
    summary = summarize_frames(frames)
    runs = summary.runs[:MAX_REPORT_RUNS]
    charts: list[RunCharts] = []
    parts: list[str] = []
    tables: list[str] = []
    of_run = frames.steps.split(lambda kind: (kind.run_id, kind.device))
    for number, run in enumerate(runs):
        steps = of_run[run.run_id, run.device]
        opened = frames.opened.get(run.run_id, {})
        chart = charts_of(steps, _slots(opened))
        charts.append(chart)
        parts.append(_section(number, _summary_of(run, chart)))
        tables.append(_section(number, _tables_of(run, steps, opened, chart)))
    lines = summary.group("unmarked")
    if lines is not None:
        tables.append("<h2>host-orch lines</h2>" + _group(lines))
    unread = [f"left out: {why}" for why in frames.reading.unread]
    notes = [*frames.reading.damaged, *unread, *contradiction_lines(frames.reading)]
    if len(summary.runs) > len(runs):
        notes.append(f"The page shows the first {len(runs)} of {len(summary.runs)} runs.")
    page = resources.files("async_orch.analysis") / "page"
    document = {"stages": STAGES, "runs": [chart.data for chart in charts]}
    text = Template((page / "report.html").read_text("utf-8")).substitute(
        title=escape(f"async_orch: {name}"),
        reading=escape(reading_line(frames.reading)),
        notes="".join(f"<p>{escape(note)}</p>" for note in notes),
        style=(page / "report.css").read_text("utf-8"),
        script=(page / "report.js").read_text("utf-8"),
        picker_hidden="" if len(runs) > 1 else " hidden",
        options="".join(f'<option value="{number}">{escape(_title(run))}</option>' for number, run in enumerate(runs)),
        summaries="\n".join(parts),
        tables="\n".join(tables),
        # Inside a script element only "</" could end it; no text of the log may.
        data=shown_json(document).replace("<", "\\u003c"),
    )
    return text.encode()


def _slots(opened: dict[str, Any]) -> int | None:
    config = opened.get("config")
    slots = config.get("slots") if isinstance(config, dict) else None
    return slots if isinstance(slots, int) and 0 < slots < 100_000 else None


def _section(number: int, content: str) -> str:
    return f'<section data-run="{number}"{"" if number == 0 else " hidden"}>{content}</section>'


def _title(run: Run) -> str:
    mode = f", {shown(run.mode)}" if run.mode else ""
    return f"{shown(run.run_id)} on {shown(run.device)}{mode} ({run.steps} steps)"


def _summary_of(run: Run, chart: RunCharts) -> str:
    tiles = [("steps", str(run.steps))]
    if run.device_idle_share is not None:
        tiles.append(("device idle", share(run.device_idle_share)))
    if run.device_starved_share is not None:
        tiles.append(("device starved", share(run.device_starved_share)))
    if run.overlap is not None:
        tiles += [
            ("overlap: bound / measured", share(run.overlap.efficiency)),
            ("bounded by", f"{run.overlap.critical_stage} ({run.overlap.critical})"),
            ("bound a step", duration(run.overlap.bound_ns)),
            ("measured a step", duration(run.overlap.measured_ns)),
        ]
    shown = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in tiles
    )
    verdicts = "".join(
        f'<p class="verdict"><b>{escape(group_table(group)[0])}:</b> {escape(group.verdict.text)}</p>'
        for group in run.groups
        if group.verdict is not None
    )
    notes = []
    if chart.drawn < chart.steps:
        notes.append(
            f"The timeline is a sample: {chart.drawn} of {chart.steps} steps, in windows spread evenly, with "
            f"{chart.outliers_drawn} of {chart.outliers} outliers. Figures, ranges and histograms are of all steps."
        )
    if not chart.device_drawn:
        notes.append("The device's times are on a clock of its own and are not drawn beside the host's.")
    if run.missing_steps:
        notes.append(f"{run.missing_steps} steps have no end in the log.")
    return f'<h2>{escape(_title(run))}</h2>{verdicts}<div class="tiles">{shown}</div>' + "".join(
        f'<p class="soft">{escape(note)}</p>' for note in notes
    )


def _tables_of(run: Run, steps: StepFrame, opened: dict[str, Any], chart: RunCharts) -> str:
    text = "<h2>Figures</h2>" + "".join(_group(group) for group in run.groups)
    bubbles = longest_bubbles(steps)
    if bubbles:
        rows = []
        for bubble in bubbles:
            end = bubble.end_ns - chart.origin_ns
            parts = ", ".join(f"{part} {duration(length)}" for part, length in bubble.parts.items())
            button = f'<button data-goto="{end - bubble.bubble_ns},{end}">Show</button>' if chart.device_drawn else ""
            rows.append(
                f"<tr><td>{bubble.seq}</td><td>{escape(duration(bubble.bubble_ns))}</td>"
                f'<td class="text">{escape(bubble.cause or "not known")}</td><td class="text">{escape(parts)}</td>'
                f"<td>{button}</td></tr>"
            )
        text += (
            '<h2>Longest bubbles</h2><p class="soft">Times in which the device had nothing to do, by what the next '
            'step was waiting for.</p><div class="scroll"><table><thead><tr><th>before step</th><th>bubble</th>'
            '<th class="text">cause</th><th class="text">what went on in it</th><th></th></tr></thead>'
            f"<tbody>{''.join(rows)}</tbody></table></div>"
        )
    if opened:
        text += f"<h2>Configuration</h2><pre>{escape(_pretty(opened))}</pre>"
    return text


def _pretty(value: dict[str, Any]) -> str:
    return msgspec.json.format(shown_json(value), indent=2)


def _group(group: Group) -> str:
    title, table = group_table(group)
    verdict = ""
    if group.name == "unmarked" and group.verdict is not None:
        verdict = f'<p class="verdict">{escape(group.verdict.text)}</p>'
    return f'<h3>{escape(title)}</h3>{verdict}<div class="scroll">{_html_table(table, group.name)}</div>'


def _html_table(table: Table, name: str) -> str:
    head, *rows = table
    heads = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    head_row = f"<thead><tr>{heads}</tr></thead>"
    return f'<table class="figures" data-group="{escape(name)}">{head_row}<tbody>{body}</tbody></table>'
