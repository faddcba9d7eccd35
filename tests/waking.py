"""Waking loops in tests: from threads, from the loop itself, and while the loop sleeps."""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from async_orch._waker import Waker

__all__ = ["PATIENCE_S", "AsleepLoop", "needs_eventfd", "on_thread", "open_files", "wake_from"]

PATIENCE_S = 20.0
needs_eventfd = pytest.mark.skipif(not hasattr(os, "eventfd"), reason="os.eventfd is Linux's")


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def on_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def wake_from(who: str, waker: Waker) -> None:
    if who == "thread":
        on_thread(waker.wake)
    else:
        waker.wake()


class AsleepLoop(asyncio.SelectorEventLoop):
    """Says when it is about to sleep, with nothing to do."""

    def __init__(self) -> None:
        self.asleep = threading.Semaphore(0)
        super().__init__(_TellingSelector(self))


class _TellingSelector(selectors.DefaultSelector):
    def __init__(self, loop: AsleepLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout > 0:
            self._loop.asleep.release()
        return super().select(timeout)
