"""The engine loop: keeps two steps in flight, hands out their tokens, and survives steps and devices that fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Literal

from async_orch import Orchestrator
from async_orch.exceptions import DependencyFailed, DeviceLost, OrchError, StepError
from examples.serve.errors import stopped, unavailable
from examples.serve.generation import Generation
from examples.serve.scheduler import Flight, Plan, Scheduler

__all__ = ["IN_FLIGHT", "Engine", "State"]

IN_FLIGHT = 2
"""More adds latency to every decision of the scheduler and nothing else; fewer leaves the device waiting."""

FENCE_POLL_S = 0.001
"""How often to look whether the device has left blocks that somebody waits for, when no step is in flight."""

State = Literal["serving", "draining", "reopening", "failed"]


class Engine:
    """Runs requests on an orchestrator that is open and has ``max_inflight`` of at least `IN_FLIGHT`.

    `submit` and `cancel` may be called at any time on the loop; `run` is a task of the caller's. ``on_token`` is called
    for each request that got a token, ``report`` with an event and its details when a step failed or the device was
    lost.
    """

    def __init__(
        self,
        orchestrator: Orchestrator[Any, Any],
        scheduler: Scheduler,
        *,
        on_token: Callable[[Generation], None] = lambda generation: None,
        report: Callable[[str, str], None] = lambda event, detail: None,
    ) -> None:
        self.orchestrator = orchestrator
        self.scheduler = scheduler
        self.state: State = "serving"
        self.devices_lost = 0
        self.steps_failed = 0
        self._on_token = on_token
        self._report = report
        self._wake = asyncio.Event()
        self._lost: DeviceLost | None = None

    # -- from outside --------------------------------------------------------------------------------------

    def submit(self, generation: Generation) -> None:
        """Take a request in. Raises `ApiError`: 429 if the waiting room is full, 503 if nothing is served now."""
        self.check_serving()
        self.scheduler.add(generation)
        self._dispatch()
        self._wake.set()

    def cancel(self, generation: Generation) -> None:
        """Nobody wants the request any more: it is in no step from now on. Does nothing if it has ended."""
        if generation.ended is None:
            self.scheduler.remove(generation)
            self._wake.set()

    def drain(self) -> None:
        """Take no more requests; `run` returns when those taken have ended."""
        if self.state != "failed":
            self.state = "draining"
        self._wake.set()

    def stop(self) -> None:
        """Take no more requests and end those taken with 503; `run` returns once no step is in flight."""
        self.drain()
        self.scheduler.end_all(stopped())
        self._wake.set()

    def check_serving(self) -> None:
        """Raise `ApiError` 503 unless requests are taken in."""
        if self.state == "draining":
            raise unavailable("the server is shutting down", code="draining")
        if self.state == "reopening":
            raise unavailable("the device was lost and is being opened again", code="device_lost", retry_after_s=2)
        if self.state == "failed":
            raise unavailable("the device was lost and cannot be opened again", code="device_lost", retry_after_s=30)

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs, or a step is in flight."""
        scheduler = self.scheduler
        return bool(scheduler.waiting or scheduler.running or scheduler.window)

    # -- the loop ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until drained. A cancel ends every request with 503."""
        try:
            while self.state != "failed" and (self.state != "draining" or self.busy):
                self._wake.clear()
                self._dispatch()
                if self._lost is not None:
                    await self._recover(self._lost)
                elif self.scheduler.window:
                    await self._take_oldest()
                elif self.scheduler.blocks.waiting:
                    await asyncio.sleep(FENCE_POLL_S)
                elif self.state != "draining" or self.busy:
                    await self._wake.wait()
        finally:
            self.scheduler.fail_running(stopped())
            self.scheduler.fail_waiting(stopped())

    def _dispatch(self) -> None:
        """Submit steps while there is room."""
        scheduler = self.scheduler
        while self._lost is None and self.state in ("serving", "draining") and len(scheduler.window) < IN_FLIGHT:
            plan = scheduler.next_plan()
            if plan is None:
                return
            after = scheduler.window[-1].handle if plan.fed else None
            try:
                handle = self.orchestrator.submit_nowait(
                    plan.batch, program=plan.program, after=after, attrs=_attrs(plan)
                )
            except DeviceLost as exc:
                scheduler.take_back(plan)
                self._lost = exc
                self._wake.set()
                return
            scheduler.window.append(Flight(plan, handle))

    async def _take_oldest(self) -> None:
        """Wait for the oldest step, and give its tokens to the requests, or its failure."""
        scheduler = self.scheduler
        plan, handle = scheduler.window[0]
        try:
            output = (await handle).output
        except DeviceLost as exc:
            await self._recover(exc)
        except DependencyFailed:
            scheduler.drop_failed()
        except StepError as exc:
            self.steps_failed += 1
            self._report("step_failed", str(exc))
            scheduler.window.popleft()
            scheduler.failed(plan, unavailable("the step that carried the request failed", code="step_failed"))
            scheduler.drop_failed()
        else:
            scheduler.window.popleft()
            for generation in scheduler.settled(plan, output.tokens.tolist()):
                self._on_token(generation)

    async def _recover(self, loss: DeviceLost) -> None:
        """Open the device again. What ran is lost with the cache; what waits goes on waiting."""
        self._lost = None
        self.devices_lost += 1
        before, self.state = self.state, "reopening"
        self._report("device_lost", str(loss))
        for flight in self.scheduler.window:
            with contextlib.suppress(OrchError):
                flight.handle.exception()  # looked at: it is the loss
        self.scheduler.fail_running(
            unavailable("the device was lost while it worked on the request", code="device_lost", retry_after_s=2)
        )
        try:
            await self.orchestrator.reopen()
        except OrchError as exc:
            self.state = "failed"
            self._report("device_failed", str(exc))
            return
        self.state = before if self.state == "reopening" else self.state
        self._report("device_reopened", "")


def _attrs(plan: Plan) -> dict[str, Any]:
    """What ties the step's record to the access log and to the clients' traces."""
    generations = [sequence.generation for sequence in plan.sequences]
    attrs: dict[str, Any] = {"requests": [generation.name for generation in generations]}
    traces = [generation.trace for generation in generations if "traceparent" in generation.trace]
    if traces:
        attrs["traceparent"] = [trace["traceparent"] for trace in traces]
        if any("tracestate" in trace for trace in traces):
            attrs["tracestate"] = [trace.get("tracestate", "") for trace in traces]
    return attrs
