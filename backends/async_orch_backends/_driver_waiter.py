"""The thread behind a driver's stream that blocks in the driver, so that nobody else has to."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

from async_orch.exceptions import DeviceError

from ._driver_fence import DriverFence, NativeEvent

__all__ = ["Waiter"]

_SLICE_S = 0.1  # between two looks whether the stream was given up, where the driver's wait has a time-out


class Waiter:
    """Waits for events in the order given, each in a blocking driver call without the GIL, and settles fences.

    Completion never comes through a driver's callback: those may hold driver locks while they wait for the GIL, and
    some drivers do not call back for work that failed. The daemon thread starts with the first fence.
    """

    __slots__ = ("_current", "_given_up", "_name", "_put", "_queue", "_settled", "_thread")

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: queue.SimpleQueue[DriverFence | NativeEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._given_up = False
        self._current: DriverFence | NativeEvent | None = None
        self._put = 0
        self._settled = 0  # only the thread counts it up

    @property
    def busy(self) -> bool:
        """Whether something was put that is not settled yet."""
        return self._put != self._settled

    def put(self, item: DriverFence | NativeEvent) -> None:
        """Wait for an issued fence and tell who waits for it, or for a bare event. Calls come one at a time."""
        if self._thread is None:
            self._start()
        self._put += 1
        self._queue.put(item)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            raise DeviceError(f"cannot start the thread {self._name}: {exc}") from exc
        self._thread = thread

    def stop(self, deadline_ns: int) -> bool:
        """End the thread after what it was given; False if it is still blocked in the driver at ``deadline_ns``."""
        thread = self._thread
        if thread is None:
            return True
        self._queue.put(None)
        if thread is threading.current_thread():
            return True  # closed by a callback: it ends when that returns
        thread.join(max(deadline_ns - time.monotonic_ns(), 0) / 1e9)
        self._given_up = thread.is_alive()
        return not self._given_up

    def settle_rest(self) -> None:
        """After the stream was given up: settle the fences that the thread hangs on and will not get to."""
        self._settle(self._current)
        with contextlib.suppress(queue.Empty):
            while True:
                self._settle(self._queue.get_nowait())

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            self._current = item
            event = item.event if isinstance(item, DriverFence) else item
            while event is not None and not event.query() and not event.wait(_SLICE_S):
                if self._given_up:
                    break
            self._settle(item)
            self._settled += 1
            self._current = item = event = None  # or the last event lives as long as the stream is idle

    def _settle(self, item: DriverFence | NativeEvent | None) -> None:
        if isinstance(item, DriverFence):
            item.query()
            item.deliver()
