"""The engine's centre: what the stages share, and the pump that moves steps through them.

Everything here is synchronous and runs on the loop's thread. `Pipeline.pump` visits the stages from the last to
the first, again and again, until nothing moves: what a later stage gives back, an earlier one can use in the
same turn, and a step whose fences are all done goes the whole way without a single loop tick. What cannot move
waits for an event (a fence, a worker, a call of the user), and the event's only effect is another pump.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from async_orch._admission import Admission
from async_orch._barrier import Barriers
from async_orch._build import BuildStage
from async_orch._config import OrchestratorConfig
from async_orch._express import express_way
from async_orch._fences import FenceWatcher
from async_orch._launch import LaunchStage
from async_orch._memory_plan import MemoryPlan
from async_orch._quarantine import Quarantine
from async_orch._retire import RetireStage
from async_orch._settling import Settling
from async_orch._step import Step
from async_orch._transfer import AcquireStage, H2DStage
from async_orch._waker import Waker
from async_orch._watchdog import FenceWatchdog
from async_orch._workers import WorkerPool
from async_orch.abc import Backend, Fence, Stream
from async_orch.exceptions import OrchError, PipelineFailed

__all__ = ["Counts", "Pipeline"]

TURN_NS = 1_000_000
"""Inline hooks may hold the loop for about this long in one pump; then other tasks get their turn."""


class Counts:
    """What an orchestrator has done so far; lives on when the device is reopened."""

    __slots__ = ("accepted", "cancelled", "completed", "failed", "failed_unretrieved", "grown", "replaced")

    def __init__(self) -> None:
        self.accepted = self.completed = self.failed = self.cancelled = 0
        self.failed_unretrieved = 0
        self.grown = 0
        self.replaced = 0


class Pipeline:
    """State shared by the stages."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: OrchestratorConfig,
        backend: Backend,
        streams: tuple[Stream, Stream],
        memory: MemoryPlan,
        counts: Counts,
        sink: Callable[[Step], None] | None,
        device_thread: WorkerPool[Callable[[], None]] | None,
    ) -> None:
        self.loop = loop
        self.new_future = loop.create_future
        self.config = config
        self.backend = backend
        self.now = backend.clock_source()
        self.copy_stream, self.compute_stream = streams
        self.memory = memory
        self.staging = memory.staging
        self.counts = counts
        self.sink = sink
        self.waker = Waker(loop, self.pump)
        self.watcher = FenceWatcher(self.waker)
        self.serial = config.mode != "pipelined"
        self.queue_depth = config.queue_depth
        self.blocked_ns = round(config.blocked_warning_s * 1e9)

        self.live: dict[int, Step] = {}
        self.on_device = 0
        self.accepting = True
        self.failure: OrchError | None = None
        self.lost_steps = 0
        self.admission = Admission(self)
        self.settling = Settling(self)
        self.quarantine = Quarantine(self)
        self.barriers = Barriers(self)
        self.build = BuildStage(self)
        self.acquire = AcquireStage(self)
        self.h2d = H2DStage(self)
        self.launch = LaunchStage(self, device_thread)
        self.retire = RetireStage(self)
        self.watchdog = FenceWatchdog(self)
        self.conditions: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.pumping = False
        self.again = False
        self._turn_end_ns = 0
        self._interrupt: BaseException | None = None
        self.express = express_way(self)
        """Accepts a fresh step and moves it as far as it goes; False, and nothing done, if it needs the queues."""

    # -- moving --------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Move every step as far as it can go now. A call from inside a hook asks for another round."""
        if self.pumping:
            self.again = True
            return
        self.pumping = True
        self._turn_end_ns = 0
        build, acquire, h2d, launch, retire = self.build, self.acquire, self.h2d, self.launch, self.retire
        to_build, to_acquire, to_copy, to_launch = build.queue, acquire.queue, h2d.queue, launch.queue
        admission, barriers, comparing = self.admission, self.barriers, h2d.comparing
        retire.pending = None
        try:
            while True:
                self.again = False
                moved = retire.queue and retire.advance()
                if (to_launch or launch.busy) and launch.advance():
                    moved = True
                if (to_copy or comparing) and h2d.advance():
                    moved = True
                if to_acquire and acquire.advance():
                    # The common way: what got a slot is copied and launched in the same round.
                    moved = True
                    if to_copy and h2d.advance() and to_launch:
                        launch.advance()
                if (to_build or build.working or build.retrying) and build.advance():
                    moved = True
                if admission.waiting and admission.admit():
                    moved = True
                if barriers.standing:
                    barriers.look()
                if not moved and not self.again:
                    break
        except BaseException as exc:
            self.broken(exc)
            raise
        finally:
            self.pumping = False
            if self.conditions:
                self._tell_conditions()
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt

    def hook_raised(self, error: BaseException) -> None:
        """An inline hook failed. What interrupts the program comes out of the pump once everything is in order."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._interrupt = error
            self.again = True

    def broken(self, error: BaseException) -> None:
        """Fail for a defect of the engine: hooks and the device are handled where they are called."""
        self.settling.fail(PipelineFailed(f"the engine failed: {error!r}"), error)

    def turn_is_over(self, now_ns: int) -> bool:
        """Called before an inline hook: True once hooks have held this turn for `TURN_NS`; pumps again later."""
        if self._turn_end_ns == 0:
            self._turn_end_ns = now_ns + TURN_NS
            return False
        if now_ns < self._turn_end_ns:
            return False
        self.waker.wake()
        return True

    def wait_until(self, condition: Callable[[], bool]) -> asyncio.Future[None]:
        """A future that is done once ``condition()`` holds after a pump."""
        future = self.new_future()
        if condition():
            future.set_result(None)
        else:
            self.conditions.append((condition, future))
        return future

    def _tell_conditions(self) -> None:
        waiting = []
        for condition, future in self.conditions:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                waiting.append((condition, future))
        self.conditions[:] = waiting

    # -- what stages and settling share --------------------------------------------------------------------

    def take_out(self, step: Step) -> None:
        """Remove a step from whichever queue holds it; what the device works on stays with retire."""
        for stage in (self.build, self.acquire, self.h2d, self.launch):
            if stage.remove(step):
                return

    def release_slot(self, step: Step, *fences: Fence | None) -> None:
        """Give a step's slot back after ``fences`` and whatever holds it."""
        slot = step.slot
        if slot is None:
            return
        step.slot = None
        if not fences and not slot.holds:
            slot.ring.release(slot)
            return
        pending = [f for f in (*fences, *slot.holds) if f is not None and not f.query()]
        slot.ring.release(slot, pending)
        for fence in pending:
            self.watcher.watch(fence)

    # -- state of the whole --------------------------------------------------------------------------------

    def occupied(self) -> bool:
        """Whether any step is between the start of its build and the return of its slot (for serial modes)."""
        return bool(
            self.acquire.queue
            or self.h2d.queue
            or self.launch.queue
            or self.launch.busy
            or self.retire.queue
            or self.build.working
        )

    def quiet(self) -> bool:
        """Whether no step is unsettled and every lease is back."""
        self.h2d.reclaim()
        self.h2d.watch_oldest()
        return not (self.live or self.memory.leased() or self.build.working or self.launch.busy)

    def watch_everything(self) -> None:
        """Ask for a wake-up at every fence that a buffer still waits for."""
        self.h2d.watch_oldest()
        for fence in self.memory.parked_fences():
            self.watcher.watch(fence)

    def stop(self) -> None:
        """Accept nothing more and forget timers; the steps have settled."""
        self.accepting = False
        self.build.stop()
        self.retire.stop()
        self.watchdog.stop()
        self.waker.close()
        self.watcher.close()

    def queue_lengths(self) -> Mapping[str, int]:
        """Steps waiting before each stage; before retire: launched and not retired."""
        return {
            "build": len(self.build.queue),
            "acquire": len(self.acquire.queue),
            "h2d": len(self.h2d.queue),
            "launch": len(self.launch.queue),
            "retire": len(self.retire.queue),
        }
