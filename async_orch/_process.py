"""Which process this is, without asking the system: `os.getpid` is a system call."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["PROCESS"]


class Process:
    """``pid`` is this process's id: a child that `os.fork` made sees its own."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.pid = os.getpid()


PROCESS: Final = Process()
"""A fact about the process, not state of the library: nothing but a fork changes it."""
