"""One settled step as its record."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from async_orch import logs
from async_orch._step import UNKNOWN, Step
from async_orch._timings import copied_nbytes
from async_orch.exceptions import StepTimeout

__all__ = ["RecordMaker"]

_EVENTS: dict[str, tuple[logs.StepEvent, str]] = {
    "completed": ("step.completed", "info"),
    "failed": ("step.failed", "error"),
    "cancelled": ("step.cancelled", "warning"),
    "detached": ("step.detached", "warning"),
}


class RecordMaker:
    """Turns a settled step into its `StepRecord`; for one thread."""

    def __init__(self, run_id: str, device: str, device_clock: str, clock_ns: Callable[[], int]) -> None:
        self.run_id = run_id
        self.pid = os.getpid()
        self.host = socket.gethostname()
        self.device = device
        self.device_clock: Any = device_clock
        self.sees_allocations = True
        self._clock_ns = clock_ns
        self._wall_from_mono_ns = 0
        self.anchor()

    def anchor(self) -> dict[str, int]:
        """The two clocks now: from here on wall times are taken from this pair."""
        mono_ns, wall_ns = self._clock_ns(), time.time_ns()
        self._wall_from_mono_ns = wall_ns - mono_ns
        return {"mono_ns": mono_ns, "wall_ns": wall_ns}

    def __call__(self, step: Step) -> logs.StepRecord:
        """The record; callable once the step has settled and its fences were read.

        One expression for all fields, since with a log every step pays for it: -1 is unknown and becomes None.
        """
        event, level = _EVENTS[step.outcome]
        h2d_ns = step.h2d_ns
        copy_nbytes, sm_nbytes = copied_nbytes(step)
        graph_ns: int | None = h2d_ns
        sm_ns: int | None = 0
        split: Any = None
        if h2d_ns < 0:
            graph_ns = sm_ns = None
        elif sm_nbytes >= 0 and copy_nbytes > 0:
            # One copy, divided by its bytes: a share, not a measurement, and marked as such.
            sm_ns = h2d_ns * sm_nbytes // copy_nbytes
            graph_ns, split = h2d_ns - sm_ns, "bytes"
        build_start_ns, build_end_ns = step.build_start_ns, step.build_end_ns
        acquire_start_ns, acquire_ns = step.acquire_start_ns, step.acquire_ns
        launch_start_ns, launch_end_ns = step.launch_start_ns, step.launch_end_ns
        retire_start_ns, retire_end_ns = step.retire_start_ns, step.retire_end_ns
        bubble_known = step.starved_ns != UNKNOWN  # a bubble may be -1 ns long; the two are set together
        sees, extras, error, stage = self.sees_allocations, step.extras, step.error, None
        if error is not None:
            if event == "step.failed" or isinstance(error, StepTimeout):
                stage = getattr(error, "stage", step.failed_in)
            else:
                error = None  # a cancel is what the caller wanted
        return logs.StepRecord(
            event,
            logs.SCHEMA,
            level,
            logs.format_timestamp(self._wall_from_mono_ns + step.settled_ns),
            self.run_id,
            self.pid,
            self.host,
            self.device,
            step.program.name,
            step.step_id,
            step.seq,
            step.attrs,  # type: ignore[arg-type] # any Mapping is encoded as a dict is
            None if step.after_seq < 0 else step.after_seq,
            None if step.slot_index < 0 else step.slot_index,
            None if step.generation < 0 else step.generation,
            step.cold_reason,
            step.submit_ns,
            None if step.accept_ns < 0 else step.accept_ns,
            None if build_start_ns < 0 else build_start_ns,
            None if build_start_ns < 0 or build_end_ns < 0 else build_end_ns - build_start_ns,
            None if acquire_start_ns < 0 else acquire_start_ns,
            None if acquire_start_ns < 0 or acquire_ns < 0 else acquire_ns - acquire_start_ns,
            None if step.h2d_start_ns < 0 else step.h2d_start_ns,
            None if h2d_ns < 0 else h2d_ns,
            graph_ns,
            sm_ns,
            split,
            None if step.d2d_ns < 0 else step.d2d_ns,
            step.alloc_count if sees else None,
            step.alloc_nbytes if sees else None,
            step.alloc_ns if sees else None,
            None if copy_nbytes < 0 else copy_nbytes,
            None if sm_nbytes < 0 else sm_nbytes,
            None if extras is None or extras.feed_wait_ns < 0 else extras.feed_wait_ns,
            None if extras is None or extras.feed_ns < 0 else extras.feed_ns,
            None if launch_start_ns < 0 else launch_start_ns,
            None if launch_start_ns < 0 or launch_end_ns < 0 else launch_end_ns - launch_start_ns,
            None if step.device_start_ns < 0 else step.device_start_ns,
            None if step.device_ns < 0 else step.device_ns,
            self.device_clock,
            None if step.d2h_ns < 0 else step.d2h_ns,
            None if step.d2h_nbytes < 0 else step.d2h_nbytes,
            None if retire_start_ns < 0 else retire_start_ns,
            None if retire_start_ns < 0 or retire_end_ns < 0 else retire_end_ns - retire_start_ns,
            None if step.accept_ns < 0 or retire_end_ns < 0 else retire_end_ns - step.accept_ns,
            step.bubble_ns if bubble_known else None,
            step.starved_ns if bubble_known else None,
            step.in_flight,
            step.on_device or None,
            None if error is None else " ".join(str(error).split()),
            stage,
            None if step.staging_copy_ns < 0 else step.staging_copy_ns,
            None if step.delta_ns < 0 else step.delta_ns,
        )
