"""Host times from drivers that only tell the time between two events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["EventClock"]

_TRIES = 5
_AGE_NS = 10_000_000_000
_ACCURACY_NS = 1_000_000


class EventClock:
    """A base event with its host time; other events are so many milliseconds later.

    The base is the one of five whose host-side bracket was tightest. It is renewed every 10 s by whoever waits for the
    device anyway: the drivers give milliseconds as a 32-bit float, which is exact to 1 us only over some seconds, and
    the two clocks drift apart.

    Parameters
    ----------
    mark:
        Records an event on a stream without work, waits for it and returns it.
    elapsed_ms:
        Milliseconds from the first event to the second; None if the driver cannot tell.
    """

    __slots__ = ("_base", "_elapsed_ms", "_lock", "_mark", "_renewed_ns")

    def __init__(self, mark: Callable[[], Any], elapsed_ms: Callable[[Any, Any], float | None]) -> None:
        self._mark = mark
        self._elapsed_ms = elapsed_ms
        self._lock = threading.Lock()
        self._base = self._tightest()[1:]
        self._renewed_ns = time.monotonic_ns()

    def _tightest(self) -> tuple[int, Any, int]:
        return min((self._bracketed() for _ in range(_TRIES)), key=lambda found: found[0])

    def _bracketed(self) -> tuple[int, Any, int]:
        """Width of the bracket, the event, and the bracket's middle."""
        before = time.monotonic_ns()
        event = self._mark()
        after = time.monotonic_ns()
        return after - before, event, (before + after) // 2

    def host_ns(self, event: Any) -> int | None:
        """CLOCK_MONOTONIC when ``event``, which is over, was reached."""
        base, base_ns = self._base
        elapsed_ms = self._elapsed_ms(base, event)
        return None if elapsed_ms is None else min(base_ns + round(elapsed_ms * 1e6), time.monotonic_ns())

    def renew(self) -> None:
        """Take a new base if this one is old; blocks for some tens of microseconds then."""
        if time.monotonic_ns() - self._renewed_ns < _AGE_NS or not self._lock.acquire(blocking=False):
            return
        try:
            width_ns, event, host_ns = self._tightest()
            if width_ns <= _ACCURACY_NS:
                self._base = (event, host_ns)
            self._renewed_ns = time.monotonic_ns()
        finally:
            self._lock.release()

    def forget(self) -> None:
        """Let go of the base event, before the driver is closed."""
        self._base = (None, 0)
