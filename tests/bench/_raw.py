"""Raw figures of a bench that prints a table: ``--json FILE`` keeps every sample with machine, load and commit."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.bench._kit import machine, versions

__all__ = ["RawFile", "add_option"]

ROOT = Path(__file__).resolve().parents[2]


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--json FILE``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep all samples there, as one JSON object")


class RawFile:
    """What one run of a bench found, written at its end. Made before anything is measured, for the load before."""

    def __init__(self, path: Path | None, command: str) -> None:
        self.figures: dict[str, Any] = {}
        self._path = path
        self._about = {
            "command": command,
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "load_before": os.getloadavg(),
        }

    def write(self) -> None:
        """Write the file, if one was asked for; a list of numbers takes one line."""
        if self._path is None:
            return
        document = {**self._about, "load_after": os.getloadavg(), "figures": self.figures}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(_text(document, "") + "\n", "utf-8")


def commit() -> str:
    """The commit that is measured, with ``-dirty`` if tracked files differ from it; "unknown" outside a checkout."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _text(value: Any, indent: str) -> str:
    if not isinstance(value, dict):
        return json.dumps(value)
    more = indent + " "
    lines = [f"{more}{json.dumps(str(key))}: {_text(part, more)}" for key, part in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" if lines else "{}"
