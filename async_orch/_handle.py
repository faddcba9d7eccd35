"""What the caller holds of a step: its handle while it runs, its result afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

import msgspec

from async_orch._step import LAUNCHED, SETTLED, Step
from async_orch._timings import StepTimings, timings_of
from async_orch.abc import Fence
from async_orch.exceptions import MisuseError, OrchError

__all__ = ["StepHandle", "StepResult", "fresh_error"]

ResultT = TypeVar("ResultT")


def fresh_error(error: OrchError) -> OrchError:
    """A new exception object like ``error``, without its traceback.

    One instance raised a thousand times carries a traceback of a thousand frames; so every awaiter gets its own.
    """
    copy = type(error).__new__(type(error), *error.args)
    copy.args = error.args  # OSError, from which StepTimeout derives, sets them in __init__ only
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    copy.__suppress_context__ = True
    return copy


class StepResult(msgspec.Struct, Generic[ResultT], eq=False):
    """What a completed step gave: `output` is what ``collect`` returned."""

    _step: Step  # a Struct is made in half the time that an __init__ takes

    @property
    def output(self) -> ResultT:
        """The value that ``collect`` returned; None for a program without output."""
        output: ResultT = self._step.output
        return output

    @property
    def timings(self) -> StepTimings:
        """When the step did what, and for how long."""
        return timings_of(self._step)

    @property
    def step_id(self) -> Any:
        """The caller's name of the step; its `seq` where none was given."""
        return self._step.step_id

    @property
    def seq(self) -> int:
        """The number given at acceptance: 0, 1, 2, ..."""
        return self._step.seq

    @property
    def slot(self) -> int:
        """Index of the slot that the step had."""
        return self._step.slot_index

    @property
    def generation(self) -> int:
        """How often that slot had been leased before."""
        return self._step.generation

    @property
    def cold_reason(self) -> str | None:
        """Why the step paid a one-time cost: ``first_launch``, ``worker_start``, ``each_step``; else None."""
        return self._step.cold_reason

    def __repr__(self) -> str:
        return f"<StepResult seq={self.seq} step_id={self.step_id!r} slot={self.slot}.{self.generation}>"


class PastFence(Fence):
    """Stands for the fence of a step that is over: done."""

    __slots__ = ()

    notifies = True

    def query(self) -> bool:
        return True

    @property
    def error(self) -> BaseException | None:
        return None

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Returns at once."""

    def notify(self, callback: Callable[[], None]) -> None:
        callback()

    def time_ns(self) -> int | None:
        return None


class Launched:
    """What `StepHandle.launched` gives."""

    __slots__ = ("_step",)

    def __init__(self, step: Step) -> None:
        self._step = step

    def __await__(self) -> Generator[Any, None, Fence]:
        step = self._step
        if step.state < LAUNCHED:
            future = step.pipeline.new_future()
            extras = step.ensure_extras()
            if extras.launch_waiters is None:
                extras.launch_waiters = []
            extras.launch_waiters.append(future)
            try:
                yield from future
            finally:
                # Still there if the wait was cancelled: leave no trace in a step that may live on for long.
                if extras.launch_waiters is not None and future in extras.launch_waiters:
                    extras.launch_waiters.remove(future)
        if step.device_end is not None:
            return step.device_end
        if step.error is not None:
            step.mark_retrieved()
            raise fresh_error(step.error)
        return PastFence()


class StepHandle(msgspec.Struct, Generic[ResultT], eq=False, weakref=True):
    """An accepted step. Await it, any number of times and from any number of tasks of the loop, for its result.

    Cancelling a task that awaits it leaves the step running; dropping the handle changes nothing.
    """

    _step: Step

    def __await__(self) -> Generator[Any, None, StepResult[ResultT]]:
        step = self._step
        if step.state != SETTLED:
            if asyncio.get_running_loop() is not step.pipeline.loop:
                raise MisuseError("a handle is awaited on the loop of its orchestrator; this is another one")
            future = step.pipeline.new_future()
            if step.waiters is None:
                step.waiters = []
            step.waiters.append(future)
            try:
                yield from future
            finally:
                # As above: whoever settles the step takes its waiters away first.
                if step.waiters is not None and future in step.waiters:
                    step.waiters.remove(future)
        return self.result()

    def result(self) -> StepResult[ResultT]:
        """The settled step's result; raises a fresh copy of its failure, and `MisuseError` before it settled."""
        step = self._step
        if step.state != SETTLED:
            raise MisuseError(f"step {step.step_id!r} has not settled: it is {step.status}; await the handle")
        if step.error is not None:
            step.mark_retrieved()
            raise fresh_error(step.error)
        return StepResult(step)

    def done(self) -> bool:
        """Whether the step has settled."""
        return self._step.state == SETTLED

    def exception(self) -> OrchError | None:
        """A fresh copy of the settled step's failure, None if it succeeded or has not settled."""
        error = self._step.error
        if error is None:
            return None
        self._step.mark_retrieved()
        return fresh_error(error)

    def cancel(self) -> bool:
        """Remove the step if it is not launched; detach its result if it is. False if it has settled.

        The handle settles at once with `StepCancelled`. Staging and slot come back after their last fences.
        """
        return self._step.pipeline.settling.cancel(self._step)

    @property
    def launched(self) -> Launched:
        """Awaitable: the fence behind the step's kernels, once they are launched, for other streams to wait for.

        Raises the step's failure if it never gets to the device.
        """
        return Launched(self._step)

    @property
    def status(self) -> str:
        """Where the step is, or how it ended.

        ``queued``, ``building``, ``built``, ``acquired``, ``launching``, ``launched``, ``retiring``; then
        ``completed``, ``failed``, ``cancelled`` or ``detached``.
        """
        return self._step.status

    @property
    def step_id(self) -> Any:
        """The caller's name of the step; its `seq` where none was given."""
        return self._step.step_id

    @property
    def seq(self) -> int:
        """The number given at acceptance."""
        return self._step.seq

    def __repr__(self) -> str:
        return f"<StepHandle seq={self.seq} step_id={self.step_id!r} {self.status}>"
