"""The thread behind a software stream: runs operations in order, with at most one wake-up per idle spell."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError, DeviceLost

from ._device_state import DeviceState
from ._operations import Isolate, Operation, Wait, Work, failure_of, step_failure
from ._software_fence import PendingFence

__all__ = ["SPIN_NS", "StreamWorker"]

SPIN_NS = 150_000  # a sleep overshoots by 30 to 110 us on Linux: the last stretch is spun, yielding the GIL
_YIELD_EVERY = 32  # operations of some microseconds each, after which other threads get the GIL
_PROBE_S = 0.05  # between two looks at a foreign fence that cannot notify

# States of a worker: whoever makes it RUNNING releases its wake lock, once.
_RUNNING = 0
_IDLE = 1  # nothing queued; `put` wakes
_BLOCKED = 2  # waits for a fence; its notification wakes
_SLEEPING = 3  # a simulated cost passes; only a stop wakes


class StreamWorker:
    """Queue, thread and failed state of one stream, from its opening or reset to its end.

    ``idle`` is True while nothing is queued or running, and the device is well: the one caller of the stream may
    then complete an operation itself. Only that caller makes it False, only the worker makes it True.
    """

    __slots__ = (
        "_blocked_on",
        "_ops",
        "_reason",
        "_state",
        "_stopping",
        "_thread",
        "_wake",
        "device",
        "error",
        "idle",
        "lock",
        "name",
    )

    def __init__(self, name: str, device: DeviceState) -> None:
        self.name = name
        self.device = device
        self.lock = threading.Lock()
        self.error: DeviceError | None = None
        self.idle = device.healthy
        self._ops: deque[Operation] = deque()
        self._state = _IDLE
        self._blocked_on: Fence | None = None
        self._stopping = False
        self._reason = ""
        self._thread: threading.Thread | None = None
        self._wake = threading.Lock()
        self._wake.acquire()
        device.workers.add(self)

    # -- the caller's side

    def new_fence(self, enqueue_ns: int) -> PendingFence:
        return PendingFence(self, enqueue_ns)

    def check_process(self) -> None:
        self.device.check_process()

    def check_usable(self) -> None:
        """Raise `DeviceError` if nothing can be enqueued: closed, or forked."""
        self.device.check_process()
        if self._stopping:
            raise DeviceError(self._reason)

    def drained(self) -> bool:
        return self._state == _IDLE and not self._ops

    def put(self, op: Operation) -> None:
        if self.device.forked:
            self.check_process()
        with self.lock:
            if self._stopping:
                raise DeviceError(self._reason)
            self.idle = False
            self._ops.append(op)
            if self._state != _IDLE:
                return
            self._state = _RUNNING
        if self._thread is None:
            self._start()
        else:
            self._wake.release()

    def fail(self, effect: Callable[..., object], exc: BaseException) -> None:
        """Put the stream in the failed state because ``effect`` raised; a `DeviceLost` loses the device."""
        self.error = step_failure(effect, self.name, exc)
        if isinstance(self.error, DeviceLost) and not self._stopping:
            self.device.lose(self.error)

    def bar(self) -> None:
        self.idle = False
        if self.device.forked:
            self.lock = threading.Lock()  # whoever holds the old one does not exist in this process

    def begin_stop(self, reason: str) -> None:
        """Let nothing further start. Fences still queued fail with ``reason`` when the running operation ends."""
        with self.lock:
            if not self._stopping:
                self._stopping = True
                self._reason = reason
            self.idle = False
            self._blocked_on = None
            if self._state == _RUNNING:
                return
            self._state = _RUNNING
        if self._thread is not None:
            self._wake.release()

    def finish_stop(self, deadline_ns: int) -> None:
        """Join the thread until ``deadline_ns``; if it is stuck in code of the caller, abandon and count it."""
        self.device.workers.discard(self)
        thread = self._thread
        if thread is threading.current_thread():
            return  # closed by a kernel or callback: the thread ends, and settles the rest, when that returns
        if thread is not None:
            thread.join(max(deadline_ns - time.monotonic_ns(), 0) / 1e9)
            if thread.is_alive():
                self.device.threads_abandoned += 1
        self._discard()

    # -- the thread's side

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"async_orch-{self.device.backend}-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            self.begin_stop(f"stream {self.name!r} has no thread: {exc}")
            self._discard()
            raise DeviceError(f"cannot start the thread of stream {self.name!r}: {exc}") from exc
        self._thread = thread

    def _run(self) -> None:
        executed = 0
        op = self._next()
        while op is not None:
            self._execute(op)
            op = None  # or the last operation's buffers stay mapped while the stream is idle
            executed += 1
            if executed % _YIELD_EVERY == 0:
                time.sleep(0)
            op = self._next()
        self._discard()

    def _next(self) -> Operation | None:
        while True:
            if self._stopping:
                return None
            if self._ops:
                return self._ops.popleft()
            with self.lock:
                if self._stopping or self._ops:
                    continue
                self._state = _IDLE
                self.idle = self.device.healthy
            self._wake.acquire()

    def _execute(self, op: Operation) -> None:
        if isinstance(op, tuple):
            if self.error is None and self.device.lost is None:
                try:
                    self._perform(op)
                except BaseException as exc:  # noqa: BLE001 - whatever a kernel raises becomes its fences' error
                    self.fail(op[0], exc)
        elif isinstance(op, Wait):
            self._await(op.fence)
        elif isinstance(op, Isolate):
            self.error = None
        else:
            op.settle(self.device.lost or self.error, self._reach(op))

    def _perform(self, work: Work) -> None:
        work[0](*work[1])

    def _reach(self, fence: PendingFence) -> int:
        """When the stream reached ``fence``."""
        return time.monotonic_ns()

    def _passed(self, fence: Fence) -> None:
        """The stream waited for ``fence``, which is done."""

    def _await(self, fence: Fence) -> None:
        """Block until ``fence`` is done or the stream stops; a failed fence fails this stream too."""
        try:
            if fence.notifies:
                self._block_on(fence)
            else:
                self._probe(fence)
        except Exception as exc:  # noqa: BLE001 - a foreign fence's own failure becomes this stream's
            self.error = self.error or step_failure(self._await, self.name, exc)
            return
        if fence.query():
            self.error = self.error or failure_of(fence)
            self._passed(fence)

    def _block_on(self, fence: Fence) -> None:
        if fence.query():
            return
        with self.lock:
            if self._stopping:
                return
            self._state = _BLOCKED
            self._blocked_on = fence
        with ExitStack() as ends:
            ends.callback(self._wake.acquire)  # whoever unblocks gives it, also below
            if_refused = ends.enter_context(ExitStack())
            if_refused.callback(self._unblock, fence)
            fence.notify(partial(self._unblock, fence))
            if_refused.pop_all()

    def _unblock(self, fence: Fence) -> None:
        with self.lock:
            if self._blocked_on is not fence:
                return  # stopped meanwhile
            self._blocked_on = None
            self._state = _RUNNING
        self._wake.release()

    def _probe(self, fence: Fence) -> None:
        while not (self._stopping or fence.query()):
            try:
                fence.synchronize(_PROBE_S)
            except TimeoutError:
                continue
            except Exception:
                if not fence.query():
                    raise
                return  # it failed, which is read from its error wherever it is first seen

    def _pause_until(self, end_ns: int) -> None:
        """Let ``end_ns`` of CLOCK_MONOTONIC pass, unless the stream stops. Never returns early otherwise."""
        while not self._halted() and (rest_ns := end_ns - time.monotonic_ns()) > 0:
            if rest_ns <= SPIN_NS:
                time.sleep(0)
                continue
            with self.lock:
                if self._stopping:
                    return
                self._state = _SLEEPING
            self._wake.acquire(timeout=min((rest_ns - SPIN_NS) / 1e9, 3600.0))
            with self.lock:
                self._state = _RUNNING

    def _halted(self) -> bool:
        return self._stopping

    def _discard(self) -> None:
        error = DeviceError(self._reason)
        while True:
            try:
                op = self._ops.popleft()
            except IndexError:
                return
            if isinstance(op, PendingFence):
                op.settle(error, time.monotonic_ns())
