"""The launch stage: late input, kernels behind the copy of the image, the copy of the output behind the kernels."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

from async_orch._slot import Slot
from async_orch._stage import Stage
from async_orch._step import ACQUIRED, LAUNCHED, LAUNCHING, SETTLED, UNKNOWN, Step
from async_orch._workers import WorkerPool
from async_orch.exceptions import DeviceLost, LaunchError, OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["LaunchStage"]


class LaunchJob:
    """One launch, inline or on the device thread: what it needs, and how it went."""

    __slots__ = ("error", "payload", "previous", "slot", "step", "what")

    def __init__(self, step: Step, slot: Slot, previous: Any) -> None:
        self.step = step
        self.slot = slot
        self.payload = step.prepared if step.program.slot_at_build else step.payload
        self.previous = previous
        self.error: Exception | None = None
        self.what = "launch raised"


class LaunchStage(Stage):
    """Launches strictly in order; a step that waits for late input, or behind a barrier, holds those after it."""

    name = "launch"

    def __init__(self, pipeline: Pipeline, pool: WorkerPool[Any] | None) -> None:
        super().__init__(pipeline)
        self.pool = pool
        self.busy: LaunchJob | None = None

    def advance(self) -> bool:
        pipeline, queue = self.pipeline, self.queue
        moved = False
        if self.busy is not None:
            if not self._take_finished():
                return False
            moved = True
        while queue and self.busy is None:
            step = queue[0]
            if pipeline.barriers and pipeline.barriers.holds_launch(step.seq):
                break
            previous: Any = None
            extras = step.extras
            if extras is not None and extras.after is not None and step.program.has_feed:
                root = extras.after
                if not root.collected:
                    if extras.waiting_since_ns == UNKNOWN:
                        extras.waiting_since_ns = pipeline.now()
                    break
                previous = root.output
                if extras.waiting_since_ns != UNKNOWN:
                    extras.feed_wait_ns = pipeline.now() - extras.waiting_since_ns
            queue.popleft()
            moved = True
            slot = step.slot
            if slot is None:
                continue
            step.state = LAUNCHING
            pipeline.on_device += 1
            step.on_device = pipeline.on_device
            step.launch_start_ns = pipeline.now()
            job = LaunchJob(step, slot, previous)
            if self.pool is None:
                self._enqueue(job)
                self._launched(job)
            else:
                self.busy = job
                self.pool.submit(partial(self._enqueue, job))
        return moved

    def _take_finished(self) -> bool:
        pool, job = self.pool, self.busy
        if pool is None or job is None or pool.take() is None:
            return False
        self.busy = None
        self._launched(job)
        return True

    def _enqueue(self, job: LaunchJob) -> None:
        """Everything that touches the compute stream; on the loop's thread or the device thread."""
        pipeline, step, slot = self.pipeline, job.step, job.slot
        stream, program, extras = pipeline.compute_stream, step.program, step.extras
        try:
            stream.isolate()
            if step.copy_end is not None:
                stream.wait(step.copy_end)
            memory = slot.item
            if extras is not None:
                for fence in extras.wait_for:
                    stream.wait(fence)
                if extras.after is not None and program.has_feed and memory.feed_host is not None:
                    self._feed(job, step)
            if slot.fixed_image is not None and memory.image is not None:
                step.d2d_start = stream.record()
                if step.copy_nbytes > 0:
                    stream.copy(slot.fixed_image, memory.image, step.copy_nbytes)
            step.device_start = stream.record()
            used = program.launch(job.payload, slot, stream)
            step.device_end = step.output_done = stream.record()
            capacity = program.output_nbytes
            nbytes = capacity if used is None else operator.index(used)
            if not 0 <= nbytes <= capacity:
                raise ValueError(f"launch returned {nbytes} output bytes, output_nbytes is {capacity}")
            step.d2h_nbytes = nbytes
            if nbytes and memory.output is not None and memory.output_host is not None:
                stream.copy(memory.output_host, memory.output, nbytes)
                step.output_done = stream.record()
        except Exception as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            job.error = exc
            self._fence_the_rest(job)
        step.launch_end_ns = pipeline.now()

    def _feed(self, job: LaunchJob, step: Step) -> None:
        pipeline, memory, extras = self.pipeline, job.slot.item, step.extras
        if memory.feed_host is None or memory.feed is None or extras is None:
            return
        start = pipeline.now()
        job.what = "feed raised"
        view = memory.feed_host.array
        capacity = step.program.sizes.feed_nbytes
        used = step.program.feed(job.payload, job.previous, view[:capacity])
        nbytes = capacity if used is None else operator.index(used)
        if not 0 <= nbytes <= capacity:
            raise ValueError(f"feed returned {nbytes} bytes, feed_nbytes is {capacity}")
        if nbytes:
            pipeline.compute_stream.copy(memory.feed, memory.feed_host, nbytes)
        extras.feed_ns = pipeline.now() - start
        job.what = "launch raised"

    def _fence_the_rest(self, job: LaunchJob) -> None:
        """After a failure some work may be enqueued already: the slot comes back behind a fence after all of it."""
        try:
            job.step.output_done = self.pipeline.compute_stream.record()
        except OrchError as exc:
            job.step.output_done = None
            if isinstance(exc, DeviceLost):
                job.error = exc

    def _launched(self, job: LaunchJob) -> None:
        """Back on the loop: the step is on the device, or failed."""
        pipeline, step = self.pipeline, job.step
        program, extras = step.program, step.extras
        if not program.launched:
            program.launched = True
            step.cold_reason = "first_launch"
        if job.error is not None:
            self._failed(job, job.error)
            return
        if step.state != SETTLED:
            step.state = LAUNCHED
            elapsed = step.launch_end_ns - step.launch_start_ns
            if elapsed > self.blocked_ns and self.pool is None:
                self.warn_blocked("launch", step, elapsed)
        # A step that was cancelled meanwhile is on the device all the same: retire waits for its fence.
        pipeline.retire.queue.append(step)
        pipeline.watchdog.start()
        if extras is not None:
            extras.after = None
            extras.wait_for = ()
            if extras.launch_waiters is not None:
                waiters, extras.launch_waiters = extras.launch_waiters, None
                for future in waiters:
                    if not future.done():
                        future.set_result(None)

    def _failed(self, job: LaunchJob, cause: Exception) -> None:
        step = job.step
        fence, step.output_done = step.output_done, None
        if fence is None:
            self.lose_slot(step)
        else:
            self.pipeline.release_slot(step, fence)
        step.device_start = step.device_end = None
        if step.state == SETTLED:
            # Cancelled while its launch ran: its record was left to us.
            if self.pipeline.sink is not None:
                self.pipeline.sink(step)
            self.pipeline.settling.detached_ended(step)
            return
        # It did not get to the device: settled and recorded at once.
        self.pipeline.on_device -= 1
        step.state = ACQUIRED
        self.fail_step(step, LaunchError, job.what, cause)
