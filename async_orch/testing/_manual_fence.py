"""A fence of no stream: done when the test says so."""

from __future__ import annotations

import threading
from collections.abc import Callable

from async_orch.abc import Fence

__all__ = ["ManualFence"]


class ManualFence(Fence):
    """A fence that is done when `finish` is called, from any thread.

    Parameters
    ----------
    notifies:
        Whether `notify` works. Without it the engine waits for the fence on a thread of its own.
    """

    def __init__(self, *, notifies: bool = True) -> None:
        # A class variable for real backends; here each fence may differ, so that a test needs one class only.
        self.notifies = notifies  # type: ignore[misc]
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._reached_ns: int | None = None

    def finish(self, error: BaseException | None = None, *, time_ns: int | None = None) -> None:
        """Mark the fence done and notify: with ``error`` as failed, reached at ``time_ns`` of the backend's clock.

        A second call does nothing, as a fence settles once.
        """
        with self._lock:
            if self._event.is_set():
                return
            self._error = error
            self._reached_ns = time_ns
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def query(self) -> bool:
        return self._event.is_set()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self._event.wait(timeout_s):
            raise TimeoutError(f"nobody finished the fence within {timeout_s} s")
        if self._error is not None:
            raise self._error

    def notify(self, callback: Callable[[], None]) -> None:
        if not self.notifies:
            super().notify(callback)
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def time_ns(self) -> int | None:
        return self._reached_ns

    def __repr__(self) -> str:
        state = "pending" if not self.query() else "done" if self._error is None else f"failed: {self._error}"
        return f"<ManualFence {state}>"
