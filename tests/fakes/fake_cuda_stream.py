"""Streams and events of the fake ``cuda.core``."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import dataclass

from tests.fakes.fake_cuda_device import PATIENCE_S, CUresult, FakeGpu

__all__ = ["CUstream", "Event", "EventOptions", "Stream"]


@dataclass
class EventOptions:
    """As in cuda.core."""

    timing_enabled: bool | None = False
    blocking_sync: bool | None = False
    ipc_enabled: bool | None = False


class CUstream(int):
    """What `Stream.handle` gives: an object, and an address by ``int()``."""


class Event:
    """A place in a stream."""

    def __init__(self, gpu: FakeGpu, options: EventOptions) -> None:
        self._gpu = gpu
        self._options = options
        self._reached_ns: int | None = None
        self._failure = CUresult.CUDA_SUCCESS
        self._done = threading.Event()
        self.is_closed = False

    def record_on(self, handle: int) -> None:
        """Not part of the interface: be reached by a queue."""
        self._gpu.queue(handle).put(self._reach, always=True)

    def _reach(self) -> None:
        self._failure = self._gpu.failure
        self._reached_ns = time.monotonic_ns()
        self._done.set()

    def hold(self, handle: int) -> None:
        """Not part of the interface: let a queue wait for this."""
        self._check_open()
        done = self._done
        self._gpu.queue(handle).put(lambda: done.wait(PATIENCE_S), always=True)

    def _check_open(self) -> None:
        if self.is_closed:
            self._gpu.misuse("an event is used after close")

    def _raise(self) -> None:
        """The driver may also return errors of earlier work; whether it does so for what was over before is open."""
        (self._gpu.failure if self._gpu.forgets_success else self._failure).raise_if_failed()

    @property
    def is_done(self) -> bool:
        self._check_open()
        if not self._done.is_set():
            return False
        self._raise()
        return True

    def sync(self) -> None:
        self._check_open()
        if not self._options.blocking_sync:
            self._gpu.misuse("an event without blocking_sync is waited for: the thread would spin")
        self._gpu.need_context("Event.sync")
        self._done.wait(PATIENCE_S)
        self._raise()

    def __sub__(self, other: Event) -> float:
        if not isinstance(other, Event):
            raise TypeError(f"Argument 'other' has incorrect type (expected Event, got {type(other).__name__})")
        self._check_open()
        other._check_open()
        self._gpu.enter("Event.__sub__")
        if not (self._options.timing_enabled and other._options.timing_enabled):
            self._gpu.misuse("an event without timing is asked for a time")
        if self._reached_ns is None or other._reached_ns is None:
            raise RuntimeError("One or both events have not completed; use Event.sync(), ...")
        return ctypes.c_float((self._reached_ns - other._reached_ns) / 1e6).value

    def close(self) -> None:
        self.is_closed = True


class Stream:
    """A queue, owned, or borrowed from an object that speaks the protocol."""

    def __init__(self, gpu: FakeGpu, handle: int, owner: object | None = None) -> None:
        self._gpu = gpu
        self._handle = handle
        self._owner = owner

    @property
    def is_closed(self) -> bool:
        return not self._handle

    @property
    def handle(self) -> CUstream:
        return CUstream(self._handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle

    def __eq__(self, other: object) -> bool:
        return self._handle == other._handle if isinstance(other, Stream) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._handle)

    def record(self, event: Event | None = None, options: EventOptions | None = None) -> Event:
        self._gpu.enter("Stream.record")
        found = Event(self._gpu, options or EventOptions()) if event is None else event
        found.record_on(self._handle)
        return found

    def wait(self, event_or_stream: Event | Stream) -> None:
        self._gpu.enter("Stream.wait")
        if isinstance(event_or_stream, Stream):
            self._gpu.misuse("the backend waits for events; a wait for a stream is not part of this fake")
        event_or_stream.hold(self._handle)

    def sync(self) -> None:
        self._gpu.enter("Stream.sync")
        self._gpu.queue(self._handle).drain()
        self._gpu.failure.raise_if_failed()

    def close(self) -> None:
        if self._owner is None and self._handle:
            self._gpu.queues.pop(self._handle).stop()
        self._owner = None
        self._handle = 0
