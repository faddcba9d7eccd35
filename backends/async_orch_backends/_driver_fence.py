"""Fences of real drivers: a driver's event, or a place in the queue of what the driver has not been given yet."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError

from ._software_fence import call_back, raise_failure

__all__ = ["DriverFence", "FenceOwner", "NativeEvent"]


class NativeEvent(Protocol):
    """What a driver gives to mark a place in a queue; once over, it stays over."""

    @property
    @abstractmethod
    def native(self) -> Any:
        """The driver's own object."""

    @abstractmethod
    def query(self) -> bool:
        """Whether everything before the event is over, well or not. Never raises, never blocks."""

    @abstractmethod
    def wait(self, timeout_s: float) -> bool:
        """Block without the GIL until it is over; False if it is not after ``timeout_s``.

        A driver without time-outs blocks until the event is over.
        """

    @property
    @abstractmethod
    def error(self) -> DeviceError | None:
        """Why it failed; None while it is not over."""

    @abstractmethod
    def time_ns(self) -> int | None:
        """When it was reached in CLOCK_MONOTONIC nanoseconds; None while it is not over, and where unknown."""


class FenceOwner(Protocol):
    """What a fence needs of its stream."""

    fence_lock: threading.Lock

    @property
    @abstractmethod
    def domain(self) -> object:
        """Streams of one domain wait for each other's events in the driver."""

    @property
    @abstractmethod
    def given_up(self) -> DeviceError | None:
        """Why nothing of this stream will ever be over any more; None for a stream in order."""

    def check_process(self) -> None:
        """Raise `DeviceError` in a forked child, where nobody will ever settle the fence."""

    def watch(self, fence: DriverFence) -> None:
        """Have the stream's waiter thread wait for ``fence`` and then call `DriverFence.deliver`."""

    @abstractmethod
    def delivering(self) -> bool:
        """Whether the waiter thread has fences to deliver, which those found to be over must not overtake."""

    def failed(self, error: DeviceError) -> None:
        """Work of the stream failed on the device."""


class DriverFence(Fence):
    """Done when its driver event is over. Without an event yet, it waits in its stream's queue of deferred work.

    Whoever blocks or asks for a notification is served by the stream's waiter thread; `query` asks the driver.
    ``sources`` are fences of other streams that the driver waits for: if one fails, so does this, whatever the driver
    makes of it.
    """

    __slots__ = (
        "_callbacks",
        "_delivered",
        "_error",
        "_issued",
        "_over",
        "_signal",
        "_sources",
        "_watched",
        "event",
        "owner",
    )

    notifies = True

    def __init__(
        self,
        owner: FenceOwner,
        event: NativeEvent | None,
        error: DeviceError | None = None,
        sources: tuple[DriverFence, ...] = (),
    ) -> None:
        self.owner = owner
        self.event = event
        self._sources = sources
        self._error: BaseException | None = error
        self._over = False
        self._delivered = False
        self._watched = False
        self._callbacks: Sequence[Callable[[], None]] = ()
        self._issued: Sequence[Callable[[], None]] = ()
        self._signal: threading.Event | None = None

    # -- the seam ------------------------------------------------------------------------------------------

    def query(self) -> bool:
        if self._over:
            return True
        event = self.event
        if event is not None and event.query():
            error = event.error
            if error is None and self._sources:
                error = self._source_error()
            if error is not None:
                self._conclude(error)
                return True
            self._over = True
            self._sources = ()
            return True
        given_up = self.owner.given_up
        if given_up is None:
            return False
        self._conclude(given_up)
        return True

    @property
    def error(self) -> BaseException | None:
        return self._error if self.query() else None

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self.query():
            self.owner.check_process()
            signal = self._signal_when_over()
            if signal is not None and not signal.wait(None if timeout_s is None else max(timeout_s, 0.0)):
                raise TimeoutError(f"the fence was not reached within {timeout_s} s")
        if self._error is not None:
            raise_failure(self._error)

    def notify(self, callback: Callable[[], None]) -> None:
        if not self.query() or self.owner.delivering():
            self.owner.check_process()
            with self.owner.fence_lock:
                if not self._delivered:
                    self._callbacks = [*self._callbacks, callback]
                    self._watch()
                    return
        callback()

    def time_ns(self) -> int | None:
        event = self.event
        return None if event is None else event.time_ns()

    @property
    def native(self) -> Any:
        """The driver's event, None while the fence is deferred behind a fence from elsewhere."""
        return None if self.event is None else self.event.native

    # -- for streams ---------------------------------------------------------------------------------------

    @property
    def known_error(self) -> DeviceError | None:
        """The failure that the fence is certain to have, though it may not be over yet."""
        error = self._error
        return error if error is None or isinstance(error, DeviceError) else DeviceError(str(error))

    @property
    def passed_well(self) -> bool:
        """Whether it is over without an error."""
        return self.query() and self._error is None

    def when_issued(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` when the fence has a driver event or is over, at once if that is so."""
        with self.owner.fence_lock:
            if self.event is None and not self._over:
                self._issued = [*self._issued, callback]
                return
        callback()

    def trim(self) -> None:
        """Let go of sources that are over, so that two streams waiting in turn build no endless chain."""
        if not self.query():
            for source in self._sources:
                source.trim()

    def issue(
        self, event: NativeEvent, error: DeviceError | None, sources: tuple[DriverFence, ...]
    ) -> Sequence[Callable[[], None]]:
        """The driver was given the fence at last. Returns who wants to know, to be called without locks."""
        with self.owner.fence_lock:
            self._error = error
            self._sources = sources
            self.event = event
            issued, self._issued = self._issued, ()
            if self._watched:
                self.owner.watch(self)
        return issued

    def drop(self, error: DeviceError) -> None:
        """The fence will never be given to the driver."""
        self._conclude(error)
        self.deliver()
        with self.owner.fence_lock:
            issued, self._issued = self._issued, ()
        for callback in issued:
            call_back(callback)

    def deliver(self) -> None:
        """Tell everyone who waits. Called by the waiter thread, or by whoever closes the stream, once it is over."""
        with self.owner.fence_lock:
            self._delivered = True
            callbacks, self._callbacks = self._callbacks, ()
            signal = self._signal
        if signal is not None:
            signal.set()
        for callback in callbacks:
            call_back(callback)

    # -- inside --------------------------------------------------------------------------------------------

    def _conclude(self, error: BaseException | None) -> None:
        """Any number of threads may find the fence over at once; they find the same."""
        if self._error is None and error is not None:
            self._error = error
            if isinstance(error, DeviceError):
                self.owner.failed(error)
        self._over = True
        self._sources = ()

    def _source_error(self) -> DeviceError | None:
        for source in self._sources:
            if (source._over or source.query()) and source._error is not None:
                return source.known_error
        return None

    def _signal_when_over(self) -> threading.Event | None:
        with self.owner.fence_lock:
            if self._delivered:
                return None
            if self._signal is None:
                self._signal = threading.Event()
            self._watch()
            return self._signal

    def _watch(self) -> None:
        if not self._watched:
            self._watched = True
            if self.event is not None:
                self.owner.watch(self)
