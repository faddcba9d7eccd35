"""``async-orch backends``: what is installed, what works here, and why not."""

from __future__ import annotations

import argparse
import sys
from contextlib import redirect_stdout
from typing import Any

from async_orch._commands._shared import UsageError, write

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Opens each installed backend, or the ones named, and shows its device, memory and support, and how long an "
    "allocation, its first use and a copy take here. A backend that cannot be opened says what it needs, with how far "
    "its support goes behind its name."
)
EPILOG = (
    "alloc is a device allocation with its first use (touch), copy one from host memory, each the median of 5. Exit "
    "code: 0, or 1 if a backend that was named does not work, or 2 for a wrong argument."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="*", help="a backend such as opencl:0; default: all installed")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="(default: %(default)s)")
    parser.add_argument(
        "--nbytes", type=_size, default=16_000_000, metavar="N", help="size to allocate and copy (default: %(default)s)"
    )
    parser.add_argument("--no-measure", action="store_true", help="only open and ask")


def _size(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of bytes") from None
    if not 1 <= value <= 2**32:
        raise argparse.ArgumentTypeError(f"{text} must be from 1 to {2**32} bytes")
    return value


def run(options: argparse.Namespace) -> int:
    from async_orch._survey import survey  # noqa: PLC0415 - imports numpy

    if any(not name.isprintable() or not name for name in options.names):
        raise UsageError("a backend's name is printable text such as host or opencl:0")
    nbytes = None if options.no_measure else options.nbytes
    with redirect_stdout(sys.stderr):  # what third parties' modules print is no part of the answer
        found = survey(options.names, nbytes=nbytes)
    if options.format == "json":
        import msgspec  # noqa: PLC0415 - slow to import

        from async_orch.analysis._shown import shown_json  # noqa: PLC0415 - imports numpy

        write(msgspec.json.format(shown_json(found), indent=2) + "\n")
    else:
        write(_table(found))
    return 1 if options.names and not all(entry["works"] for entry in found) else 0


_MAX_TEXT = 2000  # a reason lists what there is
_HEADINGS = (
    "backend",
    "device",
    "memory",
    "pinned",
    "align",
    "allocs seen",
    "clock",
    "alloc ms",
    "copy GB/s",
    "driver",
    "support",
)


def _table(found: list[dict[str, Any]]) -> str:
    """What works in columns, then what does not and why. Names and texts are third parties': nothing in them acts."""
    found = [{key: _harmless(value) for key, value in entry.items()} for entry in found]
    rows = [_HEADINGS, *(_row(entry) for entry in found if entry["works"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if len(rows) == 1:
        lines = ["no backend works here"]
    broken = [_broken(entry) for entry in found if not entry["works"]]
    return "\n".join([*lines, *([""] if broken else []), *broken]) + "\n"


def _broken(entry: dict[str, Any]) -> str:
    support = f" ({entry['support']})" if entry["support"] else ""
    return f"{entry['backend']}{support}: {entry['why_not']}"


def _harmless(value: Any) -> Any:
    from async_orch.analysis._shown import shown  # noqa: PLC0415 - imports numpy

    return shown(value, _MAX_TEXT) if isinstance(value, str) else value


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    return (
        entry["backend"],
        entry["device"],
        _shown(entry["memory_nbytes"], 1e9, "GB"),
        "yes" if entry["pinned"] else "no",
        f"{entry['alignment_nbytes']} B",
        entry["alloc_visibility"],
        entry["device_clock"],
        _shown(entry["alloc_ns"], 1e6, ""),
        "-" if not entry["copy_bytes_per_s"] else f"{entry['copy_bytes_per_s'] / 1e9:.2f}",
        entry["driver"] or "-",
        entry["support"],
    )


def _shown(value: int | None, unit: float, name: str) -> str:
    return "-" if value is None else f"{value / unit:.2f} {name}".rstrip()
