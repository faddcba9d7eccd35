"""The retire stage: fences become results, and slots come back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from async_orch._clocks import StepClocks
from async_orch._collect import NO_OUTPUT, CollectJob, collect, escaped
from async_orch._escape import escapes
from async_orch._events import emit
from async_orch._stage import Stage
from async_orch._step import LAUNCHED, RETIRING, SETTLED, UNKNOWN, Step
from async_orch._workers import WorkerPool
from async_orch.abc import ByteArray, Fence
from async_orch.exceptions import (
    CollectError,
    CopyError,
    LaunchError,
    StepError,
    StepTimeout,
)

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["RetireStage"]


class RetireStage(Stage):
    """Waits for fences in launch order, runs ``collect``, gives the slot back and settles the step."""

    name = "retire"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.last_fence_ns = UNKNOWN
        self.clocks = StepClocks()
        self._watched: Fence | None = None
        self._watched_next: Fence | None = None
        self.pending: Fence | None = None
        """The head's fence, if this pump has seen that it is not done: its wake-up will tell."""
        self.collecting: CollectJob | None = None
        self.pool: WorkerPool[CollectJob] | None = None
        if pipeline.config.collect_in == "thread":
            self.pool = WorkerPool("collect", 1, collect, pipeline.waker.wake)

    def head(self) -> Step | None:
        """The oldest step that is on the device or being collected."""
        return self.queue[0] if self.queue else None

    def advance(self) -> bool:
        queue = self.queue
        moved = False
        while queue:
            step = queue[0]
            if self.collecting is not None:
                if not self._take_finished():
                    break
                moved = True
                continue
            fence = step.output_done
            if fence is not None and (fence is self.pending or not fence.query()):
                if fence is not self._watched or (self._watched_next is None and len(queue) > 1):
                    self._watch(fence)
                if fence is not self.pending:
                    self.pending = fence
                    self.pipeline.watchdog.start()
                break
            if self.pool is None:
                queue.popleft()
                self.retire(step)
            else:
                self._retire_on_thread(step)
            moved = True
        return moved

    def _watch(self, fence: Fence) -> None:
        """Ask for a wake-up at the head's fence and at the next one.

        A thread that waits for fences then goes from one to the next, and need not be woken to be told of it.
        """
        watch = self.pipeline.watcher.watch
        if fence is not self._watched and fence is not self._watched_next:
            watch(fence)
        self._watched, self._watched_next = fence, None
        following = self.queue[1].output_done if len(self.queue) > 1 else None
        if following is not None and following.notifies:  # another is waited for in slices, and would hold up the head
            watch(following)
            self._watched_next = following

    def retire(self, step: Step) -> None:
        """The step's last fence is done, and it is off the queue: collect inline and settle."""
        fence = self._fence_reached(step)
        if fence is not None and fence.error is not None:
            self._device_failed(step, fence.error)
        elif step.state == LAUNCHED:
            step.state = RETIRING
            self._collect_inline(step)
        elif self.pipeline.settling.needed(step):
            self._collect_inline(step)
        else:
            self._detached(step)

    def _retire_on_thread(self, step: Step) -> None:
        """The same with ``collect`` on its thread; the step stays at the head until that is over."""
        fence = self._fence_reached(step)
        if fence is not None and fence.error is not None:
            self.queue.popleft()
            self._device_failed(step, fence.error)
            return
        if step.state == LAUNCHED:
            step.state = RETIRING
        elif not self.pipeline.settling.needed(step):
            self.queue.popleft()
            self._detached(step)
            return
        if step.program.has_collect:
            self._send(step)
        else:
            self.queue.popleft()
            self._collect_inline(step)

    def _fence_reached(self, step: Step) -> Fence | None:
        """Turn the step's fences into numbers: they are few on some devices and must not live on in results."""
        step.retire_start_ns = self.last_fence_ns = self.pipeline.now()
        fence = step.output_done
        self._watched = None
        if fence is self._watched_next:
            self._watched_next = None
        self.clocks.read(step)
        return fence

    # -- collecting ----------------------------------------------------------------------------------------

    def view(self, step: Step) -> ByteArray:
        """What ``collect`` sees of the step's output."""
        slot = step.slot
        view = None if slot is None else slot.item.output_view
        if view is None:
            return NO_OUTPUT
        return view if view.nbytes == step.d2h_nbytes else view[: max(step.d2h_nbytes, 0)]

    def _collect_inline(self, step: Step) -> None:
        program = step.program
        output: Any = None
        failure: BaseException | None = None
        if program.has_collect:
            view = self.view(step)
            try:
                output = program.collect(step.payload, view)
                if output is not None and escapes(output, view):
                    raise escaped(program)
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                self.pipeline.hook_raised(exc)
                failure = exc
            elapsed = self.pipeline.now() - step.retire_start_ns
            if elapsed > self.blocked_ns:
                self.warn_blocked("collect", step, elapsed)
        elif program.slot_at_build:
            # An engine's result comes with its fence; a program without collect has none.
            output = getattr(step.output_done, "result", None)
        self.collected(step, output, failure)

    def _send(self, step: Step) -> None:
        job = self.collecting = CollectJob(step, self.view(step))
        limit_s = self.pipeline.config.collect_timeout_s
        if limit_s is not None:
            extras = step.ensure_extras()
            extras.stage_timer = self.pipeline.loop.call_later(limit_s, self._overdue, job)
        if self.pool is not None:
            self.pool.submit(job)

    def _take_finished(self) -> bool:
        pool, job = self.pool, self.collecting
        if pool is None or job is None:
            return False
        done = pool.take()
        while done is not None and done.abandoned:
            done = pool.take()
        if done is None:
            return False
        self.collecting = None
        self._stop_timer(job)
        self.queue.popleft()
        self.collected(job.step, job.output, job.error)
        return True

    @staticmethod
    def _stop_timer(job: CollectJob) -> None:
        if job.step.extras is not None:
            job.step.extras.stop_stage_timer()

    def stop(self) -> None:
        """The orchestrator closes: no time limit may strike any more."""
        if self.collecting is not None:
            self._stop_timer(self.collecting)

    def collected(self, step: Step, output: Any, failure: BaseException | None) -> None:
        """The slot returns, then the step settles."""
        pipeline = self.pipeline
        step.retire_end_ns = pipeline.now()
        slot = step.slot
        if slot is not None and not slot.holds:
            step.slot = None
            slot.ring.release(slot)
        else:
            pipeline.release_slot(step)
        step.copy_end = step.device_end = step.output_done = None
        if failure is None:
            step.output = output
            step.collected = True
        if step.state == SETTLED:
            # Detached meanwhile, or collected for a dependent's sake only.
            self._detached(step)
        elif failure is not None:
            self.fail_step(step, CollectError, "collect raised", failure)
        else:
            pipeline.settling.settle(step, "completed")

    def _overdue(self, job: CollectJob) -> None:
        """A collect took longer than ``collect_timeout_s``: its slot and its thread are given up."""
        pool = self.pool
        if self.collecting is not job or pool is None:
            return
        pipeline, step = self.pipeline, job.step
        self.collecting = None
        job.abandoned = True
        self.queue.popleft()
        slot, step.slot = step.slot, None
        step.retire_end_ns = pipeline.now()
        limit_s = pipeline.config.collect_timeout_s
        text = f"step {step.step_id!r} (seq {step.seq}): collect did not return within collect_timeout_s={limit_s} s"
        step.failed_in = "retire"
        if step.state == SETTLED:
            self._detached(step)
        else:
            error = StepTimeout(text, stage="retire", step_id=step.step_id, seq=step.seq)
            pipeline.settling.drop(step, "failed", error)
        if pipeline.quarantine.take(None, slot):
            pool.replace_thread()
        pipeline.pump()

    # -- the other outcomes --------------------------------------------------------------------------------

    def _detached(self, step: Step) -> None:
        """A step that was settled while on the device: its slot comes back and its record is written."""
        pipeline = self.pipeline
        pipeline.release_slot(step)
        if step.retire_end_ns == UNKNOWN:
            step.retire_end_ns = pipeline.now()
        pipeline.settling.detached_ended(step)

    def _device_failed(self, step: Step, error: BaseException) -> None:
        """Say which part of the step's device work failed."""
        copy_end, device_end = step.copy_end, step.device_end
        step.copy_end = step.device_end = step.output_done = None
        if step.state == SETTLED:
            self._detached(step)
            if self.is_lost(error):
                self.pipeline.settling.device_lost(step, error)
            else:
                emit("warning", "step.failed", step_id=step.step_id, seq=step.seq, error=str(error), detached=True)
            return
        step.state = RETIRING
        if copy_end is not None and copy_end.error is not None:
            self._fail(step, CopyError, "the copy of its image failed on the device", error, "h2d")
        elif device_end is not None and device_end.error is not None:
            what = "reclaim raised" if step.program.slot_at_build else "its kernels failed"
            self._fail(step, LaunchError, what, error, "device")
        else:
            self._fail(step, CollectError, "the copy of its output failed on the device", error, "retire")

    def _fail(self, step: Step, kind: type[StepError], what: str, cause: BaseException, stage: str) -> None:
        step.retire_end_ns = self.pipeline.now()
        self.pipeline.release_slot(step)
        self.fail_step(step, kind, what, cause, stage=stage)
