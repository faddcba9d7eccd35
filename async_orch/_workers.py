"""Threads that run hooks of the caller off the event loop."""

from __future__ import annotations

import queue
import threading
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
        self._threads = [
            threading.Thread(target=self._run, name=f"async_orch-{name}-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

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
        while True:
            job = self._jobs.get()
            if job is None:
                return
            self._work(job)
            self.finished.append(job)
            self._wake()

    def stop(self) -> None:
        """Let each thread end after its present job; does not wait."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout_s: float) -> int:
        """Wait for the threads, ``timeout_s`` in all; the number that is still stuck in a job."""
        for thread in self._threads:
            thread.join(timeout_s)
        return sum(thread.is_alive() for thread in self._threads)
