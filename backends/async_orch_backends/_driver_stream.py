"""The stream of real drivers: hands work straight to the driver, and holds back what waits for a fence from elsewhere.

A driver's queue can wait for an event of the same driver, not for a fence of another backend or of the caller. What is
enqueued behind such a fence is kept here, in order, and given to the driver when the fence is done. So enqueueing
never blocks, and if the fence failed, the work behind it is skipped up to the next isolation.

One file, though a long one: what is given at once, what is held back and closing look at the same state under one lock,
and each is only right together with the others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from async_orch.abc import Buffer, Fence, Stream
from async_orch.exceptions import DeviceError, DeviceLost

from ._device_state import DeviceState
from ._driver_fence import DriverFence, NativeEvent
from ._driver_queue import DriverQueue
from ._driver_waiter import Waiter
from ._operations import ISOLATE, Isolate, Wait, failure_of
from ._software_fence import call_back

__all__ = ["DriverStream"]

_PROBE_S = 0.05  # between two looks at a fence from elsewhere that cannot notify


_Work: TypeAlias = Callable[[], None]
_Deferred: TypeAlias = _Work | Wait | Isolate | DriverFence


class DriverStream(Stream):
    """A driver's queue with a waiter thread, and failures and waits as the seam wants them."""

    def __init__(self, name: str, device: DeviceState, queue: DriverQueue) -> None:
        self.name = name
        self.domain = queue.domain
        """Streams of one domain wait for each other in the driver."""
        self.fence_lock = threading.Lock()
        self.closed = False
        self.given_up: DeviceError | None = None
        self._device = device
        self._queue = queue
        self._waiter = Waiter(f"async_orch-{device.backend}-{name}")
        self._lock = threading.Lock()
        self._deferred: deque[_Deferred] = deque()
        self._error: DeviceError | None = None
        self._sources: list[DriverFence] = []  # waited for by the driver since the last isolation
        self._last: NativeEvent | None = None  # of the last marker; None if something was enqueued since
        device.workers.add(self)

    # -- the seam ------------------------------------------------------------------------------------------

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        with self._lock:
            self._check()
            self._copy(dst, src, nbytes, dst_offset, src_offset)

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        with self._lock:
            self._check()
            self._do(self._queue.launch, kernel, args)

    def record(self) -> Fence:
        with self._lock:
            self._check()
            return self._fence()

    def wait(self, fence: Fence) -> None:
        with self._lock:
            self._check()
            passed = self._wait(fence)
        if not passed:
            self._pump_after(fence)

    def isolate(self) -> None:
        with self._lock:
            self._check()
            self._isolate()

    # What every step does, composed as the seam composes it, but in one turn under the lock.

    def begin(self, after: Fence | None = None) -> Fence:
        with self._lock:
            self._check()
            self._isolate()
            passed = after is None or self._wait(after)
            start = self._fence()
        if not passed and after is not None:
            self._pump_after(after)
        return start

    def begin_copy(self, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
        with self._lock:
            self._check()
            self._isolate()
            start = self._fence()
            if nbytes:
                self._copy(dst, src, nbytes, 0, 0)
            return start, self._fence()

    def record_copy(self, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
        with self._lock:
            self._check()
            reached = self._fence()
            self._copy(dst, src, nbytes, 0, 0)
            return reached, self._fence()

    # Their parts, under the lock.

    def _copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        if not (
            0 <= dst_offset <= dst_offset + nbytes <= dst.nbytes
            and 0 <= src_offset <= src_offset + nbytes <= src.nbytes
        ):
            raise DeviceError(
                f"copy of {nbytes} B does not fit: from offset {src_offset} of {src!r} "
                f"to offset {dst_offset} of {dst!r}"
            )
        self._do(self._queue.copy, dst, src, nbytes, dst_offset, src_offset)

    def _do(self, work: Callable[..., None], *args: Any) -> None:
        if self._deferred:
            self._deferred.append(partial(work, *args))
        elif self._error is None and self._device.lost is None:
            self._last = None
            try:
                work(*args)
            except DeviceLost as exc:  # earlier work lost it; whether that shows here or at a fence is chance
                self._device.lose(exc)

    def _fence(self) -> DriverFence:
        lost = self._device.lost
        if lost is None and not self._deferred:
            try:
                event = self._last = self._queue.record()
                return DriverFence(self, event, self._error, tuple(self._sources))
            except DeviceLost as exc:
                self._device.lose(exc)
                lost = self._device.lost
        fence = DriverFence(self, None)
        if lost is None:
            self._deferred.append(fence)
        else:
            fence.drop(lost)  # nobody has it yet, so nobody is called under the lock
        return fence

    def _wait(self, fence: Fence) -> bool:
        """Whether ``fence`` is behind us; if not it is deferred, and `_pump_after` is to be called without the lock."""
        try:
            if not self._deferred and self._passed(fence):
                return True
        except DeviceLost as exc:
            self._device.lose(exc)
            return True
        self._deferred.append(Wait(fence))
        return False

    def _isolate(self) -> None:
        if self._deferred:
            self._deferred.append(ISOLATE)
        else:
            self._isolate_now()

    def _isolate_now(self) -> None:
        self._error = None
        self._sources.clear()
        self._queue.isolate()

    def _record(self) -> NativeEvent:
        event = self._last = self._queue.record()
        return event

    def idle(self) -> bool:
        with self._lock:
            self._check()
            if self._deferred:
                return False
            last = self._last or self._record()  # a fresh marker takes the driver some time to reach
        return last.query()

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.record().synchronize(timeout_s)

    def close(self) -> None:
        self.begin_close()
        self.finish_close(self._device.close_deadline_ns())

    @property
    def native(self) -> Any:
        return self._queue.native

    @property
    def handle(self) -> int:
        return self._queue.handle

    # -- fences from elsewhere -----------------------------------------------------------------------------

    def _passed(self, fence: Fence) -> bool:
        """Put ``fence`` behind us: it is done, or the driver can wait for it. False if neither holds yet."""
        if fence.query():
            self._error = self._error or failure_of(fence)
            return True
        if isinstance(fence, DriverFence) and fence.event is not None and fence.owner.domain == self.domain:
            self._queue.wait(fence.event)
            self._error = self._error or fence.known_error
            if self._sources:
                for source in self._sources:
                    source.trim()
                self._sources = [source for source in self._sources if not source.passed_well]
            self._sources.append(fence)
            return True
        return False

    def _pump_after(self, fence: Fence) -> None:
        """Have `_pump` called when ``fence`` may have become passable."""
        if isinstance(fence, DriverFence) and fence.owner.domain == self.domain:
            fence.when_issued(self._pump)
        elif fence.notifies:
            fence.notify(self._pump)
        else:
            name = f"async_orch-{self._device.backend}-{self.name}-probe"
            threading.Thread(target=self._probe, args=(fence,), name=name, daemon=True).start()

    def _probe(self, fence: Fence) -> None:
        """On a thread of its own: wait for a fence that cannot notify."""
        while not (self.closed or fence.query()):
            try:
                fence.synchronize(_PROBE_S)
            except TimeoutError:
                continue
            except Exception:  # noqa: BLE001, S110 - a failed fence raises; `_passed` reads its error
                pass
        self._pump()

    def _pump(self) -> None:
        """Give the driver what no longer waits. Runs on the thread of whoever settled the fence; does not block."""
        tell: list[Callable[[], None]] = []
        with self._lock:
            deferred = self._deferred
            while deferred and not self.closed:
                op = deferred[0]
                if isinstance(op, Wait) and not self._passed(op.fence):
                    break
                if not isinstance(op, Wait):
                    self._give(op, tell)
                deferred.popleft()
        for callback in tell:  # without our lock: another stream's pump takes its own
            call_back(callback)

    def _give(self, op: _Work | Isolate | DriverFence, tell: list[Callable[[], None]]) -> None:
        if isinstance(op, Isolate):
            self._isolate_now()
            return
        try:
            if isinstance(op, DriverFence):
                lost = self._device.lost
                if lost is None:
                    tell += op.issue(self._record(), self._error, tuple(self._sources))
                else:
                    tell.append(partial(op.drop, lost))
            elif self._error is None and self._device.lost is None:
                self._last = None
                op()
        except Exception as exc:  # noqa: BLE001 - there is no caller any more; it becomes the fences' error
            error = exc if isinstance(exc, DeviceError) else DeviceError(f"stream {self.name!r}: {exc}")
            self._error = self._error or error
            if isinstance(op, DriverFence):
                tell.append(partial(op.drop, error))

    # -- for fences ----------------------------------------------------------------------------------------

    def check_process(self) -> None:
        self._device.check_process()

    def watch(self, fence: DriverFence) -> None:
        self._waiter.put(fence)

    def delivering(self) -> bool:
        return self.given_up is None and self._waiter.busy

    def failed(self, error: DeviceError) -> None:
        if isinstance(error, DeviceLost):
            self._device.lose(error)

    def bar(self) -> None:
        """Nothing completes at enqueue here; but in a forked child nobody is left to give our locks back."""
        if self._device.forked:
            self._lock, self.fence_lock = threading.Lock(), threading.Lock()

    def _check(self) -> None:
        if self._device.forked:
            self._device.check_process()
        if self.closed:
            raise DeviceError(f"stream {self.name!r} is closed")

    # -- closing -------------------------------------------------------------------------------------------

    def begin_close(self) -> None:
        """Let nothing further be enqueued, drop what is deferred, and see to it that somebody waits for the rest."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            dropped = [op for op in self._deferred if isinstance(op, DriverFence)]
            self._deferred.clear()
            if self._device.forked:
                return
            last = self._last_event()
        error = DeviceError(f"stream {self.name!r} is closed; work that waited for a fence was dropped")
        for fence in dropped:
            fence.drop(error)
        if last is not None and not last.query():
            self._waiter.put(last)

    def _last_event(self) -> NativeEvent | None:
        try:
            return self._record()
        except DeviceError:  # a lost device takes no more markers: there is nothing to wait for
            return None

    def finish_close(self, deadline_ns: int) -> None:
        """Wait until what the driver has is over, at most until ``deadline_ns``; several streams may share that."""
        if self not in self._device.workers:
            return
        self._device.workers.discard(self)
        self._last = None
        self._sources.clear()
        if self._device.forked:
            return
        if self._waiter.stop(deadline_ns):
            self._queue.close()
            return
        # Stuck in the driver: the queue and what it uses stay as they are, and nobody waits for it any more.
        self.given_up = DeviceError(f"stream {self.name!r} is closed; its work on the device was not over in time")
        self._device.threads_abandoned += 1
        self._waiter.settle_rest()
