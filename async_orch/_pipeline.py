"""The engine's centre: the order of steps, the pump that moves them, and how they settle.

Everything here is synchronous and runs on the loop's thread. `Pipeline.pump` visits the stages from the last to
the first, again and again, until nothing moves: what a later stage gives back, an earlier one can use in the
same turn, and a step whose fences are all done goes the whole way without a single loop tick. What cannot move
waits for an event (a fence, a worker, a call of the user), and the event's only effect is another pump.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from async_orch._build import BuildStage
from async_orch._config import OrchestratorConfig
from async_orch._device import Device
from async_orch._events import emit
from async_orch._fences import FenceWatcher, Waker
from async_orch._launch import LaunchStage
from async_orch._retire import RetireStage
from async_orch._ring import Ring
from async_orch._slot import SlotMemory, Staging
from async_orch._step import LAUNCHED, SETTLED, Step
from async_orch._transfer import AcquireStage, H2DStage
from async_orch._watchdog import FenceWatchdog
from async_orch.abc import Backend, Fence, Stream
from async_orch.exceptions import DeviceLost, OrchError, OrchestratorClosed, PipelineFailed, StepCancelled

__all__ = ["Pipeline"]

TURN_NS = 1_000_000
"""Inline hooks may hold the loop for about this long in one pump; then other tasks get their turn."""


class Pipeline:
    """State shared by the stages, and the only place where steps are accepted and settled."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: OrchestratorConfig,
        backend: Backend,
        device: Device,
        staging: Ring[Staging],
        slots: Ring[SlotMemory],
        allocate: Callable[[Step, int], None] | None,
        sink: Callable[[Step], None] | None,
    ) -> None:
        self.loop = loop
        self.new_future = loop.create_future
        self.config = config
        self.backend = backend
        self.device = device
        self.now = backend.clock_ns
        self.copy_stream: Stream = device.copy_stream
        self.compute_stream: Stream = device.compute_stream
        self.staging = staging
        self.slots = slots
        self.allocate = allocate
        self.sink = sink
        self.waker = Waker(loop, self.pump)
        self.watcher = FenceWatcher(self.waker)
        self.serial = config.mode != "pipelined"
        self.queue_depth = config.queue_depth
        self.inflight_limit = config.inflight_limit

        self.build = BuildStage(self)
        self.acquire = AcquireStage(self)
        self.h2d = H2DStage(self)
        self.launch = LaunchStage(self)
        self.retire = RetireStage(self)

        self.live: dict[int, Step] = {}
        self.waiting: deque[tuple[asyncio.Future[None], Step]] = deque()
        self.watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self.accepted = self.completed = self.failed = self.cancelled = 0
        self.failed_unretrieved = 0
        self.on_device = 0
        self.accepting = True
        self.failure: OrchError | None = None
        self._refusal: OrchError = OrchestratorClosed("the orchestrator was closed")
        self._pumping = False
        self._again = False
        self.watchdog = FenceWatchdog(self)
        self.turn_end_ns = 0

    # -- accepting -----------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether a step can be accepted now without overtaking one that waits to be."""
        return not self.waiting and len(self.live) < self.inflight_limit and len(self.build.queue) < self.queue_depth

    def accept(self, step: Step) -> None:
        """Take a step in. From here on it settles exactly once."""
        seq = step.seq = self.accepted
        self.accepted = seq + 1
        if step.step_id is None:
            step.step_id = seq
        step.accept_ns = self.now()
        self.live[seq] = step
        step.in_flight = len(self.live)
        self.build.queue.append(step)

    def _admit(self) -> bool:
        moved = False
        waiting = self.waiting
        while (
            waiting
            and len(self.live) < self.inflight_limit
            and len(self.build.queue) < self.queue_depth
            and self.failure is None
        ):
            future, step = waiting.popleft()
            if not future.done():
                self.accept(step)
                future.set_result(None)
                moved = True
        return moved

    def refuse_waiting(self, error: OrchError) -> None:
        """Let everyone who waits to be accepted fail with ``error``."""
        self._refusal = error
        while self.waiting:
            future, _ = self.waiting.popleft()
            if not future.done():
                future.set_result(None)

    def forget_waiting(self, step: Step) -> None:
        """A caller stopped waiting to be accepted; those behind may have room now."""
        self.waiting = deque(entry for entry in self.waiting if entry[1] is not step)
        self.pump()

    def refusal(self) -> OrchError:
        """Why a step that waited was not accepted."""
        return self._refusal

    # -- moving --------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Move every step as far as it can go now. A call from inside a hook asks for another round."""
        if self._pumping:
            self._again = True
            return
        self._pumping = True
        self.turn_end_ns = 0
        build, acquire, h2d, launch, retire = self.build, self.acquire, self.h2d, self.launch, self.retire
        to_build, to_acquire, to_copy, to_launch, to_retire = (
            build.queue,
            acquire.queue,
            h2d.queue,
            launch.queue,
            retire.queue,
        )
        try:
            while True:
                self._again = False
                moved = False
                if to_retire:
                    moved = retire.advance()
                if to_launch and launch.advance():
                    moved = True
                if to_copy and h2d.advance():
                    moved = True
                if to_acquire and acquire.advance():
                    # The common way: what got a slot is copied and launched in the same round.
                    moved = True
                    if to_copy and h2d.advance() and to_launch:
                        launch.advance()
                if (to_build or build.working) and build.advance():
                    moved = True
                if self.waiting and self._admit():
                    moved = True
                if not moved and not self._again:
                    break
        except Exception as exc:
            # Hooks and the device are handled where they are called; what gets here is a defect of the engine.
            self.fail(PipelineFailed(f"the engine failed: {exc!r}"), exc)
            raise
        finally:
            self._pumping = False
        if self.watchers:
            self._tell_watchers()

    def turn_is_over(self, now_ns: int) -> bool:
        """Called before an inline hook: True once hooks have held this turn for `TURN_NS`; pumps again later."""
        if self.turn_end_ns == 0:
            self.turn_end_ns = now_ns + TURN_NS
            return False
        if now_ns < self.turn_end_ns:
            return False
        self.waker.wake()
        return True

    def wait_until(self, condition: Callable[[], bool]) -> asyncio.Future[None]:
        """A future that is done once ``condition()`` holds after a pump."""
        future = self.new_future()
        if condition():
            future.set_result(None)
        else:
            self.watchers.append((condition, future))
        return future

    def _tell_watchers(self) -> None:
        waiting = []
        for condition, future in self.watchers:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            else:
                waiting.append((condition, future))
        self.watchers = waiting

    # -- settling ------------------------------------------------------------------------------------------

    def settle(self, step: Step, outcome: str, error: OrchError | None = None, *, record: bool = True) -> None:
        """Give the step its outcome and wake its awaiters. The one place where ``live`` shrinks."""
        if step.state == SETTLED:
            return
        if step.state >= LAUNCHED:
            self.on_device -= 1
        step.state = SETTLED
        step.outcome = outcome
        step.error = error
        step.settled_ns = self.now()
        del self.live[step.seq]
        if outcome == "completed":
            self.completed += 1
        elif outcome == "failed":
            self.failed += 1
            self.failed_unretrieved += 1
            emit("warning", "step.failed", step_id=step.step_id, seq=step.seq, error=str(error))
        else:
            self.cancelled += 1
        if record and self.sink is not None:
            self.sink(step)
        step.payload = None
        waiters = step.waiters
        if waiters is not None:
            step.waiters = None
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    def drop(self, step: Step, outcome: str, error: OrchError) -> None:
        """Settle a step that is still on its way, giving back what it holds after the fences that use it."""
        state = step.state
        if state == SETTLED:
            return
        for stage in (self.build, self.acquire, self.h2d, self.launch):
            if stage.remove(step):
                break
        if state < LAUNCHED:
            if step.staging is not None and not self.build.holds(step):
                self.staging.release(step.staging)
                step.staging = None
            if step.slot is not None:
                self.release_slot(step, step.copy_end)
        elif outcome == "cancelled":
            outcome = "detached"
        # A launched step's record waits for its fence, so that the log shows what the device was busy with.
        self.settle(step, outcome, error, record=state != LAUNCHED)

    def cancel(self, step: Step) -> bool:
        """`StepHandle.cancel`."""
        if step.state == SETTLED:
            return False
        where = "detached after its launch" if step.state >= LAUNCHED else "removed before its launch"
        message = f"step {step.step_id!r} was cancelled: {where}"
        stage = step.status
        self.drop(step, "cancelled", StepCancelled(message, stage=stage, step_id=step.step_id, seq=step.seq))
        self.pump()
        return True

    def release_slot(self, step: Step, *fences: Fence | None) -> None:
        """Give a step's slot back after ``fences``."""
        slot = step.slot
        if slot is None:
            return
        step.slot = None
        pending = [f for f in fences if f is not None and not f.query()]
        self.slots.release(slot, pending)
        for fence in pending:
            self.watcher.watch(fence)

    # -- failing -------------------------------------------------------------------------------------------

    def fail(self, error: OrchError, cause: BaseException | None = None) -> None:
        """Stop for good: every step that has not settled, and every later submit, gets ``error``."""
        if self.failure is not None:
            return
        error.__cause__ = cause
        self.failure = error
        if isinstance(error, DeviceLost):
            emit("error", "device.lost", error=str(error))
        for step in list(self.live.values()):
            self.drop(step, "failed", error)
        self.refuse_waiting(error)

    def device_lost(self, step: Step, cause: BaseException) -> None:
        """Poison: the device is gone, and ``step`` was the first to see it."""
        root = f"device lost at step {step.step_id!r} (seq {step.seq}): {cause}"
        self.fail(DeviceLost(root), cause)

    # -- state of the whole --------------------------------------------------------------------------------

    def busy(self) -> bool:
        """Whether any step is between the start of its build and the return of its slot (for serial modes)."""
        return bool(
            self.acquire.order or self.h2d.queue or self.launch.queue or self.retire.queue or self.build.working
        )

    def quiet(self) -> bool:
        """Whether no step is unsettled and every lease is back."""
        self.h2d.reclaim()
        self.slots.poll()
        self.h2d.watch_oldest()
        return not self.live and not self.staging.leased and not self.slots.leased

    def watch_everything(self) -> None:
        """Ask for a wake-up at every fence that a buffer still waits for."""
        self.h2d.watch_oldest()
        for fence in self.slots.parked_fences():
            self.watcher.watch(fence)

    def stop(self) -> None:
        """Accept nothing more and forget timers; the steps have settled."""
        self.accepting = False
        self.watchdog.stop()
        self.waker.close()
        self.watcher.close()

    def queue_lengths(self) -> Mapping[str, int]:
        """Steps waiting before each stage; before retire: launched and not retired."""
        return {
            "build": len(self.build.queue),
            "acquire": len(self.acquire.order),
            "h2d": len(self.h2d.queue),
            "launch": len(self.launch.queue),
            "retire": len(self.retire.queue),
        }
