"""A device's clock in host time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["AnchoredClock"]

_TRIES = 5
_AGE_NS = 10_000_000_000
_ACCURACY_NS = 1_000_000


class AnchoredClock:
    """Adds an offset to a device's nanoseconds so that they read as CLOCK_MONOTONIC.

    The offset is the middle of a host-side bracket around one reading of the device's clock, the tightest of five.
    It is renewed every 10 s by whoever waits for the device anyway, as the two clocks drift apart by some parts in a
    million; a reading that took longer than 1 ms is thrown away.
    """

    __slots__ = ("_anchored_ns", "_lock", "_read", "offset_ns")

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self.offset_ns = min(self._bracket() for _ in range(_TRIES))[1]
        """What to add to the device's nanoseconds now."""
        self._anchored_ns = time.monotonic_ns()

    def _bracket(self) -> tuple[int, int]:
        """Width of the bracket, and the offset."""
        before = time.monotonic_ns()
        device_ns = self._read()
        after = time.monotonic_ns()
        return after - before, (before + after) // 2 - device_ns

    def renew(self) -> None:
        """Anchor again if the last time is long ago; blocks for some tens of microseconds then."""
        if time.monotonic_ns() - self._anchored_ns < _AGE_NS or not self._lock.acquire(blocking=False):
            return
        try:
            width_ns, offset_ns = min(self._bracket() for _ in range(_TRIES))
            if width_ns <= _ACCURACY_NS:
                self.offset_ns = offset_ns
            self._anchored_ns = time.monotonic_ns()
        finally:
            self._lock.release()
