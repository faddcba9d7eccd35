"""``async-orch trace``: for Perfetto, chrome://tracing, and tools that read ``[STRACE]`` lines."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from async_orch._commands._shared import (
    UsageError,
    add_logs,
    complain,
    load,
    reading_errors,
    refuse_own_input,
    write,
    writing,
)

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Writes the timeline of a log as a trace for Perfetto or chrome://tracing, with a flow through the stages of each "
    "step and counters of what is in use; or as [STRACE] lines named ext.async_orch.<stage>."
)
EPILOG = "Exit code: 0, or 2 if the log could not be used or the trace not written."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_logs(parser)
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="default: standard output")
    parser.add_argument("--strace", action="store_true", help="write [STRACE] lines instead of JSON")
    parser.add_argument(
        "--max-steps", type=int, default=20_000, metavar="N", help="the first N steps only (default: %(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    if options.max_steps < 1:
        raise UsageError(f"--max-steps {options.max_steps} must be at least 1")
    refuse_own_input(options.output, options.files)
    frames = load(options.files)
    from async_orch.analysis import chrome_trace, strace_lines  # noqa: PLC0415 - imports numpy

    if not len(frames.steps) and (options.strace or not len(frames.spans)):
        raise UsageError("the log has no step records, and other lines do not say when things began; nothing to trace")
    if options.strace:
        if options.output == "-":
            for line in strace_lines(frames):
                write(line)
            return 0
        with writing(options.output), Path(options.output).open("w", encoding="ascii") as text:
            text.writelines(strace_lines(frames))
        return 0
    # What comes through a pipe can be read once only, and what could not be read was told already.
    again = [file for file in options.files if Path(file).is_file() and os.access(file, os.R_OK)]
    with reading_errors(", ".join(again)):
        pieces, extent = chrome_trace(frames, max_steps=options.max_steps, sources=again)
    if options.output == "-":
        with writing():
            for piece in pieces:
                sys.stdout.write(piece.decode())
    else:
        with writing(options.output), Path(options.output).open("wb") as file:
            file.writelines(pieces)
    if extent.steps < extent.of_steps:
        complain(f"the trace holds the first {extent.steps} of {extent.of_steps} steps; raise --max-steps for more")
    return 0
