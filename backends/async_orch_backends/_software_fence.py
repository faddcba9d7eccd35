"""Fences of the software devices."""

from __future__ import annotations

import threading
from abc import ABCMeta
from collections.abc import Callable
from typing import ClassVar, NoReturn, Protocol

import msgspec

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError

__all__ = ["DoneFence", "FenceOwner", "PendingFence", "call_back", "raise_failure"]


class FenceOwner(Protocol):
    """What a pending fence needs of the stream worker that it was recorded on."""

    lock: threading.Lock

    def check_process(self) -> None:
        """Raise `DeviceError` in a forked child, where nobody will ever settle the fence."""


def raise_failure(error: BaseException) -> NoReturn:
    """Raise a fresh exception that says what ``error`` says.

    A fence may be waited for many times, and each raise of one exception object would lengthen its traceback.
    """
    if isinstance(error, DeviceError):
        raise type(error)(*error.args) from error.__cause__
    raise DeviceError(str(error)) from error


def call_back(callback: Callable[[], None]) -> None:
    """Run a callback where its caller is not on the stack; what it raises goes to `threading.excepthook`."""
    try:
        callback()
    except BaseException as exc:  # noqa: BLE001 - reported to the hook; a callback must not end the stream
        threading.excepthook(threading.ExceptHookArgs((type(exc), exc, exc.__traceback__, threading.current_thread())))


class _StructAndFence(msgspec.StructMeta, ABCMeta):
    """A Struct that implements `Fence`."""


class DoneFence(msgspec.Struct, Fence, metaclass=_StructAndFence, eq=False):
    """A marker on a stream that had nothing pending: done from the start.

    A Struct is made in half the time that an ``__init__`` takes, and a step on a free device makes five of these.
    """

    _time_ns: int
    failure: BaseException | None = None
    """`error`, for those who know that it is this class: an attribute costs a fifth of a property."""

    notifies: ClassVar[bool] = True

    def query(self) -> bool:
        return True

    @property
    def error(self) -> BaseException | None:
        return self.failure

    def synchronize(self, timeout_s: float | None = None) -> None:
        if self.failure is not None:
            raise_failure(self.failure)

    def notify(self, callback: Callable[[], None]) -> None:
        callback()

    def time_ns(self) -> int | None:
        return self._time_ns


class PendingFence(Fence):
    """A marker that its stream's worker will settle, exactly once."""

    __slots__ = ("_callbacks", "_done", "_error", "_event", "_owner", "enqueue_ns", "reached_ns")

    notifies = True

    def __init__(self, owner: FenceOwner, enqueue_ns: int) -> None:
        self._owner = owner
        self._done = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] | None = None
        self._event: threading.Event | None = None
        self.enqueue_ns = enqueue_ns
        self.reached_ns: int | None = None

    def query(self) -> bool:
        return self._done

    @property
    def error(self) -> BaseException | None:
        return self._error

    def time_ns(self) -> int | None:
        return self.reached_ns if self._done else None

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self._done:
            self._owner.check_process()
            with self._owner.lock:
                event = self._event
                if event is None and not self._done:
                    event = self._event = threading.Event()
            if event is not None and not event.wait(None if timeout_s is None else max(timeout_s, 0.0)):
                raise TimeoutError(f"the fence was not reached within {timeout_s} s")
        if self._error is not None:
            raise_failure(self._error)

    def notify(self, callback: Callable[[], None]) -> None:
        if not self._done:
            self._owner.check_process()
            with self._owner.lock:
                if not self._done:
                    if self._callbacks is None:
                        self._callbacks = [callback]
                    else:
                        self._callbacks.append(callback)
                    return
        callback()

    def settle(self, error: BaseException | None, time_ns: int) -> None:
        """Mark the fence done and tell everyone who waits. Called by the owner only, once."""
        with self._owner.lock:
            self._error = error
            self.reached_ns = time_ns
            self._done = True
            callbacks, self._callbacks = self._callbacks, None
            event = self._event
        if event is not None:
            event.set()
        if callbacks is not None:
            for callback in callbacks:
                call_back(callback)
