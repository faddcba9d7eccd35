"""A driver in which nothing happens by itself: events are reached, and calls fail, when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from async_orch_backends._driver_fence import NativeEvent

from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import DeviceError

__all__ = ["ScriptedBuffer", "ScriptedDriver", "ScriptedEvent", "ScriptedQueue"]


class ScriptedDriver:
    """What the queues share: all calls in their order, a clock that counts them, and the next call's error."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.next_error: DeviceError | None = None

    def call(self, text: str) -> None:
        """Note a call; raises the error that it is to fail with."""
        error, self.next_error = self.next_error, None
        self.calls.append(f"{text} fails" if error else text)
        if error is not None:
            raise error


class ScriptedBuffer(Buffer):
    """A size, which is all that the driver looks at; one that is not ``good`` is refused in every copy."""

    def __init__(self, nbytes: int, *, good: bool = True) -> None:
        super().__init__(nbytes, "good" if good else "bad")
        self.good = good

    @property
    def is_host(self) -> bool:
        return False

    @property
    def array(self) -> ByteArray:
        return np.zeros(self.nbytes, np.uint8)

    @property
    def handle(self) -> int:
        return 0

    def free(self) -> None:
        """Nothing to give back."""


class ScriptedEvent:
    """A marker, reached when its queue's `ScriptedQueue.reach` comes to it."""

    def __init__(self, native: str, reached: Callable[[], None]) -> None:
        self.native: Any = native
        self.error: DeviceError | None = None
        self._over_at: int | None = None
        self._reached = reached

    def end(self, at: int, error: DeviceError | None) -> None:
        """It is reached when the driver has had ``at`` calls."""
        self._over_at = at
        self.error = error

    def query(self) -> bool:
        return self._over_at is not None

    def wait(self, timeout_s: float) -> bool:
        if not self.query():
            self._reached()
        return True

    def time_ns(self) -> int | None:
        return self._over_at


class ScriptedQueue:
    """A `DriverQueue` that writes down what it is told."""

    handle = 0
    domain = "scripted"

    def __init__(self, driver: ScriptedDriver, name: str) -> None:
        self.native: Any = name
        self._driver = driver
        self._events: deque[ScriptedEvent] = deque()

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        if not (isinstance(dst, ScriptedBuffer) and dst.good):
            raise DeviceError(f"cannot copy to {dst!r}")
        self._driver.call(f"{self.native}: copy {nbytes} B from {src_offset} to {dst_offset}")

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        self._driver.call(f"{self.native}: launch {kernel} {args}")

    def record(self) -> NativeEvent:
        native = f"{self.native}.{len(self._driver.calls)}"
        self._driver.call(f"{self.native}: record {native}")
        event = ScriptedEvent(native, self.reach_all)
        self._events.append(event)
        return event

    def wait(self, event: NativeEvent) -> None:
        self._driver.call(f"{self.native}: wait for {event.native}")

    def isolate(self) -> None:
        self._driver.calls.append(f"{self.native}: isolate")

    def close(self) -> None:
        self._driver.calls.append(f"{self.native}: close")

    def reach(self, error: DeviceError | None = None) -> None:
        """The device comes to the next marker, if there is one."""
        if self._events:
            self._events.popleft().end(len(self._driver.calls), error)

    def reach_all(self) -> None:
        """The device comes to the end of the queue."""
        while self._events:
            self.reach()
