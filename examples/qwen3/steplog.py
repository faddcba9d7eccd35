"""The runner's step log: begun anew each time, but never in place of a file that is something else."""

from __future__ import annotations

import json
from pathlib import Path

from examples.qwen3.config import ModelError

__all__ = ["start_log"]

LONGEST_RECORD_NBYTES = 1 << 20
"""More than any line of a step log has; what is longer is no record."""


def start_log(path: Path) -> None:
    """Make the log an empty file, to which the modes append one after the other.

    Raises `ModelError` if it cannot be written, or holds anything but a step log.
    """
    try:
        if not path.is_file():  # new, or a device such as /dev/null
            path.open("wb").close()
            return
        with path.open("r+b") as file:
            first = file.readline(LONGEST_RECORD_NBYTES)
            if first and not _is_record(first):
                raise ModelError(f"{path} exists and is no step log, so it is not replaced; pass --log another name")
            file.truncate(0)
    except OSError as error:
        raise ModelError(f"cannot write the step log {path}: {error.strerror}; pass --log another file") from error


def _is_record(line: bytes) -> bool:
    """Whether a line is one that an orchestrator writes."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or no UTF-8; nested without end
        return False
    event = record.get("event") if isinstance(record, dict) else None
    return isinstance(event, str) and event.startswith(("orchestrator.", "step."))
