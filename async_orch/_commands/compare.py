"""``async-orch compare``: two logs, figure by figure."""

from __future__ import annotations

import argparse
import math

from async_orch._commands._shared import load, name_of, write

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Compares the p50 and p99 of each figure in two logs, cold and warm steps apart, with a bootstrap interval of the "
    "change, and says faster, slower or no difference shown."
)
EPILOG = (
    "The interval holds the ratio B/A with 95 % confidence if steps are independent of each other. Exit code: 0, or 2 "
    "if a log could not be used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the log to compare with")
    parser.add_argument("b", metavar="B", help="the log of which to say whether it is faster")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")
    parser.add_argument(
        "--least-change",
        type=_percent,
        default=1.0,
        metavar="PERCENT",
        help="smaller changes count as none, however sure (default: %(default)s)",
    )


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of percent such as 1.5") from None
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} must be a finite number of percent from 0")
    return value


def run(options: argparse.Namespace) -> int:
    a, b = load([options.a]), load([options.b])
    from async_orch.analysis import _render_compare as render  # noqa: PLC0415 - imports numpy
    from async_orch.analysis import compare  # noqa: PLC0415

    comparison = compare(a, b, least_change=options.least_change / 100)
    if options.format == "json":
        write(render.as_json(comparison))
    else:
        write(render.as_table(comparison, name_of([options.a]), name_of([options.b])))
    return 0
