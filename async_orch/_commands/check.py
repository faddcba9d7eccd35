"""``async-orch check``: limits for CI."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from async_orch._commands._shared import UsageError, add_logs, load, printable, write

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Holds each run of a log against limits and prints what it found. Limits are options or entries of a TOML file, "
    "under the same names with underscores; options win."
)
EPILOG = (
    "A figure that the log does not hold fails its limit unless --allow-unknown. Exit code: 0 if every limit is kept, "
    "1 if one is not, 2 if the log or a limit could not be used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_logs(parser)
    # The names and meanings of the limits stand in the analysis, which imports numpy; here only when help is shown.
    from async_orch.analysis._limits import SHORTHANDS  # noqa: PLC0415

    for name, (_, _, _, meaning) in SHORTHANDS.items():
        parser.add_argument("--" + name.replace("_", "-"), type=float, metavar="N", help=meaning)
    for side in ("max", "min"):
        parser.add_argument(
            f"--{side}",
            action="append",
            default=[],
            metavar="FIGURE.STATISTIC=N",
            help=f"any figure at {'most' if side == 'max' else 'least'} N ns or bytes, such as device_ns.p99=39000000",
        )
    parser.add_argument("--limits", metavar="TOML", help="a file of limits")
    parser.add_argument(
        "--group", choices=("warm", "cold"), default="warm", help="of which steps (default: %(default)s)"
    )
    parser.add_argument("--allow-unknown", action="store_true", help="pass figures that the log does not hold")


def run(options: argparse.Namespace) -> int:
    from async_orch.analysis import Analysis, LimitError, check, limits_from, summarize_frames  # noqa: PLC0415

    try:
        limits = limits_from(_settings(options))
    except LimitError as error:
        raise UsageError(str(error)) from error
    if not limits:
        raise UsageError("no limit was given; see `async-orch check --help`")
    frames = load(options.files)
    findings = check(Analysis(frames.reading, summarize_frames(frames)), limits, group=options.group)
    write("".join(finding.text + "\n" for finding in findings))
    passed = (finding.held or (finding.held is None and options.allow_unknown) for finding in findings)
    return 0 if all(passed) else 1


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    from async_orch.analysis._limits import SHORTHANDS  # noqa: PLC0415

    settings: dict[str, Any] = {}
    if options.limits is not None:
        try:
            settings = tomllib.loads(Path(options.limits).read_text("utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {printable(options.limits)}: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{printable(options.limits)} is not TOML: {error}") from error
    for name in SHORTHANDS:
        value = getattr(options, name)
        if value is not None:
            settings[name] = value
    for side in ("max", "min"):
        for text in getattr(options, side):
            measure, equals, value = text.partition("=")
            try:
                number = float(value)
            except ValueError:
                number = None
            if not equals or number is None:
                raise UsageError(f"--{side} {text}: give FIGURE.STATISTIC=N, such as device_ns.p99=39000000")
            settings[side] = {**settings.get(side, {}), measure: number}
    return settings
