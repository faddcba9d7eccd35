"""``async-orch bench``: what the engine costs and reaches on this machine."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

from async_orch._commands._shared import write

if TYPE_CHECKING:
    from async_orch._bench import Measured

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Measures, in some seconds, what a step costs beside a bare asyncio.Queue pipeline, how near overlapped steps come "
    "to their bound, and what copies reach. Each run's work is checked; a run that fails its check gives no figure."
)
EPILOG = (
    "Medians of the rounds, with the least and the most of them. Where the machine does other work, the ratios hold "
    "better than the times. The device is simulated, except where it says host. Exit code: 0, or 1 if a check failed."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=_rounds, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the steps: to see that it runs, not to publish"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object in place of the table")


def _rounds(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of rounds") from None
    if not 1 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"{text} must be from 1 to 1000 rounds")
    return value


def run(options: argparse.Namespace) -> int:
    from async_orch._bench import measure_all  # noqa: PLC0415 - imports the engine

    machine = _machine()
    if not options.json:
        write(f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}, Python {machine['python']}\n\n")
    figures: list[Measured] = []
    for figure in measure_all(options.rounds, 0.1 if options.quick else 1.0):
        figures.append(figure)
        if not options.json:
            write(_line(figure))
            sys.stdout.flush()
    if options.json:
        import msgspec  # noqa: PLC0415 - slow to import

        document = {"machine": machine, "rounds": options.rounds, "quick": options.quick, "figures": figures}
        write(msgspec.json.encode(document).decode() + "\n")
    return 1 if any(figure.value is None for figure in figures) else 0


def _line(figure: Measured) -> str:
    if figure.value is None:
        return f"{figure.title:56} not shown: {figure.why_not}\n"
    value, least, most = (_number(item) for item in (figure.value, figure.least, figure.most))
    return f"{figure.title:56} {value:>6} {figure.unit:3} ({least} to {most})  {figure.beside}\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if value < 2 else f"{value:.1f}"


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": list(os.getloadavg()),
    }


def _cpu() -> str | None:
    """The processor's name, where Linux says it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib is slow to import
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), None)
    except OSError:
        return None
