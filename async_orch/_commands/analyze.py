"""``async-orch analyze``: tables, and the verdict in words."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from async_orch._commands._shared import (
    ReadError,
    UsageError,
    add_logs,
    complain,
    load,
    name_of,
    nothing_usable,
    open_source,
    reading_errors,
    warn_left_out,
    write,
)

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Shows count, p50, p90, p99 and max of each part of a step, cold and warm steps apart, how busy the device was, "
    "and what bounds the steps. Reads step logs (step_log=), host-orch: lines, [STRACE] spans and bind phases, mixed "
    "with anything."
)
EPILOG = "Percentiles are by nearest rank. Exit code: 0, or 2 if nothing in FILE could be used."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_logs(parser)
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv", "markdown", "host-orch"),
        default="table",
        help="a table for people, one JSON object, CSV, markdown, or each step as a host-orch: line "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--follow", action="store_true", help="show the table again as the log grows, until interrupted"
    )
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="SECONDS",
        help="how often --follow looks (default: %(default)s)",
    )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 0.5") from None
    if not 0.01 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} must be from 0.01 to 3600 seconds")
    return value


def run(options: argparse.Namespace) -> int:
    if options.follow:
        return _follow(options)
    if options.format == "host-orch":
        return _host_orch_lines(options.files)
    from async_orch.analysis import Analysis, summarize_frames  # noqa: PLC0415 - imports numpy
    from async_orch.analysis import _render as render  # noqa: PLC0415

    frames = load(options.files)
    analysis = Analysis(frames.reading, summarize_frames(frames))
    name = name_of(options.files)
    match options.format:
        case "json":
            write(render.as_json(analysis, name))
        case "csv":
            write(render.as_csv(analysis))
        case "markdown":
            write(render.as_markdown(analysis, name))
        case _:
            write(render.as_table(analysis, name))
    return 0


def _host_orch_lines(files: list[str]) -> int:
    from async_orch.analysis import _render as render  # noqa: PLC0415 - imports numpy
    from async_orch.analysis import read  # noqa: PLC0415

    written = 0
    failed: list[UsageError] = []
    for file in files:
        name = name_of([file])
        before = written
        try:
            reader = read(open_source(file))
            with reading_errors(file):
                for line in render.host_orch_lines(reader):
                    write(line)
                    written += 1
        except ReadError as error:
            failed.append(error)
            continue
        reading = reader.reading
        if written == before:
            why = (
                "no step ran to its end, so there is no line to show; use --format table"
                if reading.records
                else nothing_usable(reading)
            )
            failed.append(UsageError(f"{name}: {why}"))
        elif reading.skipped or reading.contradictions or reading.damaged:
            complain(f"{name}: {render.reading_line(reading)}")
    if failed and not written:
        raise failed[-1]
    warn_left_out(failed, len(files))
    return 0


def _follow(options: argparse.Namespace) -> int:
    """Show the table whenever the log grew; an interrupt is how it ends."""
    from async_orch.analysis import _render as render  # noqa: PLC0415 - imports numpy
    from async_orch.analysis._follow import Follower  # noqa: PLC0415

    if len(options.files) != 1 or options.files[0] == "-":
        raise UsageError("--follow reads one file by its path; give one log")
    if options.format != "table":
        raise UsageError("--follow shows tables; leave --format out")
    file = options.files[0]
    name = name_of(options.files)
    follower = Follower(Path(file))
    screen = "\x1b[2J\x1b[H" if sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" else ""
    try:
        while True:
            with reading_errors(file):
                grown = follower.poll()
            if grown:
                write(screen + render.as_table(follower.analysis(), name) + ("" if screen else "\n"))
                sys.stdout.flush()
            time.sleep(options.interval)
    except KeyboardInterrupt:
        return 0
