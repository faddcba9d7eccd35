"""What events of drivers that raise exceptions have in common: asked, waited for, failed once and for good."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from async_orch.exceptions import DeviceError

from ._event_clock import EventClock

__all__ = ["TimedEvent"]


class TimedEvent(ABC):
    """An event with a time. A subclass says how its driver is asked, waited for, and what a failure means."""

    __slots__ = ("_clock", "_error", "_over", "native")

    def __init__(self, native: Any, clock: EventClock) -> None:
        self.native = native
        self._clock = clock
        self._error: DeviceError | None = None
        self._over = False

    @abstractmethod
    def is_done(self) -> bool:
        """Ask the driver; raises if work before the event failed."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block until the event is reached; raises likewise."""

    @abstractmethod
    def failure(self, exc: Exception) -> DeviceError:
        """What the driver raised, as ours."""

    @property
    def error(self) -> DeviceError | None:
        return self._error

    def query(self) -> bool:
        if not self._over:
            try:
                self._over = self.is_done()
            except Exception as exc:  # noqa: BLE001 - drivers have exceptions of their own; it becomes the event's error
                self._fail(exc)
        return self._over

    def wait(self, timeout_s: float) -> bool:
        try:
            self.synchronize()
            self._clock.renew()
        except Exception as exc:  # noqa: BLE001 - the same; the waiter thread must go on
            self._fail(exc)
        self._over = True
        return True

    def _fail(self, exc: Exception) -> None:
        self._error = self.failure(exc)
        self._over = True

    def time_ns(self) -> int | None:
        if not self.query() or self._error is not None:
            return None
        try:
            return self._clock.host_ns(self.native)
        except Exception:  # noqa: BLE001 - an event without timing, a lost device, or a backend that is closed by now
            return None
