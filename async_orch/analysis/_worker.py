"""``python -m async_orch.analysis._worker FILE IDENTITY START-END...``: reads parts of a log for `_parts`.

The numbers of the parts to read come from standard input, what is in them goes to standard output.
"""

from __future__ import annotations

import sys
from pathlib import Path

from async_orch.analysis._part_file import send
from async_orch.analysis._parts import Part, drawn, identity
from async_orch.analysis._scan import Scanner

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Read parts as long as there are any, and write what is in them; the exit code is 0 if all was written.

    It is 1 if the path leads to another file by now.
    """
    path, expected, *bounds = arguments
    parts = [Part(*map(int, text.split("-"))) for text in bounds]
    scanner = Scanner()
    with Path(path).open("rb", buffering=0) as file:
        if identity(file) != expected:
            return 1
        for number in drawn(sys.stdin.fileno()):
            send(sys.stdout.buffer, scanner.read_part(file, parts[number], number))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
