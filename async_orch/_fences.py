"""Getting back to the event loop: one wake-up for many events, from any thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable

from async_orch._events import emit
from async_orch.abc import Fence
from async_orch.exceptions import OrchError

__all__ = ["FenceWatcher", "Waker"]


class Waker:
    """Runs ``callback`` on the loop soon after `wake`; wake-ups that come before it runs are merged.

    A wake-up carries nothing: whoever calls `wake` has changed some state first, and the callback looks at all
    of it. So no wake-up can be lost, and one loop tick settles everything that is done by then.
    """

    __slots__ = ("_callback", "_closed", "_loop", "_pending")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._pending = False
        self._closed = False

    def wake(self) -> None:
        """Ask for the callback. Callable from any thread; does nothing after `close`."""
        if self._pending or self._closed:
            return
        self._pending = True
        try:
            self._loop.call_soon_threadsafe(self._run)
        except RuntimeError:
            # The loop was closed under us: nobody is left who could be woken.
            if not self._loop.is_closed():
                raise
            self._closed = True

    def _run(self) -> None:
        # Cleared before the callback looks: an event after this line asks for another turn.
        self._pending = False
        if not self._closed:
            self._callback()

    def close(self) -> None:
        """Ignore wake-ups from here on."""
        self._closed = True


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
