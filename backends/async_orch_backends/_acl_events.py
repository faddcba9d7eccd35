"""ACL events: few, recycled, and never reused while a stream may still wait for one."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Final

from async_orch.exceptions import DeviceError

from ._acl_calls import Acl, acl_error
from ._acl_codes import TIMED_OUT
from ._event_clock import EventClock

__all__ = ["AclEvent", "EventPool"]

_SYNC: Final = 1
_TIME_LINE: Final = 8
_COMPLETE: Final = 1


class AclEvent:
    """A recorded event. When nothing refers to it any more, its handle goes back to the pool.

    ``guards`` are events that its stream waited for before: they must not be recorded again until this one is over,
    because until then the device may not have passed the wait.
    """

    __slots__ = ("__weakref__", "_error", "_over", "_pool", "guards", "handle")

    def __init__(self, pool: EventPool, handle: int, guards: tuple[AclEvent, ...]) -> None:
        self._pool = pool
        self.handle = handle
        self.guards = guards
        self._over = False
        self._error: DeviceError | None = None

    def __del__(self) -> None:
        self._pool.give_back(self.handle, self.guards)

    @property
    def native(self) -> int:
        return self.handle

    @property
    def error(self) -> DeviceError | None:
        return self._error

    def query(self) -> bool:
        if not self._over:
            status, code = self._pool.acl.enter("query_event_status")(self.handle)
            if code:
                self._end(acl_error(code, "work before the event"))
            elif status == _COMPLETE:
                self._end(None)
        return self._over

    def wait(self, timeout_s: float) -> bool:
        milliseconds = max(int(timeout_s * 1000), 1)
        code = self._pool.acl.code("synchronize_event_with_timeout", self.handle, milliseconds)
        if code in TIMED_OUT:
            return False
        self._end(acl_error(code, "work before the event") if code else None)
        clock = self._pool.clock
        if clock is not None and not code:
            clock.renew()
        return True

    def time_ns(self) -> int | None:
        clock = self._pool.clock
        if clock is None or self._pool.closed or not self.query() or self._error is not None:
            return None
        return clock.host_ns(self)

    def trim(self) -> None:
        """Let go of guards that are not needed any more, so that two streams waiting in turn build no endless chain."""
        if not self.query():
            for guard in self.guards:
                guard.trim()

    def settle(self) -> None:
        """Before the driver is closed: what is not over by now never will be."""
        if not self.query():
            self._end(DeviceError("the backend 'ascend' was closed"))

    def _end(self, error: DeviceError | None) -> None:
        self._error = error
        self._over = True
        self.guards = ()


class EventPool:
    """Gives event handles that are certainly not in use, and creates one only if there is none.

    Events that streams can wait for are few (1,023 on some devices). The pool holds as many as were ever in use at
    the same time.
    """

    def __init__(self, acl: Acl) -> None:
        self.acl = acl
        self.clock: EventClock | None = None
        self._free: deque[tuple[int, tuple[AclEvent, ...]]] = deque()
        self._flags = _SYNC | _TIME_LINE
        self._live: weakref.WeakSet[AclEvent] = weakref.WeakSet()
        self.closed = False
        try:
            handle = self._create()
        except DeviceError:
            self._flags = _SYNC  # a device that does not take both gives no times
            handle = self._create()
        self.times = bool(self._flags & _TIME_LINE)
        self._fresh = [handle]

    def _create(self) -> int:
        handle: int = self.acl.value("create_event_with_flag", self._flags)
        return handle

    def record(self, stream: int, guards: tuple[AclEvent, ...] = ()) -> AclEvent:
        """An event recorded on ``stream``."""
        handle = self._take(stream)
        event = AclEvent(self, handle, guards)
        self._live.add(event)
        self.acl.call("record_event", handle, stream)
        return event

    def _take(self, stream: int) -> int:
        if self._fresh:
            return self._fresh.pop()
        for _ in range(len(self._free)):
            handle, guards = self._free.popleft()
            status, code = self.acl.enter("query_event_status")(handle)
            if code == 0 and status == _COMPLETE:
                try:
                    self.acl.call("reset_event", handle, stream)
                except DeviceError:
                    self._free.append((handle, guards))
                    raise
                return handle
            self._free.append((handle, guards))
        return self._create()

    def give_back(self, handle: int, guards: tuple[AclEvent, ...]) -> None:
        """From a destructor on any thread: only note it. ``guards`` are let go when the handle is reused."""
        if not self.closed:
            self._free.append((handle, guards))

    def elapsed_ms(self, earlier: Any, later: Any) -> float | None:
        """Milliseconds between two events that are over."""
        if earlier is None:
            return None
        milliseconds, code = self.acl.enter("event_elapsed_time")(earlier.handle, later.handle)
        return None if code else float(milliseconds)

    def close(self) -> None:
        """Settle the events that somebody still refers to, and destroy all handles."""
        if self.clock is not None:
            self.clock.forget()
        live = list(self._live)
        for event in live:
            event.settle()
        handles = {*self._fresh, *(event.handle for event in live)}
        while self._free:
            handle, _ = self._free.popleft()  # letting go of the guards may append
            handles.add(handle)
        self.closed = True
        for handle in handles:
            self.acl.code("destroy_event", handle)
