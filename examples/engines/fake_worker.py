"""A fake worker with blocking calls, as an engine's process has them, that refuses every wrong use.

A run has a slot and that slot's generation. At most two runs are in flight, submitted in the order in which they were
begun and waited for in the order of submission, each once. Just before a run's launch the worker puts the token of the
run before it in place of a placeholder. A run behind a failed one has no such token: its result is `GARBAGE`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["GARBAGE", "PLACEHOLDER", "FakeWorker", "Run", "WorkerMisuse", "WorkerStopped"]

PLACEHOLDER = -1
"""Stands for the token that the run before gives."""

GARBAGE = -0x22222223
"""What a run gives whose placeholder could not be replaced."""

MAX_IN_FLIGHT = 2


class WorkerMisuse(RuntimeError):
    """A call that would corrupt a real worker."""


class WorkerStopped(RuntimeError):
    """The worker was stopped while a call waited."""


class Run(NamedTuple):
    """One use of a slot: its number in order of `FakeWorker.begin`, and the slot's generation."""

    number: int
    slot: int
    generation: int


class FakeWorker:
    """Adds 7 to a token. ``fail`` holds tokens at which a run fails once; clear ``running`` and the worker hangs."""

    def __init__(self, slots: int, *, fail: Iterable[int] = ()) -> None:
        self.fail = set(fail)
        self.running = threading.Event()
        self.running.set()
        self.misuses: list[str] = []
        self.max_in_flight = 0
        self.garbage = 0
        self._lock = threading.Lock()
        self._generations = [0] * slots
        self._begun = 0
        self._submitted = -1
        self._queue: deque[tuple[Run, int]] = deque()
        self._last: int | None = None
        self._stopped = False
        self._lost = ""

    @property
    def in_flight(self) -> int:
        """Runs submitted and not waited for."""
        return len(self._queue)

    def begin(self, slot: int) -> Run:
        """The next generation of ``slot``; whatever a run begun earlier holds of it is stale from here on."""
        with self._lock:
            if any(run.slot == slot for run, _ in self._queue):
                raise self._misuse(f"slot {slot} began anew while its run was in flight")
            self._generations[slot] += 1
            self._begun += 1
            return Run(self._begun, slot, self._generations[slot])

    def submit(self, run: Run, token: int) -> None:
        """Queue a run; returns at once."""
        with self._lock:
            self._check_generation("submit", run)
            if run.number <= self._submitted:
                raise self._misuse(f"run {run.number} was submitted after run {self._submitted}")
            if len(self._queue) == MAX_IN_FLIGHT:
                raise self._misuse(f"run {run.number} would be number {MAX_IN_FLIGHT + 1} in flight")
            self._submitted = run.number
            self._queue.append((run, token))
            self.max_in_flight = max(self.max_in_flight, len(self._queue))

    def wait(self, run: Run, timeout_s: float) -> int:
        """Block until the run is over; its token, or `ArithmeticError` if it failed."""
        with self._lock:
            self._check_generation("wait", run)
            if self._lost:
                raise TimeoutError(self._lost)
            if not self._queue or self._queue[0][0] != run:
                oldest = self._queue[0][0].number if self._queue else None
                raise self._misuse(f"wait for run {run.number}, but the oldest in flight is {oldest}")
        if not self.running.wait(timeout_s):
            self._lost = f"the worker is lost: run {run.number} was not over within {timeout_s} s"
            raise TimeoutError(self._lost)
        with self._lock:
            if self._stopped:
                raise WorkerStopped(f"the worker was stopped during run {run.number}")
            return self._execute(*self._queue.popleft())

    def stop(self) -> None:
        """End the worker, and every call that waits for it."""
        self._stopped = True
        self.running.set()

    def _execute(self, run: Run, token: int) -> int:
        if token == PLACEHOLDER:
            if self._last is None:
                self.garbage += 1
                return GARBAGE
            token = self._last
        self._last = None
        if token in self.fail:
            self.fail.discard(token)
            raise ArithmeticError(f"run {run.number} failed at token {token}")
        self._last = token + 7
        return self._last

    def _check_generation(self, call: str, run: Run) -> None:
        current = self._generations[run.slot]
        if run.generation != current:
            raise self._misuse(f"{call} with generation {run.generation} of slot {run.slot}, which is at {current}")

    def _misuse(self, text: str) -> WorkerMisuse:
        self.misuses.append(text)
        return WorkerMisuse(text)
