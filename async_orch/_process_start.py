"""Starting a worker process, and seeing one to its end; both block, so that they belong on a thread."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from multiprocessing import spawn

from async_orch._process_boot import BOOT
from async_orch.exceptions import ConfigurationError

__all__ = ["ends_within", "how_it_ended", "reap", "start"]

KILL_TIMEOUT_S = 5.0
"""How long a killed process may take to end; one that the kernel cannot end is left behind and counted."""


def start(descriptor: int) -> subprocess.Popen[bytes]:
    """Start a worker whose channel is ``descriptor``: a fresh interpreter that inherits it, and output and errors.

    It dies with the thread that calls this. Raises `OSError`, and `ConfigurationError` in a frozen executable.
    """
    command = spawn.get_command_line()  # the interpreter and the flags that this process was started with, then -c ...
    if "-c" not in command:
        raise ConfigurationError("build_in='process' needs a Python interpreter to start; this is a frozen executable")
    interpreter = command[: command.index("-c")]
    arguments = [BOOT, str(descriptor), str(os.getpid()), json.dumps(sys.path)]
    return subprocess.Popen(  # noqa: S603 - this very interpreter
        [*interpreter, "-c", *arguments], stdin=subprocess.DEVNULL, pass_fds=[descriptor]
    )


def reap(process: subprocess.Popen[bytes], patience_s: float) -> bool:
    """Wait ``patience_s`` for a worker to end by itself, then kill it. False if the kernel cannot end it."""
    if patience_s > 0 and ends_within(process, patience_s):
        return True
    process.kill()
    return ends_within(process, KILL_TIMEOUT_S)


def ends_within(process: subprocess.Popen[bytes], patience_s: float) -> bool:
    """Whether a worker ends by itself within ``patience_s``."""
    try:
        process.wait(max(patience_s, 0.0))
    except subprocess.TimeoutExpired:
        return False
    return True


def how_it_ended(exit_code: int | None) -> str:
    """An exit code of `subprocess` in words."""
    if exit_code is None:
        return "ended in an unknown way"
    if exit_code >= 0:
        return f"ended with exit status {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (out of memory, perhaps)" if -exit_code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
