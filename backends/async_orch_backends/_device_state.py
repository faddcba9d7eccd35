"""What the streams of one opened software device share."""

from __future__ import annotations

import os
import time
import weakref
from typing import Protocol

from async_orch.exceptions import DeviceError, DeviceLost

__all__ = ["DeviceState", "Worker"]


class Worker(Protocol):
    """The part of a stream's worker that its device needs."""

    def bar(self) -> None:
        """Let no operation complete at enqueue any more. In a forked child: have locks that nobody holds."""


class DeviceState:
    """Whether the device is open, lost, or belongs to the process that this one was forked from."""

    __slots__ = (
        "__weakref__",
        "backend",
        "close_timeout_s",
        "closed",
        "forked",
        "lost",
        "threads_abandoned",
        "workers",
    )

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.close_timeout_s = 2.0
        self.closed = False
        self.forked = False
        self.lost: DeviceLost | None = None
        self.threads_abandoned = 0
        self.workers: set[Worker] = set()
        _devices.add(self)

    @property
    def healthy(self) -> bool:
        return not (self.closed or self.forked or self.lost is not None)

    def close_deadline_ns(self) -> int:
        """Until when a close that begins now waits for threads."""
        return time.monotonic_ns() + int(self.close_timeout_s * 1e9)

    def lose(self, error: DeviceLost) -> None:
        """A kernel raised `DeviceLost`: everything on every stream fails until the backend's ``reset``."""
        if self.lost is None:
            self.lost = error
        for worker in tuple(self.workers):
            worker.bar()

    def check_process(self) -> None:
        """Raise `DeviceError` in a process forked after the device was opened: its threads do not exist there."""
        if self.forked:
            raise DeviceError(
                f"backend {self.backend!r} was opened before os.fork() and cannot be used in the child; "
                "open it there, or start the process with the 'spawn' method"
            )

    def check_open(self) -> None:
        self.check_process()
        if self.closed:
            raise DeviceError(f"backend {self.backend!r} is closed")

    def mark_forked(self) -> None:
        """Runs in the child, where locks of the parent's threads may be held for ever: takes none."""
        self.forked = True
        for worker in tuple(self.workers):
            worker.bar()


# A fork concerns the process, not an object of it, and handlers cannot be taken back, so one handler serves all.
_devices: weakref.WeakSet[DeviceState] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for device in tuple(_devices):
        device.mark_forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
