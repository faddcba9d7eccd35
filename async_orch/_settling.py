"""How steps end: settled, dropped, cancelled, timed out, or taken down with what they depend on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from async_orch._events import emit
from async_orch._step import BUILDING, LAUNCHED, LAUNCHING, SETTLED, UNKNOWN, Extras, Step
from async_orch.exceptions import (
    DependencyFailed,
    DeviceLost,
    OrchError,
    PipelineFailed,
    StepCancelled,
    StepTimeout,
)

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["Settling"]


class Settling:
    """The one place where steps settle, so that each does so exactly once and takes the right others with it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._policy = pipeline.config.policy
        self._doomed: deque[tuple[Step, OrchError]] = deque()
        self._dooming = False

    # -- one step ------------------------------------------------------------------------------------------

    def settle(self, step: Step, outcome: str, error: OrchError | None = None, *, record: bool = True) -> None:
        """Give the step its outcome and wake its awaiters. The one place where ``live`` shrinks."""
        if step.state == SETTLED:
            return
        pipeline, counts = self._pipeline, self._pipeline.counts
        if step.state >= LAUNCHING:
            pipeline.on_device -= 1
        step.state = SETTLED
        step.outcome = outcome
        step.error = error
        step.settled_ns = pipeline.now() if step.retire_end_ns == UNKNOWN else step.retire_end_ns
        del pipeline.live[step.seq]
        named = pipeline.admission.named
        if named and named.get(step.step_id) is step:
            del named[step.step_id]
        if outcome == "completed":
            counts.completed += 1
        elif outcome == "failed":
            counts.failed += 1
            counts.failed_unretrieved += 1
            emit("warning", "step.failed", step_id=step.step_id, seq=step.seq, error=str(error))
        else:
            counts.cancelled += 1
        step.recorded = record
        if record and pipeline.sink is not None:
            pipeline.sink(step)
        waiters = step.waiters
        if waiters is not None:
            step.waiters = None
            for future in waiters:
                if not future.done():
                    future.set_result(None)
        if step.extras is not None:
            self._end_extras(step.extras)
        if step.dependents is not None and outcome != "detached":
            self._settle_dependents(step)
        if outcome != "detached":
            step.payload = None
        if outcome == "failed" and self._policy == "fail_pipeline" and not isinstance(error, DependencyFailed):
            # The failure at the root does this, not what it entails: behind a cancel there is none.
            self.fail(PipelineFailed(f"the pipeline failed because a step did: {error}"), error)

    def drop(self, step: Step, outcome: str, error: OrchError) -> None:
        """Settle a step that is still on its way, giving back what it holds after the fences that use it."""
        state = step.state
        if state == SETTLED:
            return
        pipeline = self._pipeline
        pipeline.take_out(step)
        if state < LAUNCHING:
            # What a thread works on comes back when that is over.
            if not pipeline.build.holds(step) and step not in pipeline.h2d.comparing:
                if step.staging is not None:
                    pipeline.staging.release(step.staging)
                    step.staging = None
                pipeline.release_slot(step, step.copy_end)
        elif outcome == "cancelled":
            outcome = "detached"
        # A launched step's record waits for its fence, so that the log shows what the device was busy with.
        self.settle(step, outcome, error, record=state not in (LAUNCHING, LAUNCHED))

    def cancel(self, step: Step) -> bool:
        """`StepHandle.cancel`."""
        if step.state == SETTLED:
            return False
        where = "detached after its launch" if step.state >= LAUNCHING else "removed before its launch"
        message = f"step {step.step_id!r} was cancelled: {where}"
        self.drop(step, "cancelled", StepCancelled(message, stage=step.status, step_id=step.step_id, seq=step.seq))
        self._pipeline.pump()
        return True

    # -- time limits and dependencies ----------------------------------------------------------------------

    def begin_extras(self, step: Step, extras: Extras) -> None:
        """At acceptance: start the time limit, and tie the step to the one that it comes after."""
        if extras.timeout_s is not None:
            extras.timer = self._pipeline.loop.call_later(extras.timeout_s, self._expire, step)
        root = extras.after
        if root is None:
            return
        step.after_seq = root.seq
        if root.state != SETTLED or (root.slot is not None and not root.collected):
            # Not over yet; a detached one has its slot as long as the device works on it.
            if root.dependents is None:
                root.dependents = []
            root.dependents.append(step)
        elif not root.collected and self._needs(step):
            self._doom(step, root)

    def _end_extras(self, extras: Extras) -> None:
        extras.stop_timer()
        extras.after = None
        extras.wait_for = ()
        extras.wake_launch_waiters()

    def _expire(self, step: Step) -> None:
        if step.state == SETTLED or step.extras is None:
            return
        stage, building = step.status, step.state == BUILDING and self._pipeline.build.writes(step)
        text = f"step {step.step_id!r} (seq {step.seq}) timed out in {stage} after {step.extras.timeout_s} s"
        self.drop(step, "cancelled", StepTimeout(text, stage=stage, step_id=step.step_id, seq=step.seq))
        if building:
            self._pipeline.build.quarantine(step)
        self._pipeline.pump()

    def _needs(self, step: Step) -> bool:
        """Whether a step cannot go on without the output of the one that it comes after."""
        return step.program.has_feed or self._policy == "discard_dependents"

    def needed(self, step: Step) -> bool:
        """Whether a live step waits for this one's output."""
        return step.dependents is not None and any(d.state < LAUNCHING and d.program.has_feed for d in step.dependents)

    def _doom(self, step: Step, root: Step) -> None:
        cause = root.error
        origin = root.step_id
        if isinstance(cause, DependencyFailed):
            origin, cause = cause.root_step_id, cause.__cause__  # type: ignore[assignment]
        what = "was removed" if isinstance(cause, StepCancelled) else "failed"
        text = f"step {step.step_id!r} (seq {step.seq}) needs the output of step {origin!r}, which {what}: {cause}"
        error = DependencyFailed(text, stage=step.status, step_id=step.step_id, seq=step.seq, root_step_id=origin)
        error.__cause__ = cause
        self._doomed.append((step, error))
        if self._dooming:
            return
        # A work list instead of recursion: a chain may be as long as the window.
        self._dooming = True
        try:
            while self._doomed:
                doomed, why = self._doomed.popleft()
                self.drop(doomed, "failed", why)
        finally:
            self._dooming = False

    def _settle_dependents(self, root: Step) -> None:
        dependents, root.dependents = root.dependents, None
        if root.outcome == "completed" or dependents is None:
            return
        for step in dependents:
            if step.state != SETTLED and self._needs(step):
                self._doom(step, root)

    def detached_ended(self, step: Step) -> None:
        """A settled step's device work is over: its record is due, and its dependents can be fed now, or never."""
        if not step.recorded:
            step.recorded = True
            if self._pipeline.sink is not None:
                self._pipeline.sink(step)
        if not step.collected:
            self._settle_dependents(step)
        step.dependents = None
        step.payload = None

    # -- the whole -----------------------------------------------------------------------------------------

    def fail(self, error: OrchError, cause: BaseException | None = None) -> None:
        """Stop for good: every step that has not settled, and every later submit, gets ``error``."""
        pipeline = self._pipeline
        if pipeline.failure is not None:
            return
        error.__cause__ = cause
        pipeline.failure = error
        pipeline.lost_steps = len(pipeline.live)
        if isinstance(error, DeviceLost):
            emit("error", "device.lost", error=str(error))
        # The latest first: a step that needs another is to get this error, not what became of that other.
        for step in reversed(list(pipeline.live.values())):
            self.drop(step, "failed", error)
        pipeline.admission.refuse(error)
        pipeline.barriers.fail(error)

    def device_lost(self, step: Step, cause: BaseException) -> None:
        """Poison: the device is gone, and ``step`` was the first to see it."""
        self.fail(DeviceLost(f"device lost at step {step.step_id!r} (seq {step.seq}): {cause}"), cause)
