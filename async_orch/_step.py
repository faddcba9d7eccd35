"""A step's state inside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from async_orch.exceptions import OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline
    from async_orch._program import ProgramRuntime
    from async_orch._ring import Lease
    from async_orch._slot import Slot, SlotSizes, Staging
    from async_orch.abc import Fence

__all__ = ["Extras", "Step"]

# Where a step is. The order matters: a state below LAUNCHING has not reached the device.
QUEUED, BUILDING, BUILT, ACQUIRED, LAUNCHING, LAUNCHED, RETIRING, SETTLED = range(8)

STATE_NAMES = ("queued", "building", "built", "acquired", "launching", "launched", "retiring", "settled")

UNKNOWN = -1
"""A time or size not reached or not measurable; null in the record."""


class Extras:
    """What only some steps have; None in `Step.extras` for the others, so that they do not pay for it."""

    __slots__ = (
        "after",
        "feed_ns",
        "feed_wait_ns",
        "launch_waiters",
        "retries_left",
        "sizes",
        "stage_timer",
        "timeout_s",
        "timer",
        "wait_for",
        "waiting_since_ns",
    )

    def __init__(self) -> None:
        self.after: Step | None = None
        self.wait_for: tuple[Fence, ...] = ()
        self.timeout_s: float | None = None
        self.retries_left = 0
        self.timer: asyncio.TimerHandle | None = None
        self.stage_timer: asyncio.TimerHandle | None = None
        self.sizes: SlotSizes | None = None
        self.launch_waiters: list[asyncio.Future[None]] | None = None
        self.waiting_since_ns = self.feed_wait_ns = self.feed_ns = UNKNOWN

    def wake_launch_waiters(self) -> None:
        """The step was launched, or will never be."""
        waiters, self.launch_waiters = self.launch_waiters, None
        for future in waiters or ():
            if not future.done():
                future.set_result(None)

    def stop_timer(self) -> None:
        """Forget the step's own time limit."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop_stage_timer(self) -> None:
        """The hook returned, or is given up. A step that settles meanwhile leaves this timer alone."""
        if self.stage_timer is not None:
            self.stage_timer.cancel()
            self.stage_timer = None


class Step:
    """A step's state inside the engine. Holds the payload, leases and fences only while it needs them."""

    __slots__ = (
        "accept_ns",
        "acquire_ns",
        "acquire_start_ns",
        "after_seq",
        "alloc_count",
        "alloc_nbytes",
        "alloc_ns",
        "armed",
        "attrs",
        "bubble_ns",
        "build_end_ns",
        "build_start_ns",
        "cold_reason",
        "collected",
        "copy_end",
        "copy_nbytes",
        "copy_start",
        "d2d_ns",
        "d2d_start",
        "d2h_nbytes",
        "d2h_ns",
        "dependents",
        "device_end",
        "device_ns",
        "device_start",
        "device_start_ns",
        "error",
        "extras",
        "failed_in",
        "generation",
        "h2d_ns",
        "h2d_start_ns",
        "in_flight",
        "launch_end_ns",
        "launch_start_ns",
        "on_device",
        "outcome",
        "output",
        "output_done",
        "payload",
        "pipeline",
        "prepared",
        "program",
        "recorded",
        "retire_end_ns",
        "retire_start_ns",
        "retrieved",
        "seq",
        "settled_ns",
        "slot",
        "slot_index",
        "sm_nbytes",
        "staging",
        "starved_ns",
        "state",
        "step_id",
        "submit_ns",
        "waiters",
    )

    def __init__(
        self,
        pipeline: Pipeline,
        program: ProgramRuntime,
        payload: Any,
        step_id: Any,
        attrs: Mapping[str, Any] | None,
        submit_ns: int,
    ) -> None:
        self.pipeline = pipeline
        self.program = program
        self.payload = payload
        self.step_id = step_id
        self.attrs = attrs
        self.submit_ns = submit_ns
        self.seq = -1
        self.state = QUEUED
        self.outcome = ""
        self.output: Any = None
        self.error: OrchError | None = None
        self.failed_in: str | None = None
        self.retrieved = False
        self.waiters: list[asyncio.Future[None]] | None = None
        self.staging: Lease[Staging] | None = None
        self.slot: Slot | None = None
        self.slot_index = self.generation = UNKNOWN
        self.cold_reason: str | None = None
        self.armed = False
        self.collected = False
        self.recorded = False
        self.d2d_start: Fence | None = None
        self.extras: Extras | None = None
        self.dependents: list[Step] | None = None
        self.prepared: Any = None
        self.after_seq = UNKNOWN
        self.copy_start: Fence | None = None
        self.copy_end: Fence | None = None
        self.device_start: Fence | None = None
        self.device_end: Fence | None = None
        self.output_done: Fence | None = None
        self.accept_ns = UNKNOWN
        self.build_start_ns = self.build_end_ns = UNKNOWN
        self.acquire_start_ns = self.acquire_ns = UNKNOWN
        self.h2d_start_ns = self.h2d_ns = UNKNOWN
        self.alloc_count = self.alloc_nbytes = self.alloc_ns = 0
        self.copy_nbytes = self.sm_nbytes = UNKNOWN
        self.launch_start_ns = self.launch_end_ns = UNKNOWN
        self.device_start_ns = self.device_ns = UNKNOWN
        self.d2h_nbytes = self.d2h_ns = self.d2d_ns = UNKNOWN
        self.retire_start_ns = self.retire_end_ns = UNKNOWN
        self.bubble_ns = self.starved_ns = UNKNOWN
        self.in_flight = self.on_device = 0
        self.settled_ns = UNKNOWN

    def ensure_extras(self) -> Extras:
        """The step's extras, made if it had none."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    @property
    def status(self) -> str:
        """The state's name, or the outcome once settled."""
        return self.outcome if self.state == SETTLED else STATE_NAMES[self.state]

    def mark_retrieved(self) -> None:
        """Note that somebody saw the failure."""
        if self.outcome == "failed" and not self.retrieved:
            self.retrieved = True
            self.pipeline.counts.failed_unretrieved -= 1
