"""A step's state inside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from async_orch.exceptions import OrchError

if TYPE_CHECKING:
    from async_orch._delta import Delta
    from async_orch._pipeline import Pipeline
    from async_orch._program import ProgramRuntime
    from async_orch._ring import Lease
    from async_orch._slot import Slot, SlotSizes
    from async_orch._staging import Staging
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
        "prepared",
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
        self.prepared: Any = None
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
    """A step's state inside the engine. Holds the payload, leases and fences only while it needs them.

    Slots, because one is made and some thirty of its attributes are set for every step; ``__init__`` sets all defaults
    in chains of assignments for the same reason. 60 of them at most: a larger object (512 B) comes from malloc instead
    of the interpreter's own pools. Compared and hashed by identity.
    """

    __slots__ = (
        # what was submitted
        "pipeline",
        "program",
        "payload",
        "step_id",
        "attrs",
        "submit_ns",
        # where it is, and how it ended
        "seq",
        "state",
        "outcome",
        "output",
        "error",
        "failed_in",
        "retrieved",
        "collected",
        "recorded",
        "waiters",
        "dependents",
        "extras",
        "after_seq",
        # what it holds
        "staging",
        "slot",
        "slot_index",
        "generation",
        "copy_start",
        "copy_end",
        "d2d_start",
        "device_start",
        "device_end",
        "output_done",
        # for the record
        "cold_reason",
        "accept_ns",
        "build_start_ns",
        "build_end_ns",
        "acquire_start_ns",
        "acquire_ns",
        "h2d_start_ns",
        "h2d_ns",
        "staging_copy_ns",
        "delta_ns",
        "delta",
        "d2d_ns",
        "alloc_count",
        "alloc_nbytes",
        "alloc_ns",
        "copy_nbytes",
        "sm_nbytes",
        "launch_start_ns",
        "launch_end_ns",
        "device_start_ns",
        "device_ns",
        "d2h_nbytes",
        "d2h_ns",
        "retire_start_ns",
        "retire_end_ns",
        "bubble_ns",
        "starved_ns",
        "in_flight",
        "on_device",
        "settled_ns",
    )  # fmt: skip

    program: ProgramRuntime
    step_id: Any
    attrs: Mapping[str, Any] | None
    outcome: str
    output: Any
    error: OrchError | None
    failed_in: str | None
    waiters: list[asyncio.Future[None]] | None
    dependents: list[Step] | None
    extras: Extras | None
    staging: Lease[Staging] | None
    slot: Slot | None
    copy_start: Fence | None
    copy_end: Fence | None
    d2d_start: Fence | None
    device_start: Fence | None
    device_end: Fence | None
    output_done: Fence | None
    cold_reason: str | None
    delta: Delta | None

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
        self.outcome = ""
        self.state = self.alloc_count = self.alloc_nbytes = self.alloc_ns = self.in_flight = self.on_device = 0
        self.retrieved = self.collected = self.recorded = False
        self.output = self.error = self.failed_in = self.waiters = self.dependents = self.extras = None
        self.staging = self.slot = self.copy_start = self.copy_end = self.d2d_start = None
        self.device_start = self.device_end = self.output_done = self.cold_reason = self.delta = None
        self.seq = self.after_seq = self.slot_index = self.generation = self.accept_ns = self.settled_ns = UNKNOWN
        self.build_start_ns = self.build_end_ns = self.acquire_start_ns = self.acquire_ns = UNKNOWN
        self.h2d_start_ns = self.h2d_ns = self.staging_copy_ns = self.delta_ns = self.d2d_ns = UNKNOWN
        self.copy_nbytes = self.sm_nbytes = self.launch_start_ns = self.launch_end_ns = UNKNOWN
        self.device_start_ns = self.device_ns = self.d2h_nbytes = self.d2h_ns = UNKNOWN
        self.retire_start_ns = self.retire_end_ns = self.bubble_ns = self.starved_ns = UNKNOWN

    def ensure_extras(self) -> Extras:
        """The step's extras, made if it had none."""
        if self.extras is None:
            self.extras = Extras()
        return self.extras

    def note_shared_image(self) -> None:
        """Nothing of its image is copied: the kernels read it where it was built."""
        self.copy_nbytes = 0
        if self.sm_nbytes != UNKNOWN:
            self.sm_nbytes = 0

    @property
    def status(self) -> str:
        """The state's name, or the outcome once settled."""
        return self.outcome if self.state == SETTLED else STATE_NAMES[self.state]

    def mark_retrieved(self) -> None:
        """Note that somebody saw the failure."""
        if self.outcome == "failed" and not self.retrieved:
            self.retrieved = True
            self.pipeline.counts.failed_unretrieved -= 1

    def __repr__(self) -> str:
        return f"<Step seq={self.seq} step_id={self.step_id!r} {self.status}>"
