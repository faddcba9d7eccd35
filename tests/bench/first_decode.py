"""The tables of ``docs/dfx/first-decode.md``: the decode runner in its three modes, in four settings.

    python -m tests.bench.first_decode [--rounds 5] [--json FILE]

Each run is a process of its own, as a user starts it, and decodes in all three modes; each round runs all settings,
beginning with another one. Every run must choose the same tokens. Printed as Markdown: medians of the runs, and their
least and greatest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench._kit import CheckFailed, number
from tests.bench._raw import RawFile, add_option

__all__ = ["SETTINGS", "measure", "tables"]

SETTINGS: dict[str, tuple[str, ...]] = {
    "host, --memory report": ("--memory", "report"),
    "host, --memory natural": (),
    "sim:a5-report, --memory report": ("--backend", "sim:a5-report", "--memory", "report"),
    "sim:a5-report, --memory natural": ("--backend", "sim:a5-report"),
}
MODES = ("naive", "ring", "pipelined")

Run = dict[str, Any]
"""What the runner prints with ``--json``."""


class Row(NamedTuple):
    """A line of a table: a figure, warm or ``cold``, times ``scale``."""

    title: str
    key: str
    scale: float = 1.0
    cold: bool = False
    unit: str = ""


WARM = (
    Row("ms a step, p50", "ms_per_step_p50"),
    Row("tokens/s", "tokens_per_s"),
    Row("allocated a step, B", "alloc_nbytes_per_step"),
    Row("allocation, ms a step", "alloc_ms_per_step"),
    Row("build, ms p50", "build_ms_p50"),
    Row("copied a step, B", "copy_nbytes_per_step"),
    Row("copy, MB/s", "copy_mb_per_s"),
    Row("device, ms p50", "device_ms_p50"),
    Row("device idle share", "device_idle_share", 100, unit=" %"),
)
COLD = (
    Row("first step, ms", "ms_per_step_p50", cold=True),
    Row("of it allocation, ms", "alloc_ms_per_step", cold=True),
    Row("opening, ms", "open_ms"),
)


def measure(rounds: int) -> dict[str, list[Run]]:
    """By setting, the rounds' runs. Raises `CheckFailed` where a run failed or chose other tokens."""
    found: dict[str, list[Run]] = {name: [] for name in SETTINGS}
    names = list(SETTINGS)
    tokens: Any = None
    for turn in range(rounds):
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            one = _run(SETTINGS[name])
            for mode in MODES:
                chosen = one[mode].pop("tokens")
                tokens = chosen if tokens is None else tokens
                if chosen != tokens:
                    raise CheckFailed(f"round {turn}, {name}: mode {mode} chose other tokens than the first run")
            found[name].append(one)
    return found


def _run(arguments: Sequence[str]) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "examples.decode_runner", "--json", "--log", str(Path(folder) / "log.jsonl")]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(f"{' '.join(arguments)}: ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    run: Run = json.loads(done.stdout)
    return run


def tables(runs: Sequence[Run]) -> str:
    """A setting's two tables."""
    lines = []
    for heading, rows in (("warm", WARM), ("cold", COLD)):
        lines += [f"| {heading} | {' | '.join(MODES)} |", "|---|---:|---:|---:|"]
        for row in rows:
            cells = [_cell([_value(run[mode], row) for run in runs], row.unit) for mode in MODES]
            lines.append(f"| {row.title} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _value(figures: dict[str, Any], row: Row) -> float | None:
    value = (figures["cold"] or {})[row.key] if row.cold else figures[row.key]
    return None if value is None else value * row.scale


def _cell(values: Sequence[float | None], unit: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle, least, most = (_text(value) for value in (statistics.median(known), min(known), max(known)))
    spread = "" if least == most else f" ({least} to {most})"
    return f"{middle}{unit}{spread}"


def _text(value: float) -> str:
    if value >= 1000 or value == 0:
        return f"{value:,.0f}"
    return number(value)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    add_option(parser)
    options = parser.parse_args()
    raw = RawFile(options.json, f"python -m tests.bench.first_decode --rounds {options.rounds}")
    found = measure(options.rounds)
    for name, runs in found.items():
        print(f"### `{name}`\n\n{tables(runs)}")
    raw.figures = dict(found)
    raw.write()


if __name__ == "__main__":
    main()
