"""`Orchestrator.map`: results in order from an iterable or async iterable, with a bounded window."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import anyio

from async_orch._handle import StepHandle, StepResult
from async_orch._step import SETTLED, Step
from async_orch.exceptions import OrchError, OrchestratorClosed

if TYPE_CHECKING:
    from async_orch._submitting import Submitting

__all__ = ["StepIterator"]

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")

SOURCE_CLOSE_TIMEOUT_S = 1.0


class _Window(Generic[StepT, ResultT]):
    """Steps submitted and not yet consumed. Lives apart from the iterator, so that a dropped iterator dies at once
    although a feeder task still runs."""

    def __init__(
        self, orchestrator: Submitting[StepT, ResultT], limit: int, *, chain: bool, program: str | None
    ) -> None:
        self.orchestrator = orchestrator
        self.program = program
        self.chain = chain
        self.plain = not chain and program is None
        self.last: StepHandle[ResultT] | None = None
        self.limit = limit
        self.pending: deque[Step] = deque()
        self.exhausted = self.stopped = False
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self.scope: anyio.CancelScope | None = None
        self.changed: asyncio.Future[None] | None = None

    async def submit(self, step: StepT) -> None:
        """Submit the next step when there is room, ``after`` the last one if they are chained."""
        self.add(await self.orchestrator.submit(step, program=self.program, after=self.last))
        if self.stopped:
            # Nobody iterates any more: the cancel of the feeder came too late for this step.
            self.stop()

    def add(self, handle: StepHandle[ResultT]) -> None:
        """Take a submitted step in."""
        self.pending.append(handle._step)
        if self.chain:
            self.last = handle

    def end(self, error: Exception | None = None) -> None:
        """No further steps; ``error`` is raised after the results of those submitted."""
        self.exhausted = True
        self.error = error
        self.signal()

    def signal(self) -> None:
        """Wake whoever waits for a change of the window (the consumer or the feeder: never both)."""
        if self.changed is not None and not self.changed.done():
            self.changed.set_result(None)

    async def wait_changed(self) -> None:
        self.changed = self.loop.create_future()
        await self.changed

    def stop(self) -> None:
        """End the source; remove the steps not launched and detach the others."""
        self.exhausted = self.stopped = True
        self.signal()
        if self.scope is not None:
            self.scope.cancel()
        while self.pending:
            step = self.pending.pop()
            step.pipeline.settling.cancel(step)


class StepIterator(Generic[StepT, ResultT]):
    """An async iterator of results, in order. Not an async generator: leaving it needs no ``aclose``."""

    def __init__(
        self,
        orchestrator: Submitting[StepT, ResultT],
        steps: Iterable[StepT] | AsyncIterable[StepT],
        *,
        chain: bool,
        program: str | None,
    ) -> None:
        self._window: _Window[StepT, ResultT] = _Window(
            orchestrator, orchestrator.config.inflight_limit, chain=chain, program=program
        )
        self._iterator: Iterator[StepT] | None = None
        self._source: AsyncIterator[StepT] | None = None
        if isinstance(steps, AsyncIterable):
            self._source = aiter(steps)
        elif isinstance(steps, Iterable):
            self._iterator = iter(steps)
        else:
            raise TypeError(f"map needs an iterable or async iterable of steps, got {type(steps).__name__}")
        self._held: list[StepT] = []
        self._fed = False
        self._running = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StepResult[ResultT]:
        if self._running:
            raise RuntimeError("two tasks iterate the same map(); give each its own")
        window = self._window
        pending = window.pending
        now_ns = window.orchestrator.turn_ns()
        if now_ns is not None and pending and pending[0].state == SETTLED:
            # Nothing to wait for: the common case, kept short.
            step = pending.popleft()
            if window.changed is not None:
                window.signal()
            self._top_up(now_ns)
            if step.error is None:
                return StepResult(step)
            failed: StepHandle[ResultT] = StepHandle(step)
            return failed.result()
        self._running = True
        try:
            return await self._next(yield_first=now_ns is None)
        finally:
            self._running = False

    async def _next(self, *, yield_first: bool) -> StepResult[ResultT]:
        window = self._window
        if yield_first:
            # Waiting for a step that is under way lets the others run as well.
            waits = bool(window.pending) and window.pending[0].state != SETTLED
            await window.orchestrator.give_turn(waits_next=waits)
        if self._source is not None and not self._fed:
            self._fed = True
            window.orchestrator.start_feeder(_feed, window, self._source)
        if not window.pending:
            self._top_up()
        while not window.pending:
            if self._held:
                # Other callers have taken all the room: stand in line like anyone else.
                try:
                    await window.submit(self._held[0])
                except Exception as exc:  # noqa: BLE001 - raised below; the step cannot be submitted
                    window.end(exc)
                self._held.clear()
            elif window.exhausted:
                if window.error is None:
                    raise StopAsyncIteration
                error, window.error = window.error, None
                raise error
            else:
                await window.wait_changed()
        handle: StepHandle[ResultT] = StepHandle(window.pending[0])
        result: StepResult[ResultT] | None = None
        if not handle.done():
            try:
                result = await handle
            except OrchError:
                if not handle.done():
                    raise
            # A cancelled wait has left the step in its place for the next call.
        window.pending.popleft()
        window.signal()
        self._top_up()
        return handle.result() if result is None else result

    def _top_up(self, now_ns: int = 0) -> None:
        """Submit from a plain iterable as long as there is room in the window and in the pipeline."""
        window, iterator, held = self._window, self._iterator, self._held
        if iterator is None:
            return
        pending, limit = window.pending, window.limit
        while len(pending) < limit:
            if held:
                item = held.pop()
            elif window.exhausted:
                return
            else:
                try:
                    item = next(iterator)
                except StopIteration:
                    window.end()
                    return
                except Exception as exc:  # noqa: BLE001 - the caller's iterable failed: raised after its results
                    window.end(exc)
                    return
            try:
                if window.plain:
                    step = window.orchestrator.accept_plain(item, now_ns)
                    now_ns = 0
                    if step is None:
                        held.append(item)
                        return
                    pending.append(step)
                else:
                    window.add(window.orchestrator.submit_nowait(item, program=window.program, after=window.last))
            except anyio.WouldBlock:
                held.append(item)
                return
            except Exception as exc:  # noqa: BLE001 - the step cannot be submitted: raised after the results before it
                window.end(exc)
                return

    async def aclose(self) -> None:
        """Stop early; the same as dropping the iterator."""
        self._window.stop()

    def __del__(self) -> None:
        window: _Window[Any, Any] | None = getattr(self, "_window", None)
        if window is None or (window.exhausted and not window.pending) or window.loop.is_closed():
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is window.loop:
            window.stop()
        else:
            # Collected by another thread, or between two runs of the loop: it stops when that turns again.
            window.loop.call_soon_threadsafe(window.stop)


async def _feed(window: _Window[Any, Any], source: AsyncIterator[Any]) -> None:
    """Feeder task of an async iterable; never raises into the task group."""
    with anyio.CancelScope() as window.scope:
        if window.exhausted:
            window.scope.cancel()
        try:
            async for item in source:
                while len(window.pending) >= window.limit:
                    await window.wait_changed()
                await window.submit(item)
                window.signal()
            window.end()
        except Exception as exc:  # noqa: BLE001 - the caller's iterable failed: raised after its results
            window.end(exc)
        finally:
            if not window.exhausted:
                # Cut off: whoever iterates must not take that for the end of the source.
                window.end(OrchestratorClosed("the orchestrator was closed before the source of map() had ended"))
            close = getattr(source, "aclose", None)
            if close is not None:
                with anyio.move_on_after(SOURCE_CLOSE_TIMEOUT_S, shield=True):
                    await close()
