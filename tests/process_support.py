"""What tests of worker processes look at: which there are, and that none is left."""

from __future__ import annotations

import os
from pathlib import Path

from async_orch._process_boot import BOOT

__all__ = ["is_gone", "state_of", "worker_pids"]

_MARK = BOOT.encode()


def worker_pids() -> set[int]:
    """Workers of this process that run, and children of it that nobody has reaped."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = entry.joinpath("stat").read_text("utf-8").rpartition(")")[2].split()[:2]
            command = entry.joinpath("cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if int(parent) == os.getpid() and (state == "Z" or _MARK in command):
            found.add(int(entry.name))
    return found


def state_of(pid: int) -> str:
    """The letter that the kernel has for what a process does; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that only waits to be reaped by whoever inherited it has."""
    return state_of(pid) in ("", "Z")
