"""``python -m async_orch.analysis._worker FILE START END``: reads a part of a log for `async_orch.analysis._parts`."""

from __future__ import annotations

import sys
from pathlib import Path

from async_orch.analysis._scan import Scanner

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Read the part and write what is in it to standard output; the exit code is 0 if all was written."""
    path, start, end = arguments
    scanner = Scanner()
    scanner.read_range(Path(path), int(start), int(end))
    scanner.send_part(sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
