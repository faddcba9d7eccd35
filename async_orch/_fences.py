"""Waking the loop when fences are done."""

from __future__ import annotations

import queue
import threading

from async_orch._events import emit
from async_orch._waker import Waker
from async_orch.abc import Fence
from async_orch.exceptions import OrchError

__all__ = ["FenceWatcher"]


class FenceWatcher:
    """Asks fences for a wake-up; those that cannot notify are waited for on one daemon thread.

    The thread starts with the first such fence. It waits for them in the order given, each in slices of
    ``slice_s`` so that `close` ends it even if a fence never completes.
    """

    slice_s = 0.05

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        self._queue: queue.SimpleQueue[Fence | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, fence: Fence) -> None:
        """Wake the loop when ``fence`` is done."""
        if fence.notifies:
            fence.notify(self._waker.wake)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="async_orch-fences", daemon=True)
            self._thread.start()
        self._queue.put(fence)

    def _run(self) -> None:
        pending: list[Fence] = []
        while not self._closed:
            try:
                fence = self._queue.get(block=not pending)
                if fence is None:
                    return
                pending.append(fence)
            except queue.Empty:
                pass
            pending = [f for f in pending if not self._settled(f)]

    def _settled(self, fence: Fence) -> bool:
        try:
            fence.synchronize(self.slice_s)
        except TimeoutError:
            return False
        except OrchError:
            # The failure is the step's, kept in fence.error; here it only matters that the wait is over.
            self._waker.wake()
            return True
        except Exception as exc:  # noqa: BLE001 - a fence of the caller's making must not end the thread
            emit("warning", "fence.wait_failed", fence=repr(fence), error=repr(exc))
        self._waker.wake()
        return True

    def close(self) -> None:
        """End the thread. It leaves within one slice for each fence it still waits for."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(1.0)
