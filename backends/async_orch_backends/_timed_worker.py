"""A stream's thread that keeps to a schedule."""

from __future__ import annotations

import time

from async_orch.abc import Fence

from ._device_state import DeviceState
from ._operations import Work
from ._software_fence import DoneFence, PendingFence
from ._stream_worker import StreamWorker

__all__ = ["TimedWorker"]


class TimedWorker(StreamWorker):
    """A stream's thread that keeps to the schedule.

    The schedule does not contain how late the thread woke up, so lateness does not add up over many operations.
    """

    __slots__ = ("_free_ns",)

    def __init__(self, name: str, device: DeviceState) -> None:
        super().__init__(name, device)
        self._free_ns = 0

    def _perform(self, work: Work) -> None:
        effect, args, cost_ns, enqueue_ns = work
        start_ns = max(enqueue_ns, self._free_ns)
        began_ns = time.monotonic_ns()
        try:
            effect(*args)
        finally:
            self._free_ns = start_ns + max(cost_ns, time.monotonic_ns() - began_ns)
            self._pause_until(self._free_ns)

    def _reach(self, fence: PendingFence) -> int:
        self._free_ns = max(self._free_ns, fence.enqueue_ns)
        return self._free_ns

    def _passed(self, fence: Fence) -> None:
        reached_ns = fence.time_ns() if isinstance(fence, DoneFence | PendingFence) else None
        self._free_ns = max(self._free_ns, time.monotonic_ns() if reached_ns is None else reached_ns)
