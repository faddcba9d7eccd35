"""How a worker process begins, and whether this process is one. Imports nothing: every opening asks."""

from __future__ import annotations

import sys

from async_orch.exceptions import MisuseError

__all__ = ["BOOT", "refuse_in_worker"]

BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from async_orch._process_worker import run; run(int(sys.argv[1]), int(sys.argv[2]))"
)
"""The program text of a worker: its arguments are the channel's descriptor, the parent's pid, and its ``sys.path``."""


def refuse_in_worker() -> None:
    """A worker that opens an orchestrator would start workers of its own, and so on. Raises `MisuseError`."""
    if BOOT in sys.orig_argv:
        raise MisuseError(
            "an orchestrator cannot be opened in a build worker process; if this happens while the worker imports your "
            "script, put what is to run once behind 'if __name__ == \"__main__\":'"
        )
