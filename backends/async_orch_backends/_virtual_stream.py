"""Streams in virtual time: operations played from a schedule on an event loop's clock, without threads.

On a loop whose clock jumps to the next timer, simulated hours take no time and every run takes the same course.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError, DeviceLost

from ._device_state import DeviceState
from ._operations import Isolate, Operation, Wait, failure_of, step_failure
from ._software_fence import PendingFence
from ._timeline import Action, Timeline

__all__ = ["VirtualFence", "VirtualWorker"]


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
        self._free_ns = max(self._free_ns, enqueue_ns) + cost_ns
        self.apply(effect, args)
        if cost_ns == 0:
            return False
        self.timeline.at(self._free_ns, self._run)
        return True

    def apply(self, effect: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run an effect now; what it raises fails the stream."""
        try:
            effect(*args)
        except KeyboardInterrupt as exc:
            self.fail(effect, exc)
            self.timeline.at(self._free_ns, self._run)
            raise  # meant for the loop's thread, which is not ours
        except BaseException as exc:  # noqa: BLE001 - whatever a kernel raises becomes its fences' error
            self.fail(effect, exc)

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
