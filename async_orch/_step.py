"""A step's state inside the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from async_orch.exceptions import OrchError

if TYPE_CHECKING:
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


class Step(msgspec.Struct, eq=False):
    """A step's state inside the engine. Holds the payload, leases and fences only while it needs them.

    A `msgspec.Struct`, because that makes one with all these defaults in a fraction of the time that an ``__init__``
    takes; steps are compared and hashed by identity.
    """

    pipeline: Pipeline
    program: ProgramRuntime
    payload: Any
    step_id: Any
    attrs: Mapping[str, Any] | None
    submit_ns: int

    # where it is, and how it ended
    seq: int = -1
    state: int = QUEUED
    outcome: str = ""
    output: Any = None
    error: OrchError | None = None
    failed_in: str | None = None
    retrieved: bool = False
    collected: bool = False
    recorded: bool = False
    waiters: list[asyncio.Future[None]] | None = None
    dependents: list[Step] | None = None
    extras: Extras | None = None
    after_seq: int = UNKNOWN

    # what it holds
    staging: Lease[Staging] | None = None
    slot: Slot | None = None
    slot_index: int = UNKNOWN
    generation: int = UNKNOWN
    prepared: Any = None
    copy_start: Fence | None = None
    copy_end: Fence | None = None
    d2d_start: Fence | None = None
    device_start: Fence | None = None
    device_end: Fence | None = None
    output_done: Fence | None = None
    armed: bool = False

    # for the record
    cold_reason: str | None = None
    accept_ns: int = UNKNOWN
    build_start_ns: int = UNKNOWN
    build_end_ns: int = UNKNOWN
    acquire_start_ns: int = UNKNOWN
    acquire_ns: int = UNKNOWN
    h2d_start_ns: int = UNKNOWN
    h2d_ns: int = UNKNOWN
    staging_copy_ns: int = UNKNOWN
    delta_ns: int = UNKNOWN
    d2d_ns: int = UNKNOWN
    alloc_count: int = 0
    alloc_nbytes: int = 0
    alloc_ns: int = 0
    copy_nbytes: int = UNKNOWN
    sm_nbytes: int = UNKNOWN
    launch_start_ns: int = UNKNOWN
    launch_end_ns: int = UNKNOWN
    device_start_ns: int = UNKNOWN
    device_ns: int = UNKNOWN
    d2h_nbytes: int = UNKNOWN
    d2h_ns: int = UNKNOWN
    retire_start_ns: int = UNKNOWN
    retire_end_ns: int = UNKNOWN
    bubble_ns: int = UNKNOWN
    starved_ns: int = UNKNOWN
    in_flight: int = 0
    on_device: int = 0
    settled_ns: int = UNKNOWN

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

    def __repr__(self) -> str:
        return f"<Step seq={self.seq} step_id={self.step_id!r} {self.status}>"
