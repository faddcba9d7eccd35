"""Streams in virtual time: a schedule played on an event loop's clock, without threads.

On a loop whose clock jumps to the next timer, simulated hours take no time and every run takes the same course.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError, DeviceLost

from ._device_state import DeviceState
from ._software_fence import PendingFence
from ._stream_worker import Isolate, Operation, Wait, failure_of, step_failure

__all__ = ["Timeline", "VirtualFence", "VirtualWorker"]

Action = Callable[[], None]


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


class VirtualFence(PendingFence):
    """A marker in the schedule. Its callbacks are callbacks of the loop."""

    __slots__ = ("_timeline",)

    def __init__(self, owner: VirtualWorker, enqueue_ns: int) -> None:
        super().__init__(owner, enqueue_ns)
        self._timeline = owner.timeline

    def notify(self, callback: Action) -> None:
        if self.query():
            callback()
        else:
            self.when_done(lambda: self._timeline.call_soon(callback))

    def when_done(self, action: Action) -> None:
        """Call ``action`` the moment the fence is done, inside the schedule."""
        super().notify(action)

    def synchronize(self, timeout_s: float | None = None) -> None:
        timeline = self._timeline
        if not self.query() and timeline.on_thread() and not timeline.block_on(self, timeout_s):
            raise TimeoutError(f"the fence was not reached within {timeout_s} s of virtual time")
        super().synchronize(timeout_s)


class VirtualWorker:
    """Runs a stream's operations as callbacks of the loop, at the times of the schedule."""

    __slots__ = (
        "_free_ns",
        "_ops",
        "_reason",
        "_running",
        "_stopping",
        "_waiting_for",
        "device",
        "error",
        "idle",
        "lock",
        "name",
        "timeline",
    )

    def __init__(self, name: str, device: DeviceState, timeline: Timeline) -> None:
        self.name = name
        self.device = device
        self.timeline = timeline
        self.lock = threading.Lock()
        self.error: DeviceError | None = None
        self.idle = device.healthy
        self._ops: deque[Operation] = deque()
        self._free_ns = 0
        self._running = False
        self._waiting_for: Fence | None = None
        self._stopping = False
        self._reason = ""
        device.workers.add(self)

    def new_fence(self, enqueue_ns: int) -> VirtualFence:
        return VirtualFence(self, enqueue_ns)

    def check_process(self) -> None:
        self.device.check_process()

    def check_usable(self) -> None:
        self.device.check_process()
        if self._stopping:
            raise DeviceError(self._reason)

    def drained(self) -> bool:
        return not self._running

    def bar(self) -> None:
        self.idle = False

    def put(self, op: Operation) -> None:
        self.check_usable()
        self.timeline.check_thread()
        if isinstance(op, Wait) and not op.fence.notifies:
            raise DeviceError(f"{type(op.fence).__name__} cannot notify, so virtual time cannot wait for it")
        self.idle = False
        self._ops.append(op)
        if not self._running:
            self._running = True
            self.timeline.at(self.timeline.now_ns(), self._run)

    def fail(self, effect: Callable[..., object], exc: BaseException) -> None:
        self.error = step_failure(effect, self.name, exc)
        if isinstance(self.error, DeviceLost):
            self.device.lose(self.error)

    def begin_stop(self, reason: str) -> None:
        if not self._stopping:
            self._stopping = True
            self._reason = reason
        self.idle = False

    def finish_stop(self, deadline_ns: int) -> None:
        self.device.workers.discard(self)
        error = DeviceError(self._reason)
        while self._ops:
            op = self._ops.popleft()
            if isinstance(op, PendingFence):
                op.settle(error, max(self._free_ns, op.enqueue_ns))

    def _run(self) -> None:
        """Go on from where the stream stands until something takes time."""
        while self._ops and not self._stopping:
            op = self._ops.popleft()
            if isinstance(op, PendingFence):
                self._free_ns = max(self._free_ns, op.enqueue_ns)
                op.settle(self.device.lost or self.error, self._free_ns)
            elif isinstance(op, Wait):
                if self._wait(op.fence):
                    return
            elif isinstance(op, Isolate):
                self.error = None
            elif self.error is None and self.device.lost is None and self._perform(*op):
                return
        self._running = False
        self.idle = self.device.healthy and not self._stopping

    def _perform(self, effect: Callable[..., object], args: tuple[Any, ...], cost_ns: int, enqueue_ns: int) -> bool:
        """Run the effect at the start of its window; True if the window has an end to wait for."""
        self._free_ns = max(self._free_ns, enqueue_ns)
        try:
            effect(*args)
        except KeyboardInterrupt as exc:
            self.fail(effect, exc)
            raise  # the loop's thread is not ours
        except BaseException as exc:  # noqa: BLE001 - whatever a kernel raises becomes its fences' error
            self.fail(effect, exc)
        if cost_ns == 0:
            return False
        self._free_ns += cost_ns
        self.timeline.at(self._free_ns, self._run)
        return True

    def _wait(self, fence: Fence) -> bool:
        """Pass a fence that is done; otherwise go on when it is, and return True."""
        if fence.query():
            self._pass(fence)
            return False
        self._waiting_for = fence
        if isinstance(fence, VirtualFence):
            fence.when_done(lambda: self._resume(fence))
        else:
            fence.notify(lambda: self.timeline.post(lambda: self._resume(fence)))
        return True

    def _resume(self, fence: Fence) -> None:
        if self._waiting_for is fence and not self._stopping:
            self._waiting_for = None
            self._pass(fence)
            self._run()

    def _pass(self, fence: Fence) -> None:
        self.error = self.error or failure_of(fence)
        reached_ns = fence.time_ns() if isinstance(fence, VirtualFence) else None
        self._free_ns = max(self._free_ns, self.timeline.now_ns() if reached_ns is None else reached_ns)
