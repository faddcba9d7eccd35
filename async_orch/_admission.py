"""Who gets in: the window of accepted steps, and the line in front of it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from async_orch._step import Step
from async_orch.exceptions import OrchError, OrchestratorClosed

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["Admission"]


class Admission:
    """Accepts steps first come first served, at most ``max_inflight`` unsettled and ``queue_depth`` unbuilt.

    Whoever waits has a future here; the step is accepted in the same move that makes room for it, so that nobody can
    overtake, and a waiter that is cancelled in the meantime either finds its step not accepted or cancels it.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._limit = pipeline.config.inflight_limit
        self._depth = pipeline.config.queue_depth
        self._refusal: OrchError = OrchestratorClosed("the orchestrator was closed before the step was accepted")
        self.waiting: deque[tuple[asyncio.Future[None], Step]] = deque()
        self.named: dict[Any, Step] = {}

    def has_room(self) -> bool:
        """Whether a step can be accepted now without overtaking one that waits to be."""
        pipeline = self._pipeline
        return not self.waiting and len(pipeline.live) < self._limit and len(pipeline.build.queue) < self._depth

    def accept(self, step: Step) -> None:
        """Take a step in and move it as far as it goes now. From here on it settles exactly once."""
        if not self._pipeline.express(step):
            self.line_up(step)

    def line_up(self, step: Step) -> None:
        """`accept` for a step that has to take the queues."""
        step.accept_ns = step.submit_ns  # accepted in the same move as it was submitted
        self._take(step)
        self.enqueue(step)
        self._pipeline.pump()

    def _take(self, step: Step) -> None:
        pipeline = self._pipeline
        counts = pipeline.counts
        seq = step.seq = counts.accepted
        counts.accepted = seq + 1
        if step.step_id is None:
            step.step_id = seq
        else:
            self.named[step.step_id] = step
        pipeline.live[seq] = step
        step.in_flight = len(pipeline.live)

    def enqueue(self, step: Step) -> None:
        """Put an accepted step in line for its build."""
        self._pipeline.build.queue.append(step)
        if step.extras is not None:
            self._pipeline.settling.begin_extras(step, step.extras)

    def admit(self) -> bool:
        """Accept those in line for whom there is room now."""
        pipeline = self._pipeline
        moved = False
        waiting = self.waiting
        while (
            waiting
            and len(pipeline.live) < self._limit
            and len(pipeline.build.queue) < self._depth
            and pipeline.failure is None
        ):
            future, step = waiting.popleft()
            if not future.done():
                step.accept_ns = pipeline.now()
                self._take(step)
                self.enqueue(step)
                future.set_result(None)
                moved = True
        return moved

    def refuse(self, error: OrchError) -> None:
        """Let everyone in line fail with ``error``."""
        self._refusal = error
        while self.waiting:
            future, _ = self.waiting.popleft()
            if not future.done():
                future.set_result(None)

    def join(self, step: Step) -> asyncio.Future[None]:
        """Stand in line; the step's name is taken from here on."""
        if step.step_id is not None:
            self.named[step.step_id] = step
        future = self._pipeline.new_future()
        self.waiting.append((future, step))
        return future

    def forget(self, step: Step) -> None:
        """A caller stopped waiting, or was refused; those behind may have room now."""
        if step.step_id is not None and self.named.get(step.step_id) is step:
            del self.named[step.step_id]
        self.waiting = deque(entry for entry in self.waiting if entry[1] is not step)
        self._pipeline.pump()

    @property
    def refusal(self) -> OrchError:
        """Why a step that waited was not accepted."""
        return self._refusal
