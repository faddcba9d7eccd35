"""A schedule on an event loop's clock: what happens when, in virtual time."""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections.abc import Callable
from typing import TypeAlias

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError

__all__ = ["Action", "Timeline"]

Action: TypeAlias = Callable[[], None]


class Timeline:
    """What happens when, in whole nanoseconds, on the clock of one event loop.

    A call that would block on a real device (an allocation, ``synchronize``) cannot let a loop's time pass. It moves
    this clock ahead of the loop's instead, as if the host were busy until then, and the loop's clock catches up
    with its next timers. So everything here may be called only on the loop's thread, except `now_ns`.
    """

    __slots__ = ("_armed_ns", "_heap", "_loop", "_now_ns", "_sequence", "_thread_id", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._thread_id = threading.get_ident()
        self._heap: list[tuple[int, int, Action]] = []
        self._sequence = 0
        self._now_ns = 0
        self._armed_ns = 0
        self._timer: asyncio.TimerHandle | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop given, or the one that ran at first use."""
        if self._loop is None:
            try:
                self._loop = asyncio.get_running_loop()
            except RuntimeError as exc:
                raise DeviceError(
                    "virtual time needs a running event loop: use the backend inside a coroutine, or pass loop="
                ) from exc
            self._thread_id = threading.get_ident()
        return self._loop

    def on_thread(self) -> bool:
        return threading.get_ident() == self._thread_id

    def check_thread(self) -> None:
        self.loop()
        if not self.on_thread():
            raise DeviceError("a device in virtual time can be used only on its event loop's thread")

    def now_ns(self) -> int:
        # Rounded, not cut: a schedule of whole nanoseconds comes back from seconds in floating point unharmed.
        return max(self._now_ns, round(self.loop().time() * 1e9))

    def at(self, when_ns: int, action: Action) -> None:
        """Run ``action`` at ``when_ns``; in the order of these calls where times are equal."""
        self._sequence += 1
        heapq.heappush(self._heap, (when_ns, self._sequence, action))
        self._arm()

    def post(self, action: Action) -> None:
        """Run ``action`` now, as a callback of the loop. From any thread."""
        if self.on_thread():
            self.at(self.now_ns(), action)
        else:
            self.loop().call_soon_threadsafe(lambda: self.at(self.now_ns(), action))

    def call_soon(self, callback: Action) -> None:
        """Hand a caller's callback to the loop; where the loop is closed already, call it."""
        loop = self.loop()
        if loop.is_closed():
            callback()
        elif self.on_thread():
            loop.call_soon(callback)
        else:
            loop.call_soon_threadsafe(callback)

    def advance(self, duration_ns: int) -> None:
        """Let the host be busy for ``duration_ns`` while the device goes on."""
        self.check_thread()
        end_ns = self.now_ns() + duration_ns
        self._run_until(end_ns)
        self._now_ns = end_ns

    def block_on(self, fence: Fence, timeout_s: float | None) -> bool:
        """Let the host be busy until ``fence`` is done; False if ``timeout_s`` passed before."""
        end_ns = None if timeout_s is None else self.now_ns() + max(round(timeout_s * 1e9), 0)
        while not fence.query():
            if self._heap and (end_ns is None or self._heap[0][0] <= end_ns):
                self._step()
            elif end_ns is not None:
                self._now_ns = max(self._now_ns, end_ns)
                self._arm()
                return False
            else:
                raise DeviceError(
                    "blocked for ever: nothing is scheduled that could reach the fence, and what it waits for "
                    "cannot happen while the event loop's thread is blocked"
                )
        self._arm()
        return True

    def _step(self) -> None:
        when_ns, _, action = heapq.heappop(self._heap)
        self._now_ns = max(self._now_ns, when_ns)
        action()

    def _run_until(self, end_ns: int) -> None:
        while self._heap and self._heap[0][0] <= end_ns:
            self._step()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            if self._heap and self._armed_ns == self._heap[0][0]:
                return
            self._timer.cancel()
            self._timer = None
        if self._heap and not self.loop().is_closed():
            self._armed_ns = self._heap[0][0]
            self._timer = self.loop().call_at(self._armed_ns / 1e9, self._fire)

    def _fire(self) -> None:
        self._timer = None
        # A loop may call a timer a little early, within its clock's resolution; the time armed for has come.
        self._now_ns = max(self._now_ns, self._armed_ns)
        self._run_until(self.now_ns())
