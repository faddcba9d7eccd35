"""``async-orch report``: one HTML page."""

from __future__ import annotations

import argparse

from async_orch._commands._shared import add_logs, load, name_of, refuse_own_input, write_file

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Writes one HTML page that needs no network: a timeline of the stages and the device with zoom, the figures of the "
    "table, histograms, step times over the run, slots in use, the longest bubbles with causes, the configuration."
)
EPILOG = "Exit code: 0, or 2 if the log could not be used or the page not written."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_logs(parser)
    parser.add_argument(
        "-o", "--output", required=True, metavar="HTML", help="the page to write; - for standard output"
    )


def run(options: argparse.Namespace) -> int:
    refuse_own_input(options.output, options.files)
    frames = load(options.files)
    from async_orch.analysis import report_page  # noqa: PLC0415 - imports numpy

    write_file(options.output, report_page(frames, name_of(options.files)))
    return 0
