"""Barriers: a function of the caller between two steps, with the device at rest."""

from __future__ import annotations

import asyncio
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING

from async_orch.exceptions import OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["Barrier", "Barriers", "inside_barrier"]


class Barrier:
    """One barrier: steps before `bound` come first, those from it on are not launched while it stands."""

    __slots__ = ("bound", "error", "reached", "rebuild")

    def __init__(self, bound: int, rebuild: bool, reached: asyncio.Future[None]) -> None:
        self.bound = bound
        self.rebuild = rebuild
        self.reached = reached
        self.error: OrchError | None = None


inside_barrier: ContextVar[Barrier | None] = ContextVar("async_orch_inside_barrier", default=None)
"""The barrier whose function runs in this context, so that calling back into its orchestrator can be refused."""


class Barriers:
    """The barriers that stand, in order."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.standing: deque[Barrier] = deque()

    def put_up(self, *, rebuild: bool) -> Barrier:
        """A barrier behind everything accepted so far."""
        pipeline = self._pipeline
        barrier = Barrier(pipeline.counts.accepted, rebuild, pipeline.new_future())
        self.standing.append(barrier)
        return barrier

    def take_down(self, barrier: Barrier) -> None:
        """Let later steps go on."""
        if barrier in self.standing:
            self.standing.remove(barrier)
        self._pipeline.pump()

    def holds_launch(self, seq: int) -> bool:
        """Whether a step must not be launched yet."""
        return bool(self.standing) and seq >= self.standing[0].bound

    def holds_build(self, seq: int) -> bool:
        """Whether a step must not be built yet."""
        return any(barrier.rebuild and seq >= barrier.bound for barrier in self.standing)

    def look(self) -> None:
        """Tell the first barrier when every step before it has settled and left the device."""
        if not self.standing:
            return
        pipeline, first = self._pipeline, self.standing[0]
        if first.reached.done():
            return
        # A cancelled step has settled, but the device or the launch thread may still be at it.
        for step in (next(iter(pipeline.live.values()), None), pipeline.retire.head(), pipeline.launch.busy):
            if step is not None and step.seq < first.bound:
                return
        first.reached.set_result(None)

    def fail(self, error: OrchError) -> None:
        """The pipeline failed: nobody may wait for a barrier any more."""
        for barrier in self.standing:
            barrier.error = error
            if not barrier.reached.done():
                barrier.reached.set_result(None)
