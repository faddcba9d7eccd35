"""Streams and events of the fake ``acl``: a thread a stream, and errors that stick."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["FakeEvent", "FakeStream"]


_Item: TypeAlias = tuple[Callable[[], object], int, bool | None, Callable[[], object] | None]


class FakeStream:
    """Runs what is enqueued, in order. After a failure it runs nothing more, and every call on it gives its code."""

    def __init__(self) -> None:
        self.error = 0
        self._put = 0  # work that may take time; markers do not
        self._done = 0
        self._counting = threading.Lock()
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fake-acl-stream", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        return self._put == self._done

    def put(
        self,
        work: Callable[[], object],
        code: int = 0,
        *,
        always: bool = False,
        over: Callable[[], object] | None = None,
    ) -> int:
        """Enqueue; ``always`` for waits, which take place also behind a failure. Gives the return code.

        ``over`` is called behind the work, also where a failure before it has dropped it.
        """
        if self.error and not always:
            return self.error
        with self._counting:
            self._put += 1
        self._queue.put((work, code, always, over))
        return 0

    def mark(self, reached: Callable[[], object]) -> int:
        """Enqueue what is not work: it takes no time, and is reached also behind a failure."""
        self._queue.put((reached, 0, None, None))
        return 0

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, code, always, over = item
            if always is not False or not self.error:
                work()
                self.error = self.error or code
            if over is not None:
                over()
            item = work = over = None  # type: ignore[assignment]
            self._done += always is not None

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join(20.0)
        assert not self._thread.is_alive(), "a stream was destroyed with work that never ends"


class FakeEvent:
    """Complete when its stream reached it; an event that was never recorded is complete."""

    def __init__(self, flag: int) -> None:
        self.flag = flag
        self.recorded = False
        self.error = 0
        self.reached_ns = 0
        self.waits = 0
        self._done = threading.Event()
        self._done.set()
        self._lock = threading.Lock()

    @property
    def complete(self) -> bool:
        return self._done.is_set()

    def record_on(self, stream: FakeStream) -> int:
        self.recorded = True
        done = self._done = threading.Event()

        def reach() -> None:
            self.error = stream.error
            self.reached_ns = time.monotonic_ns()
            done.set()

        return stream.mark(reach)

    def hold(self, stream: FakeStream) -> int:
        done = self._done
        with self._lock:
            self.waits += 1

        def passed() -> None:
            done.wait(60.0)
            with self._lock:
                self.waits -= 1

        return stream.put(passed, always=True)

    def wait(self, timeout_s: float) -> bool:
        return self._done.wait(timeout_s)
