"""A fake device that does everything as late as it may, so that a buffer reused too early gives wrong data.

Nothing runs when it is enqueued. Work runs when somebody waits for an event behind it: only then are pinned buffers
read and written. A pinned buffer that changed between the enqueue of its copy and the copy counts as an early reuse,
and the device gets 0xDD in its place; a pinned buffer that a copy will write holds 0xDD until the copy has run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SCRIBBLE", "Event", "FakeDevice", "Stream", "Tokens", "next_tokens"]

Tokens = npt.NDArray[np.int32]

SCRIBBLE = int(np.frombuffer(b"\xdd" * 4, np.int32)[0])
"""What a token reads as where memory was reused early or read before its event."""


class Event:
    """Done when the work enqueued on its stream before it is done. It may fail with that work's exception."""

    def __init__(self, device: FakeDevice, stream: Stream) -> None:
        self._device = device
        self.stream = stream
        self.done = False
        self.error: Exception | None = None

    def synchronize(self, timeout_s: float) -> None:
        """Block until done; the work's own exception if it failed, `TimeoutError` if the device hangs."""
        if not self._device.running.wait(timeout_s):
            raise TimeoutError(f"the device did not reach the event within {timeout_s} s")
        with self._device.lock:
            self.stream.run_to(self)
        if self.error is not None:
            raise self.error


class Stream:
    """An ordered queue of work that runs when it must."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self._work: deque[tuple[Callable[[], None], Event | None]] = deque()
        self._error: Exception | None = None

    def _put(self, work: Callable[[], None], event: Event | None = None) -> None:
        with self._device.lock:
            self._work.append((work, event))

    def copy_to_device(self, target: Tokens, pinned: Tokens, count: int) -> None:
        """Copy ``count`` tokens from a pinned buffer, which must not change before the copy has run."""
        self._put(partial(self._device.read_pinned, target, pinned, pinned[:count].copy(), count))

    def copy_to_host(self, pinned: Tokens, source: Tokens, count: int) -> None:
        """Copy ``count`` tokens to a pinned buffer, whose contents are undefined until the copy has run."""
        pinned[:count] = SCRIBBLE
        self._put(partial(np.copyto, pinned[:count], source[:count]))

    def launch(self, kernel: Callable[..., None], *args: Any) -> None:
        """Enqueue a call of ``kernel``."""
        self._put(partial(kernel, *args))

    def record(self) -> Event:
        """Enqueue an event."""
        event = Event(self._device, self)
        self._put(lambda: None, event)
        return event

    def wait(self, event: Event) -> None:
        """Let later work of this stream run only after ``event``; it fails if the event's work did."""
        self._put(partial(_run_other, event))

    def run_to(self, event: Event) -> None:
        """Run what is enqueued up to ``event``. After a failure work is skipped up to the next event."""
        while not event.done:
            work, reached = self._work.popleft()
            if reached is not None:
                reached.done, reached.error, self._error = True, self._error, None
            elif self._error is None:
                try:
                    work()
                except Exception as exc:  # noqa: BLE001 - whatever a kernel raises is its event's error
                    self._error = exc

    def pending(self) -> int:
        """Pieces of work that have not run."""
        return len(self._work)


def _run_other(event: Event) -> None:
    event.stream.run_to(event)
    if event.error is not None:
        raise event.error


class FakeDevice:
    """Two streams, pinned buffers that must be freed, and ``running``: clear it and the device hangs."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.running = threading.Event()
        self.running.set()
        self.compute = Stream(self)
        self.output = Stream(self)
        self.early_reuses = 0
        self.pinned_buffers = 0

    def pinned(self, count: int) -> Tokens:
        """A pinned host buffer of ``count`` int32 tokens."""
        self.pinned_buffers += 1
        return np.zeros(count, np.int32)

    def memory(self, count: int) -> Tokens:
        """Device memory for ``count`` int32 tokens."""
        return np.full(count, SCRIBBLE, np.int32)

    def free_pinned(self, buffers: list[Tokens]) -> None:
        """Unpin ``buffers``, unless work that may still touch them is pending: then they stay as they are."""
        with self.lock:
            if not self.compute.pending() and not self.output.pending():
                self.pinned_buffers -= len(buffers)

    def read_pinned(self, target: Tokens, pinned: Tokens, expected: Tokens, count: int) -> None:
        """The copy of a pinned buffer, at its end."""
        if np.array_equal(pinned[:count], expected):
            target[:count] = pinned[:count]
        else:
            self.early_reuses += 1
            target[:count] = SCRIBBLE


def next_tokens(tokens: Tokens, output: Tokens, count: int) -> None:
    """The model: each row's next token is three times its token, plus one. Token -1 raises."""
    if (tokens[:count] == -1).any():
        raise ValueError("token -1 is not in the vocabulary")
    output[:count] = tokens[:count] * 3 + 1
