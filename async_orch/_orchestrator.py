"""The public face: open, submit, run, map, drain, close."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import anyio
from anyio.abc import TaskGroup

from async_orch._barrier import inside_barrier
from async_orch._config import OrchestratorConfig, OrchestratorOptions, resolve_config
from async_orch._device import off_step_path
from async_orch._engine_program import EngineProgram, unwrap
from async_orch._events import emit
from async_orch._finish import finish
from async_orch._handle import StepHandle, fresh_error
from async_orch._opening import Opened
from async_orch._process import PROCESS
from async_orch._program import StepProgram
from async_orch._programs import named_programs
from async_orch._reopening import Reopened, reopen
from async_orch._statistics import Statistics, statistics_of
from async_orch._submitting import Submitting
from async_orch.abc import Backend
from async_orch.exceptions import MisuseError, OrchestratorClosed, StepCancelled
from async_orch.logs import StepRecord

__all__ = ["Orchestrator"]

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")
T = TypeVar("T")


class Orchestrator(Submitting[StepT, ResultT]):
    """Drives a device through many short steps, building and copying ahead of it.

    ``async with Orchestrator(program, backend="host", slots=3) as orch`` opens the backend, allocates and touches
    every ring, and calls ``program.open``. Leaving drains on success, cancels and settles the fences on an
    exception, both within ``drain_timeout_s``, and raises the body's own exception unchanged.

    ``backend`` is a name for `open_backend` or an opened `Backend`, which stays open. Options are those of
    `OrchestratorConfig`, as keywords or as ``config``. Raises `ConfigurationError` or `TypeError` here, before
    anything is opened.
    """

    @overload
    def __init__(
        self,
        program: StepProgram[StepT, ResultT] | EngineProgram[StepT, ResultT],
        backend: str | Backend = "host",
        *,
        config: OrchestratorConfig | None = None,
        **options: Unpack[OrchestratorOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Orchestrator[Any, Any],
        program: Mapping[str, Any],
        backend: str | Backend = "host",
        *,
        config: OrchestratorConfig | None = None,
        **options: Unpack[OrchestratorOptions],
    ) -> None: ...

    def __init__(
        self,
        program: StepProgram[StepT, ResultT] | EngineProgram[StepT, ResultT] | Mapping[str, Any],
        backend: str | Backend = "host",
        *,
        config: OrchestratorConfig | None = None,
        **options: Unpack[OrchestratorOptions],
    ) -> None:
        if not isinstance(backend, str | Backend):
            raise TypeError(f"backend must be a name or an opened Backend, got {type(backend).__name__}")
        super().__init__(resolve_config(config, options))
        self._programs = named_programs(program, grows=self.config.grow == "high_water")
        self._backend = backend
        self._owner: asyncio.Task[Any] | None = None
        self._last_statistics: Statistics | None = None

    def add_observer(self, observer: Callable[[StepRecord], object]) -> None:
        """Give ``observer`` each step's record, on the log writer's thread, as if it stood in ``observers=``.

        Before the orchestrator is entered; raises `MisuseError` afterwards.
        """
        if self._used:
            raise MisuseError("observers are added before the orchestrator is entered; this one has been")
        self.config = replace(self.config, observers=(*self.config.observers, observer))

    # -- opening and closing -------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._used:
            raise OrchestratorClosed("an orchestrator is entered once; make a new one")
        self._used = True
        self._pid = PROCESS.pid
        self._thread = threading.get_ident()
        self._owner = asyncio.current_task()
        opened = Opened(asyncio.get_running_loop(), self.config, self._programs)
        await opened.open(self._backend)
        self._opened = opened
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        opened, tasks = self._opened, self._tasks
        if opened is None or tasks is None:
            raise OrchestratorClosed("the orchestrator was left without having been entered")
        if asyncio.current_task() is not self._owner:
            raise MisuseError("an orchestrator must be left in the task that entered it")
        failures: list[BaseException] = []

        async def attempt(part: Awaitable[None]) -> None:
            try:
                await part
            except BaseException as exc:  # noqa: BLE001 - raised below, once everything is closed
                failures.append(exc)

        if error is None:
            await attempt(self._drain_for(self.config.drain_timeout_s))
        await attempt(finish(self._settle(opened)))
        await attempt(self._end_feeders(tasks))
        self._last_statistics = statistics_of(opened)
        self._opened = None
        await attempt(finish(opened.close()))
        self._last_statistics = statistics_of(opened)
        self._raise(error, failures)

    @staticmethod
    def _raise(error: BaseException | None, failures: list[BaseException]) -> None:
        """A cancel or interrupt that came while leaving goes first, then the body's exception, then what failed."""
        urgent = next((exc for exc in failures if not isinstance(exc, Exception)), None)
        chosen = error if isinstance(error, asyncio.CancelledError) else urgent or error
        if chosen is None and failures:
            chosen = failures[0]
        for failure in failures:
            if failure is not chosen:
                emit("error", "orchestrator.leaving_failed", error=repr(failure))
        if chosen is not None and chosen is not error:
            raise chosen

    async def _settle(self, opened: Opened) -> None:
        """Cancel what is left and wait for the last fences; bounded."""
        with anyio.move_on_after(self.config.drain_timeout_s):
            async with opened.reopening:
                pass
        opened.pipeline.accepting = False
        self._cancel_all()
        await self._settle_leases()

    async def _end_feeders(self, tasks: TaskGroup) -> None:
        tasks.cancel_scope.shield = True
        tasks.cancel_scope.cancel()
        await tasks.__aexit__(None, None, None)

    async def _drain_for(self, timeout_s: float) -> None:
        with anyio.move_on_after(timeout_s) as scope:
            await self.drain()
        oldest = self.oldest()
        if not scope.cancelled_caught or oldest is None:
            return
        raise TimeoutError(
            f"leaving took longer than drain_timeout_s={timeout_s} s: step {oldest.step_id!r} (seq {oldest.seq}) "
            f"was still {oldest.status}; it and the steps behind it were cancelled"
        )

    def _cancel_all(self) -> None:
        pipeline = self._pipeline()
        closed = OrchestratorClosed("the orchestrator was closed before the step was accepted")
        pipeline.admission.refuse(closed)
        pipeline.barriers.fail(closed)
        for step in reversed(list(pipeline.live.values())):  # those that need another before that other
            text = f"step {step.step_id!r} (seq {step.seq}) was cancelled because the orchestrator closed"
            error = StepCancelled(text, stage=step.status, step_id=step.step_id, seq=step.seq)
            pipeline.settling.drop(step, "cancelled", error)
        pipeline.pump()

    async def _settle_leases(self) -> None:
        pipeline = self._pipeline()
        with anyio.move_on_after(self.config.drain_timeout_s):
            pipeline.watch_everything()
            await pipeline.wait_until(pipeline.quiet)

    # -- between steps -------------------------------------------------------------------------------------

    @overload
    async def barrier(self, fn: Callable[[], Awaitable[T]], *, rebuild: bool = False) -> T: ...

    @overload
    async def barrier(self, fn: Callable[[], T], *, rebuild: bool = False) -> T: ...

    async def barrier(self, fn: Callable[[], Any], *, rebuild: bool = False) -> Any:
        """Run ``fn``, sync or async, after every earlier step is over and before any later one is launched.

        With ``rebuild=True`` later steps are not built before it either. It may allocate. Its exception comes out
        here; the pipeline goes on in any case, also if this call is cancelled. Calling back into the orchestrator
        from ``fn`` raises `MisuseError`.
        """
        opened = self._ready()
        if not callable(fn):
            raise TypeError(f"barrier() takes a function, got {type(fn).__name__}")
        barriers = opened.pipeline.barriers
        barrier = barriers.put_up(rebuild=rebuild)
        token = inside_barrier.set(None)
        try:
            opened.pipeline.pump()
            await barrier.reached
            if barrier.error is not None:
                raise fresh_error(barrier.error)
            inside_barrier.set(barrier)
            with off_step_path():
                value = fn()
                if inspect.isawaitable(value):
                    value = await value
            return value
        finally:
            barriers.take_down(barrier)
            inside_barrier.reset(token)

    async def reopen(self) -> Reopened:
        """After `DeviceLost`: reset the device, allocate the rings and call ``program.open`` again.

        Gives what was lost. Raises `DeviceLost` if the device cannot be reset in this process, and `MisuseError` if
        it is not lost.
        """
        opened = self._opened
        if opened is None:
            raise OrchestratorClosed("the orchestrator is not open")
        self._refuse_inside_barrier()
        return await reopen(opened)

    # -- looking at the whole ------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Wait until every step accepted before this call has settled, and their records are written."""
        opened = self._opened
        pipeline = self._pipeline()
        self._refuse_inside_barrier()
        bound = pipeline.counts.accepted

        def settled() -> bool:
            return next(iter(pipeline.live), bound) >= bound

        await pipeline.wait_until(settled)
        if opened is not None and opened.writer is not None:
            await opened.writer.flush()

    def oldest(self) -> StepHandle[ResultT] | None:
        """The step accepted first of those not settled; None if all are."""
        pipeline = self._pipeline()
        step = next(iter(pipeline.live.values()), None)
        return None if step is None else StepHandle(step)

    def statistics(self) -> Statistics:
        """Counts as of now; after close those of the end.

        Another thread may call it too. It then sees each count as of now, but not all of the same moment.
        """
        opened = self._opened
        if opened is not None:
            return statistics_of(opened)
        if self._last_statistics is None:
            raise OrchestratorClosed("the orchestrator is not open yet; enter it with 'async with'")
        return self._last_statistics

    def __repr__(self) -> str:
        names = ", ".join(type(unwrap(p)).__name__ for p in self._programs.values())
        if self._opened is None:
            return f"<Orchestrator {names} {'closed' if self._used else 'not open'}>"
        pipeline = self._opened.pipeline
        return f"<Orchestrator {names} {len(pipeline.live)} in flight, {pipeline.on_device} on device>"
