"""Submitting: the half of `Orchestrator` that takes steps in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Any, Generic, NoReturn, TypeVar

import anyio
from anyio.abc import TaskGroup

from async_orch._barrier import inside_barrier
from async_orch._config import OrchestratorConfig
from async_orch._handle import StepHandle, StepResult, fresh_error
from async_orch._map import StepIterator
from async_orch._opening import Opened
from async_orch._pipeline import Pipeline
from async_orch._process import PROCESS
from async_orch._step import Step
from async_orch._submission import new_step
from async_orch.abc import Fence
from async_orch.exceptions import MisuseError, OrchestratorClosed

__all__ = ["Submitting"]

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")

YIELD_STEPS = 32
YIELD_NS = 1_000_000
"""`submit`, `run` and iteration give other tasks a turn at least this often."""


class Submitting(Generic[StepT, ResultT]):
    """`submit`, `submit_nowait`, `run` and `map`; `Orchestrator` adds opening, closing and what lies between."""

    def __init__(self, config: OrchestratorConfig) -> None:
        self.config = config
        self._opened: Opened | None = None
        self._tasks: TaskGroup | None = None
        self._used = False
        self._pid = self._thread = 0
        self._since_yield = 0
        self._yield_at_ns = 0

    def _pipeline(self) -> Pipeline:
        opened = self._opened
        if opened is None:
            state = "closed" if self._used else "not open yet; enter it with 'async with'"
            raise OrchestratorClosed(f"the orchestrator is {state}")
        return opened.pipeline

    def _ready(self) -> Opened:
        """What is open, if steps may be submitted here and now."""
        opened = self._opened
        if opened is not None:
            pipeline = opened.pipeline
            # Neither asyncio.get_running_loop() nor os.getpid(): both are a system call, a tenth of what a step costs.
            if (
                pipeline.accepting
                and pipeline.failure is None
                and get_ident() == self._thread
                and pipeline.loop.is_running()
                and PROCESS.pid == self._pid
                and (not pipeline.barriers.standing or not self._inside_barrier())
            ):
                return opened
        return self._refuse()

    def _refuse(self) -> NoReturn:
        """Say why nothing can be submitted here and now."""
        pipeline = self._pipeline()
        if not pipeline.accepting:
            raise OrchestratorClosed("the orchestrator is being left; it accepts no more steps")
        if PROCESS.pid != self._pid:
            raise MisuseError("the orchestrator was opened before a fork; open one in this process")
        if pipeline.failure is not None:
            raise fresh_error(pipeline.failure)
        self._refuse_inside_barrier()
        raise MisuseError(
            "the orchestrator belongs to another event loop or thread; from a thread use an anyio BlockingPortal "
            "of its loop: portal.call(orch.submit, step)"
        )

    def _inside_barrier(self) -> bool:
        """Whether this context belongs to a barrier's function. What that has started may outlive it: only while the
        barrier stands is a call from inside."""
        barrier = inside_barrier.get()
        return barrier is not None and self._opened is not None and barrier in self._opened.pipeline.barriers.standing

    def _refuse_inside_barrier(self) -> None:
        if self._inside_barrier():
            raise MisuseError(
                "the function of a barrier may not call back into its orchestrator: it would wait for itself"
            )

    def submit_nowait(
        self,
        step: StepT,
        *,
        step_id: Any = None,
        program: str | None = None,
        after: StepHandle[Any] | None = None,
        wait_for: Sequence[Fence] = (),
        timeout_s: float | None = None,
        retries: int = 0,
        attrs: Mapping[str, Any] | None = None,
    ) -> StepHandle[ResultT]:
        """As `submit`, but raises `anyio.WouldBlock` instead of waiting."""
        opened = self._ready()
        admission = opened.pipeline.admission
        if not admission.has_room():
            raise anyio.WouldBlock
        accepted = new_step(opened, step, step_id, program, after, wait_for, timeout_s, retries, attrs)
        admission.accept(accepted)
        return StepHandle(accepted)

    async def submit(
        self,
        step: StepT,
        *,
        step_id: Any = None,
        program: str | None = None,
        after: StepHandle[Any] | None = None,
        wait_for: Sequence[Fence] = (),
        timeout_s: float | None = None,
        retries: int = 0,
        attrs: Mapping[str, Any] | None = None,
    ) -> StepHandle[ResultT]:
        """Wait for room, first come first served, and accept the step.

        Parameters
        ----------
        step_id:
            The caller's name of the step; must differ from those of other unsettled steps. Default: its seq.
        program:
            Which program, where the orchestrator has several.
        after:
            The step whose collected output `StepProgram.feed` needs, and which this one is built on.
        wait_for:
            Fences of other streams that the compute stream waits for before the launch.
        timeout_s:
            Time from acceptance after which the step is cancelled, with `StepTimeout`.
        retries:
            How often a ``build`` that raised is called again.
        attrs:
            Recorded with the step.

        A cancel before the return leaves nothing behind: a step accepted meanwhile is cancelled. Raises `ValueError`
        or `TypeError` for arguments that cannot work, `OrchestratorClosed` outside ``async with``, `MisuseError` from
        another loop, thread or process, and after a failure of the whole `PipelineFailed` or `DeviceLost`.
        """
        opened = self._ready()
        accepted = new_step(opened, step, step_id, program, after, wait_for, timeout_s, retries, attrs)
        pipeline = accepted.pipeline
        if pipeline.admission.has_room():
            pipeline.admission.accept(accepted)
            if self.turn_used_up(accepted.submit_ns):
                # After the acceptance, so that nobody overtakes.
                with ExitStack() as undo:
                    undo.callback(_withdraw, accepted)
                    await self.give_turn()
                    undo.pop_all()
            return StepHandle(accepted)
        with ExitStack() as undo:
            undo.callback(_withdraw, accepted)
            await pipeline.admission.join(accepted)
            undo.pop_all()
        if accepted.seq < 0:
            pipeline.admission.forget(accepted)
            raise fresh_error(pipeline.admission.refusal)
        return StepHandle(accepted)

    def accept_plain(self, step: StepT, now_ns: int = 0) -> Step | None:
        """For `map`: `submit_nowait` without arguments, which gives None where that raises `anyio.WouldBlock`."""
        opened = self._ready()
        pipeline, program = opened.pipeline, opened.plain
        if program is None:
            accepted = new_step(opened, step)
        else:
            accepted = Step(pipeline, program, step, None, None, now_ns or pipeline.now())
        if pipeline.express(accepted):
            return accepted
        if not pipeline.admission.has_room():
            return None
        pipeline.admission.line_up(accepted)
        return accepted

    def turn_ns(self) -> int | None:
        """The time, or None if the caller should let other tasks run before going on; counts as one look."""
        opened = self._opened
        if opened is None:
            return 0  # results of a map may be taken after the end
        now_ns = opened.pipeline.now()
        self._since_yield = looks = self._since_yield + 1
        if looks < YIELD_STEPS and now_ns < self._yield_at_ns:
            return now_ns
        self._since_yield = 0
        self._yield_at_ns = now_ns + YIELD_NS
        return None

    async def give_turn(self, *, waits_next: bool = False) -> None:
        """Let other tasks run, unless the caller waits anyway, and the log's writer catch up if it is behind."""
        writer = None if self._opened is None else self._opened.writer
        if writer is not None and writer.behind:
            await writer.catch_up()
        elif not waits_next:
            await asyncio.sleep(0)

    def turn_used_up(self, now_ns: int) -> bool:
        """Whether the caller should let other tasks run before going on; counts as one look."""
        self._since_yield += 1
        if self._since_yield < YIELD_STEPS and now_ns < self._yield_at_ns:
            return False
        self._since_yield = 0
        self._yield_at_ns = now_ns + YIELD_NS
        return True

    async def run(
        self,
        step: StepT,
        *,
        step_id: Any = None,
        program: str | None = None,
        after: StepHandle[Any] | None = None,
        wait_for: Sequence[Fence] = (),
        timeout_s: float | None = None,
        retries: int = 0,
        attrs: Mapping[str, Any] | None = None,
    ) -> StepResult[ResultT]:
        """One step from start to end: `submit` and await. Cancelling the call cancels the step."""
        handle = await self.submit(
            step,
            step_id=step_id,
            program=program,
            after=after,
            wait_for=wait_for,
            timeout_s=timeout_s,
            retries=retries,
            attrs=attrs,
        )
        try:
            return await handle
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def map(
        self, steps: Iterable[StepT] | AsyncIterable[StepT], *, chain: bool = False, program: str | None = None
    ) -> StepIterator[StepT, ResultT]:
        """Run steps from an iterable or async iterable; iterate the return value for results in order.

        At most ``max_inflight`` steps are accepted and not yet consumed. With ``chain=True`` each step comes
        ``after`` the one before. A failed step raises from the iteration, which can go on after it. Leaving the loop
        early, or dropping the iterator, stops the source, removes the steps not launched and detaches the others.
        """
        self._ready()
        return StepIterator(self, steps, chain=chain, program=program)

    def start_feeder(self, feed: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Run an async function that never raises in the orchestrator's task group; for `map`."""
        if self._tasks is None or self._opened is None:
            raise OrchestratorClosed("the orchestrator is not open")
        self._tasks.start_soon(feed, *args, name="async_orch map source")


def _withdraw(step: Step) -> None:
    """Whoever submits it gave up: cancel it if it is accepted, else take it out of the line."""
    pipeline = step.pipeline
    if step.seq >= 0:
        pipeline.settling.cancel(step)
    else:
        pipeline.admission.forget(step)
