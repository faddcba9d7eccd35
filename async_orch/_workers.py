"""Threads that run hooks of the caller off the event loop."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["WorkerPool"]

JobT = TypeVar("JobT")


class WorkerPool(Generic[JobT]):
    """Daemon threads that run ``work(job)`` and hand finished jobs back through `finished`.

    ``work`` keeps its outcome, an exception too, in the job; it must not raise. After each job ``wake`` is
    called, so that the loop looks at `finished`. The threads are daemons, so that one stuck in code of the caller
    cannot hold up the end of the process.
    """

    def __init__(self, name: str, count: int, work: Callable[[JobT], None], wake: Callable[[], None]) -> None:
        self.finished: deque[JobT] = deque()
        self.busy = 0
        self._jobs: queue.SimpleQueue[JobT | None] = queue.SimpleQueue()
        self._work = work
        self._wake = wake
        self._name = name
        self._threads: list[threading.Thread] = []
        self._in_job: set[threading.Thread] = set()
        for _ in range(count):
            self._start_thread()

    def _start_thread(self) -> None:
        name = f"async_orch-{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def replace_thread(self) -> None:
        """A job is given up on: one more thread takes the place of the one that is stuck in it."""
        self._start_thread()

    def submit(self, job: JobT) -> None:
        """Queue a job. The caller bounds how many."""
        self.busy += 1
        self._jobs.put(job)

    def take(self) -> JobT | None:
        """A finished job, None if there is none; on the loop's thread."""
        try:
            job = self.finished.popleft()
        except IndexError:
            return None
        self.busy -= 1
        return job

    def _run(self) -> None:
        thread = threading.current_thread()
        while True:
            job = self._jobs.get()
            if job is None:
                return
            self._in_job.add(thread)
            self._work(job)
            self._in_job.discard(thread)
            self.finished.append(job)
            self._wake()

    def stop(self) -> None:
        """Let each thread end after its present job; does not wait."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout_s: float) -> int:
        """Wait for the threads, about ``timeout_s`` in all; the number that is still stuck in a job."""
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            # One that is inside code of the caller now has had its time already: it is abandoned.
            thread.join(0.0 if thread in self._in_job else max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)
