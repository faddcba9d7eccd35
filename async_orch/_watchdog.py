"""Finds a hung device: a launched step whose fence is overdue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["FenceWatchdog"]


class FenceWatchdog:
    """One timer for all steps: it looks at the oldest launched one and sets itself anew, so a step costs none."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._timeout_s = pipeline.config.fence_timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Called at each launch."""
        if self._timer is None:
            self._timer = self._pipeline.loop.call_later(self._timeout_s, self._check)

    def stop(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        pipeline = self._pipeline
        self._timer = None
        head = pipeline.retire.head()
        if head is None or pipeline.failure is not None:
            return
        if pipeline.retire.collecting is not None:
            # The device is done with it: what takes long is the caller's collect.
            self.start()
            return
        since_ns = max(head.launch_end_ns, pipeline.retire.last_fence_ns)
        left_ns = since_ns + round(self._timeout_s * 1e9) - pipeline.now()
        if left_ns > 0:
            self._timer = pipeline.loop.call_later(left_ns / 1e9, self._check)
            return
        pipeline.pump()
        if pipeline.retire.head() is head and pipeline.failure is None:
            text = f"no fence within fence_timeout_s={self._timeout_s} s; raise it if kernels may take longer"
            pipeline.settling.device_lost(head, TimeoutError(text))
            pipeline.pump()
