"""The server in a process of its own, on the shipped checkpoint."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NAME", "started"]

ROOT = Path(__file__).resolve().parents[2]
NAME = "qwen3-stories"


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``python -m examples.serve`` on a free port, and its address; ended if the body has not done so."""
    command = [sys.executable, "-m", "examples.serve", "--port", "0", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "ASYNC_ORCH_MODE"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), process.communicate()
        yield process, line.split()[-1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
