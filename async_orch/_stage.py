"""What the five stages share.

Each stage has the queue before it and one method, `advance`, that moves what can move now. Builds may end in any
order, but staging, slots and launches are granted strictly in the order of `Step.seq`, so that nothing can wait in
a circle. A stage never raises for a step's sake: a hook's or driver's exception becomes that step's failure, and the
pump goes on.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from async_orch._events import emit
from async_orch._step import Step
from async_orch.exceptions import DeviceLost, HotPathAllocation, OrchError, OutputEscaped, StepError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["Stage"]


class Stage:
    """The pipeline, a queue, and how a step fails here."""

    name = ""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.queue: deque[Step] = deque()
        self.blocked_ns = pipeline.blocked_ns
        self._warned: set[tuple[str, str]] = set()

    def remove(self, step: Step) -> bool:
        """Take a step out of the queue; False if it is not there."""
        try:
            self.queue.remove(step)
        except ValueError:
            return False
        return True

    def fail_step(
        self, step: Step, kind: type[StepError], what: str, cause: BaseException | None, *, stage: str = ""
    ) -> None:
        """Settle the step as failed, in this stage or the one named. A lost device fails every step instead."""
        settling = self.pipeline.settling
        stage = step.failed_in = stage or self.name
        if isinstance(cause, DeviceLost):
            settling.device_lost(step, cause)
            return
        error: OrchError
        if isinstance(cause, HotPathAllocation | OutputEscaped):
            error = type(cause)(f"step {step.step_id!r} (seq {step.seq}), {stage}: {cause}")
        else:
            error = kind(
                f"step {step.step_id!r} (seq {step.seq}) failed in {stage}: {what}{_words(cause)}",
                stage=stage,
                step_id=step.step_id,
                seq=step.seq,
            )
        error.__cause__ = cause
        settling.drop(step, "failed", error)

    @staticmethod
    def is_lost(error: BaseException | None) -> bool:
        """Whether a failure means that the whole device is gone."""
        return isinstance(error, DeviceLost)

    def warn_blocked(self, hook: str, step: Step, elapsed_ns: int) -> None:
        """One ``loop.blocked`` warning for each inline hook that held the loop longer than ``blocked_ns``."""
        key = (step.program.name, hook)
        if key in self._warned:
            return
        self._warned.add(key)
        emit("warning", "loop.blocked", hook=hook, program=step.program.name, seq=step.seq, ns=elapsed_ns)


def _words(cause: BaseException | None) -> str:
    """The cause in words; the caller's exceptions may not even be printable."""
    if cause is None:
        return ""
    try:
        return f": {type(cause).__name__}: {cause}"
    except Exception as exc:  # noqa: BLE001 - a message must not hide the failure that it is about
        return f": {type(cause).__name__} (whose text cannot be had: {type(exc).__name__})"
