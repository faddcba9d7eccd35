"""The stream of the software devices: checks what is enqueued, and completes at once what need not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from async_orch.abc import Buffer, ByteArray, Fence, Stream
from async_orch.exceptions import DeviceError

from ._device_state import DeviceState
from ._memory import SoftwareBuffer
from ._operations import ISOLATE, Operation, Wait, failure_of
from ._software_fence import DoneFence, PendingFence

__all__ = ["Costs", "OrderedWorker", "SoftwareStream", "as_kernel"]


class OrderedWorker(Protocol):
    """Runs a stream's operations in order, in real or in virtual time."""

    idle: bool
    error: DeviceError | None

    def new_fence(self, enqueue_ns: int) -> PendingFence: ...
    def check_usable(self) -> None: ...
    def drained(self) -> bool: ...
    def put(self, op: Operation) -> None: ...
    def fail(self, effect: Callable[..., object], exc: BaseException) -> None: ...
    def begin_stop(self, reason: str) -> None: ...
    def finish_stop(self, deadline_ns: int) -> None: ...


class Costs(Protocol):
    """Durations of a simulated device."""

    free: bool

    def copy_ns(self, nbytes: int) -> int: ...
    def launch_ns(self, cost_ns: int | None) -> int: ...


class SoftwareStream(Stream):
    """An ordered queue in front of a worker.

    Without ``costs`` copies and kernels take as long as they take on the worker's thread. With them they follow a
    schedule; where all of them are zero, an operation that finds nothing pending runs on the calling thread.
    """

    def __init__(
        self,
        name: str,
        device: DeviceState,
        make_worker: Callable[[], OrderedWorker],
        *,
        clock_ns: Callable[[], int],
        costs: Costs | None = None,
    ) -> None:
        self.name = name
        self._device = device
        self._make_worker = make_worker
        self._worker = make_worker()
        self._clock_ns = clock_ns
        self._costs = costs
        self._inline = costs is not None and costs.free
        self._whole = self._inline and type(self) is SoftwareStream  # a subclass has a copy of its own
        self.closed = False

    @property
    def lost(self) -> bool:
        """Whether the device behind the stream is lost."""
        return self._device.lost is not None

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        if nbytes == dst.nbytes == src.nbytes and not (dst_offset or src_offset):
            target, source = dst.array, src.array
        else:
            target, source = self.ranges(dst, src, nbytes, dst_offset, src_offset)
        worker = self._worker
        costs = self._costs
        if costs is None:
            worker.put((np.copyto, (target, source), 0, 0))
        elif self._inline and worker.idle:
            if worker.error is None:
                try:
                    target[...] = source
                except Exception as exc:  # noqa: BLE001 - as on the worker, it becomes the fences' error
                    worker.fail(np.copyto, exc)
        else:
            worker.put((np.copyto, (target, source), costs.copy_ns(nbytes), self._clock_ns()))

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        arrays = as_kernel(kernel, args)
        worker = self._worker
        costs = self._costs
        if costs is None:
            worker.put((kernel, arrays, 0, 0))
        elif self._inline and not cost_ns and worker.idle:
            if worker.error is None:
                try:
                    kernel(*arrays)
                except KeyboardInterrupt as exc:
                    worker.fail(kernel, exc)
                    raise  # meant for the thread that we borrowed
                except BaseException as exc:  # noqa: BLE001 - whatever a kernel raises becomes its fences' error
                    worker.fail(kernel, exc)
        else:
            worker.put((kernel, arrays, costs.launch_ns(cost_ns), self._clock_ns()))

    @staticmethod
    def ranges(dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> tuple[ByteArray, ByteArray]:
        """The two ends of a copy. Raises `DeviceError` for what lies outside its buffer, or is freed."""
        dst_end = dst_offset + nbytes
        src_end = src_offset + nbytes
        if not (0 <= dst_offset <= dst_end <= dst.nbytes and 0 <= src_offset <= src_end <= src.nbytes):
            raise DeviceError(
                f"copy of {nbytes} B does not fit: from offset {src_offset} of {src!r} "
                f"to offset {dst_offset} of {dst!r}"
            )
        return dst.array[dst_offset:dst_end], src.array[src_offset:src_end]

    def enqueue(self, effect: Callable[..., object], args: tuple[Any, ...], cost_ns: int) -> None:
        """Enqueue anything that the worker shall do, never at once."""
        self._worker.put((effect, args, cost_ns, self._clock_ns()))

    def record(self) -> Fence:
        worker = self._worker
        if worker.idle:
            return DoneFence(self._clock_ns(), worker.error)
        fence = worker.new_fence(self._clock_ns())
        worker.put(fence)
        return fence

    def wait(self, fence: Fence) -> None:
        worker = self._worker
        if fence.query():
            if fence.error is None:
                if not worker.idle:
                    worker.check_usable()
                return
            if worker.idle:
                worker.error = worker.error or failure_of(fence)
                return
        worker.put(Wait(fence))

    def begin(self, after: Fence | None = None) -> Fence:
        worker = self._worker
        if not worker.idle:
            return super().begin(after)
        if after is None or (type(after) is DoneFence and after.failure is None):
            error = worker.error = None
        elif after.query():
            error = worker.error = failure_of(after)
        else:
            return super().begin(after)
        return DoneFence(self._clock_ns(), error)

    def begin_copy(self, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
        worker = self._worker
        if not (self._whole and worker.idle and nbytes == dst.nbytes == src.nbytes):
            return super().begin_copy(dst, src, nbytes)
        worker.error = None
        start = DoneFence(self._clock_ns(), None)
        try:
            dst.array[...] = src.array
        except Exception as exc:  # noqa: BLE001 - as on the worker, it becomes the fences' error
            worker.fail(np.copyto, exc)
        return start, DoneFence(self._clock_ns(), worker.error)

    def record_copy(self, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
        worker = self._worker
        if worker.error is not None or not (self._whole and worker.idle and nbytes == dst.nbytes == src.nbytes):
            return super().record_copy(dst, src, nbytes)
        reached = DoneFence(self._clock_ns(), None)
        try:
            dst.array[...] = src.array
        except Exception as exc:  # noqa: BLE001 - see above
            worker.fail(np.copyto, exc)
        return reached, DoneFence(self._clock_ns(), worker.error)

    def isolate(self) -> None:
        worker = self._worker
        if worker.idle:
            worker.error = None
        else:
            worker.put(ISOLATE)

    def idle(self) -> bool:
        worker = self._worker
        if worker.idle:
            return True
        worker.check_usable()
        return worker.drained()

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.record().synchronize(timeout_s)

    def close(self) -> None:
        self.begin_close()
        self.finish_close(self._device.close_deadline_ns())

    def begin_close(self) -> None:
        """Stop without waiting; several streams closed together then share one time limit."""
        self._worker.begin_stop(f"stream {self.name!r} is closed")

    def finish_close(self, deadline_ns: int) -> None:
        if not self.closed:
            self.closed = True
            self._worker.finish_stop(deadline_ns)

    def begin_reset(self) -> None:
        if not self.closed:
            self._worker.begin_stop(f"stream {self.name!r} was reset")

    def finish_reset(self, deadline_ns: int) -> None:
        """Start afresh; what was queued has failed."""
        if not self.closed:
            self._worker.finish_stop(deadline_ns)
            self._worker = self._make_worker()


def as_kernel(kernel: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as a kernel gets them. Raises `DeviceError` for a kernel that cannot be called."""
    if not callable(kernel):
        raise DeviceError(f"a kernel of this backend is a Python callable, not {type(kernel).__name__}")
    arrays: list[Any] = []
    for arg in args:  # a plain loop and look at the type: isinstance() of an abstract class costs a call
        kind = type(arg)
        arrays.append(arg.array if kind is SoftwareBuffer or Buffer in kind.__mro__ else arg)
    return tuple(arrays)
