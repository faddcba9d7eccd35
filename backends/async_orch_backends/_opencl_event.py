"""Places in OpenCL queues, told by the events of the commands before them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from async_orch.exceptions import DeviceError

from ._anchored_clock import AnchoredClock
from ._opencl_driver import status_error

__all__ = ["EventReader", "OpenCLEvent"]


class EventReader:
    """What all events of a queue are read with.

    Attributes
    ----------
    cl:
        The module ``pyopencl``.
    status, end:
        What to ask an event for. ``event.command_execution_status`` and ``event.profile.end`` are the same by way of
        Python; the second takes ten times as long.
    """

    __slots__ = ("cl", "clock", "end", "status", "stream")

    def __init__(self, cl: Any, clock: AnchoredClock, stream: str) -> None:
        self.cl = cl
        self.clock = clock
        self.stream = stream
        self.status = cl.event_info.COMMAND_EXECUTION_STATUS
        self.end = cl.profiling_info.END


class OpenCLEvent:
    """A place in a queue: over when all of its driver events are. Without any, it is over from the start.

    The time is that of the last event's end, but not before the place was marked: a queue that was idle is reached
    when it is asked. ``earlier`` is a command of before the last isolation, whose failure is not the place's.
    """

    __slots__ = ("_earlier", "_enqueue_ns", "_over", "_reader", "_time_ns", "error", "events")

    def __init__(
        self, reader: EventReader, events: Sequence[Any], failure: DeviceError | None = None, earlier: Any = None
    ) -> None:
        self.events = events
        self.error = failure
        self._reader = reader
        self._earlier = earlier
        self._enqueue_ns = time.monotonic_ns()
        self._over = not events
        self._time_ns: int | None = None

    @property
    def native(self) -> Any:
        return self.events[0] if self.events else None

    def query(self) -> bool:
        if self._over:
            return True
        error, what = self.error, self._reader.status
        for event in self.events:
            status = event.get_info(what)
            if status > 0:
                return False
            if status < 0 and error is None and event is not self._earlier:
                error = status_error(status, self._reader.stream)
        self.error = error
        self._over = True
        return True

    def wait(self, timeout_s: float) -> bool:
        reader = self._reader
        failed, what = reader.cl.Error, reader.status
        for event in self.events:
            if event.get_info(what) <= 0:
                continue  # each wait gives the GIL away, also where there is nothing to wait for
            try:
                event.wait()
            except failed:
                continue  # `query` says how
        reader.clock.renew()
        return True

    def time_ns(self) -> int | None:
        time_ns = self._time_ns
        if time_ns is None and self.error is None:
            reader, time_ns = self._reader, self._enqueue_ns
            what, offset_ns = reader.end, reader.clock.offset_ns
            try:
                for event in self.events:
                    end_ns = event.get_profiling_info(what) + offset_ns
                    if end_ns > time_ns:
                        time_ns = end_ns
            except reader.cl.Error:  # the caller's queue does not profile
                return None
            self._time_ns = time_ns = min(time_ns, time.monotonic_ns())
        return time_ns
