"""``async-orch whatif``: predictions for other settings."""

from __future__ import annotations

import argparse
import itertools
import re
from typing import Any

from async_orch._commands._shared import UsageError, add_logs, load, name_of, write

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Replays the measured stage times of a run through a model of the pipeline and predicts the rate, p99 and the "
    "device's idle time for other settings. The run's own setting is predicted too and held against what was measured."
)
EPILOG = (
    "RANGE is N, A..B or a list such as 1,2,4. Every combination is predicted, for a caller that never lets the "
    "pipeline wait. "
    "Exit code: 0, or 2 if the log does not hold the stage times."
)

_OPTIONS = ("slots", "queue_depth", "max_inflight", "build_workers")
_TIMES = {"build_x": "build", "copy_x": "copy of the image", "device_x": "kernels"}
_FACTORS = tuple(_TIMES)
_MAX_SETTINGS = 500
_MAX_VALUE = 4096  # of `Setting`


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_logs(parser)
    for name in _OPTIONS:
        note = "; 0 is inline" if name == "build_workers" else ""
        parser.add_argument(f"--{name.replace('_', '-')}", type=_range, metavar="RANGE", help=f"values to try{note}")
    for name in _FACTORS:
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=_factors,
            metavar="X,...",
            help=f"factors on the {_TIMES[name]} of every step, such as 0.5",
        )
    parser.add_argument("--mode", choices=("pipelined", "ring", "naive"), help="default: as the run")
    parser.add_argument("--run", metavar="RUN_ID", help="which run (default: the one with the most steps)")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: %(default)s")


def _range(text: str) -> list[int]:
    values: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"0*([0-9]+)(?:\.\.0*([0-9]+))?", part)
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not N, A..B or a list of them")
        ends = [end for end in match.groups() if end is not None]
        if any(len(end) > len(str(_MAX_VALUE)) or int(end) > _MAX_VALUE for end in ends):
            raise argparse.ArgumentTypeError(f"{text} goes beyond {_MAX_VALUE}, the most that is modelled")
        values += range(int(ends[0]), int(ends[-1]) + 1)
    if not values:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty range")
    return values


def _factors(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of factors such as 0.5,2") from None


def run(options: argparse.Namespace) -> int:
    choices = {name: getattr(options, name) for name in (*_OPTIONS, *_FACTORS) if getattr(options, name) is not None}
    if options.mode is not None:
        choices["mode"] = [options.mode]
    settings: list[dict[str, Any]] = [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]
    if len(settings) > _MAX_SETTINGS:
        raise UsageError(f"{len(settings)} combinations are more than {_MAX_SETTINGS}; narrow the ranges")
    frames = load(options.files)
    from async_orch.analysis import WhatIfError, whatif  # noqa: PLC0415 - imports numpy
    from async_orch.analysis import _render_whatif as render  # noqa: PLC0415

    name = name_of(options.files)
    try:
        found = whatif(frames, settings, run_id=options.run)
    except WhatIfError as error:
        raise UsageError(f"{name}: {error}") from error
    write(render.as_json(found) if options.format == "json" else render.as_table(found, name))
    return 0
