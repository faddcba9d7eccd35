"""Draw what a step log says about overlap: when each step was built, copied and executed.

    python -m examples.draw_timeline decode_runner.jsonl --svg overlap.svg
    python -m examples.draw_timeline decode_runner.jsonl                    # as text

Runs are drawn one below the other on one time scale, each from the start of the same step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

__all__ = ["Bar", "Run", "as_svg", "as_text", "main", "read_runs"]

LANES = ("build", "alloc", "copy", "device")
COLOURS = ("#4477aa", "#cc3311", "#997700", "#228833")
WIDTH, LEFT, ROW, GAP = 860, 70, 20, 34
"""Of the drawing, in pixels."""

Record = dict[str, Any]


class Bar(NamedTuple):
    """One step in one lane, in nanoseconds of CLOCK_MONOTONIC."""

    lane: str
    seq: int
    start_ns: int
    end_ns: int


class Run(NamedTuple):
    """One orchestrator's steps, and the title to put above them."""

    title: str
    bars: list[Bar]


def read_runs(lines: Iterable[str], window_ns: int, first_seq: int) -> list[Run]:
    """The runs of a step log, each cut to ``window_ns`` from the start of its step ``first_seq``."""
    titles: dict[str, str] = {}
    records: dict[str, list[Record]] = {}
    for line in lines:
        record = json.loads(line)
        if record["event"] == "orchestrator.opened":
            titles[record["run_id"]] = f"{record['config']['mode']} on {record['device']}, {record['support']}"
        elif record["event"] == "step.completed":
            records.setdefault(record["run_id"], []).append(record)
    runs = []
    for run_id, steps in records.items():
        start_ns = min((s["build_start_ns"] for s in steps if s["seq"] >= first_seq), default=None)
        if start_ns is None:
            continue
        # The build of a step may lie before the device work of the steps ahead of it: the window begins with both.
        bars = [bar for step in steps for bar in _bars(step)]
        runs.append(Run(titles.get(run_id, run_id), list(_cut(bars, start_ns, start_ns + window_ns))))
    return runs


def _bars(step: Record) -> Iterable[Bar]:
    """A step's parts that took time and are known."""
    acquired = None
    if step["acquire_start_ns"] is not None and step["acquire_wait_ns"] is not None:
        acquired = step["acquire_start_ns"] + step["acquire_wait_ns"]  # a slot's allocation is the end of that wait
    alloc_ns = step["alloc_ns"]
    starts = {
        "build": (step["build_start_ns"], step["build_ns"]),
        "alloc": (acquired - alloc_ns if acquired is not None and alloc_ns else None, alloc_ns),
        "copy": (step["h2d_start_ns"], step["h2d_ns"]),
        "device": (step["device_start_ns"], step["device_ns"]),
    }
    for lane, (start, length) in starts.items():
        if start is not None and length:
            yield Bar(lane, step["seq"], start, start + length)


def _cut(bars: Iterable[Bar], start_ns: int, end_ns: int) -> Iterable[Bar]:
    for bar in bars:
        if bar.end_ns > start_ns and bar.start_ns < end_ns:
            begin, end = max(bar.start_ns, start_ns), min(bar.end_ns, end_ns)
            yield Bar(bar.lane, bar.seq, begin - start_ns, end - start_ns)


def as_text(runs: Sequence[Run], window_ns: int, columns: int = 80) -> str:
    """One line a lane; a cell holds the last digit of the step that took most of it, "." if none did."""
    lines = []
    for run in runs:
        lines.append(run.title)
        for lane in LANES:
            bars = [bar for bar in run.bars if bar.lane == lane]
            cells = [_cell(bars, window_ns * i // columns, window_ns * (i + 1) // columns) for i in range(columns)]
            if bars:
                lines.append(f"  {lane:6} {''.join(cells)}")
        lines.append("")
    lines.append(f"one character is {window_ns / columns / 1e6:g} ms")
    return "\n".join(lines) + "\n"


def _cell(bars: Sequence[Bar], start_ns: int, end_ns: int) -> str:
    covered = {bar.seq: min(bar.end_ns, end_ns) - max(bar.start_ns, start_ns) for bar in bars}
    seq = max(covered, key=covered.__getitem__, default=0)
    return str(seq % 10) if covered and covered[seq] > 0 else "."


def as_svg(runs: Sequence[Run], window_ns: int) -> str:
    """A drawing with one lane below the other; a bar's number is its step."""
    scale = (WIDTH - LEFT - 10) / window_ns
    body: list[str] = []
    y = 10
    for run in runs:
        body.append(f'<text x="{LEFT}" y="{y + 12}" font-weight="bold">{escape(run.title)}</text>')
        y += 20
        for lane, colour in zip(LANES, COLOURS, strict=True):
            bars = [bar for bar in run.bars if bar.lane == lane]
            if not bars:
                continue
            body.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{lane}</text>')
            for bar in bars:
                x, width = LEFT + bar.start_ns * scale, max((bar.end_ns - bar.start_ns) * scale, 1.0)
                body.append(f'<rect x="{x:.1f}" y="{y + 1}" width="{width:.1f}" height="{ROW - 2}" fill="{colour}"/>')
                if width > 14:
                    middle = x + width / 2
                    body.append(
                        f'<text x="{middle:.1f}" y="{y + 14}" text-anchor="middle" fill="#fff">{bar.seq}</text>'
                    )
            y += ROW
        y += GAP - ROW
    axis = "".join(
        f'<text x="{LEFT + 1e6 * ms * scale:.1f}" y="{y + 10}" text-anchor="middle">{ms} ms</text>'
        for ms in range(0, window_ns // 1_000_000 + 1, max(window_ns // 8_000_000, 1))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 20} {y + 20}" '
        'font-family="sans-serif" font-size="12" fill="#222">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(body) + f"\n{axis}\n</svg>\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="draw_timeline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path, help="a step log")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a drawing instead of printing text")
    parser.add_argument("--window-ms", type=int, default=320, help="length of the cut-out (default: %(default)s)")
    parser.add_argument("--first", type=int, default=20, metavar="SEQ", help="its first step (default: %(default)s)")
    options = parser.parse_args(argv)
    window_ns = options.window_ms * 1_000_000
    try:
        with options.log.open(encoding="utf-8") as lines:
            runs = read_runs(lines, window_ns, options.first)
    except OSError as error:
        parser.exit(2, f"draw_timeline: error: cannot read {options.log}: {error.strerror}\n")
    except (ValueError, KeyError, TypeError) as error:
        parser.exit(
            2, f"draw_timeline: error: {options.log} is not a step log ({error!r}); give what step_log= wrote\n"
        )
    if not runs:
        parser.exit(
            2, f"draw_timeline: error: {options.log} has no step {options.first} or later; give a lower --first\n"
        )
    if options.svg is None:
        sys.stdout.write(as_text(runs, window_ns))
    else:
        options.svg.write_text(as_svg(runs, window_ns), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
