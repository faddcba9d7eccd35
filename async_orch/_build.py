"""The build stage: images are written ahead of the device, inline or on worker threads."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from async_orch._nbytes import as_nbytes
from async_orch._program import Built
from async_orch._ring import Lease
from async_orch._slot import Slot, Staging
from async_orch._stage import Stage
from async_orch._step import BUILDING, BUILT, SETTLED, UNKNOWN, Step
from async_orch._workers import WorkerPool
from async_orch.exceptions import BuildError, OrchError, StepTimeout

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["BuildStage"]


class BuildJob:
    """A build on its way through a worker thread."""

    __slots__ = (
        "abandoned",
        "began_s",
        "cold",
        "end_ns",
        "error",
        "lease",
        "payload",
        "result",
        "slot",
        "start_ns",
        "step",
        "view",
    )

    def __init__(self, step: Step, view: Any) -> None:
        self.step = step
        self.payload = step.payload
        self.view = view
        self.lease = step.staging
        self.slot = step.slot
        self.result: Any = None
        self.error: BaseException | None = None
        self.cold = False
        self.abandoned = False
        self.began_s: float | None = None
        self.start_ns = self.end_ns = UNKNOWN


class BuildStage(Stage):
    """Grants staging in order and runs ``build``; its queue is in order of acceptance."""

    name = "build"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        config = pipeline.config
        self.limit = config.queue_depth + config.build_workers
        self.pool: WorkerPool[BuildJob] | None = None
        self.working: dict[Step, BuildJob] = {}
        self._warm_threads: set[int] = set()
        self.retrying: deque[tuple[Step, Any]] = deque()
        if config.build_in == "thread":
            self.pool = WorkerPool("build", config.build_workers, self._work, pipeline.waker.wake)

    def advance(self) -> bool:
        pipeline, queue, pool = self.pipeline, self.queue, self.pool
        moved = False if pool is None else self._take_finished(pool)
        order = pipeline.acquire.queue
        while self.retrying:
            if pipeline.turn_is_over(pipeline.now()):
                # Between two tries other tasks get their turn, and time limits can strike.
                return moved
            again, its_view = self.retrying.popleft()
            if again.state == BUILDING:
                self.build_inline(again, its_view)
                return True
        while queue and len(order) < self.limit:
            if pipeline.serial and pipeline.occupied():
                break
            now = pipeline.now()
            if pool is None and pipeline.turn_is_over(now):
                break
            if len(self.working) >= self.limit:
                break  # builds of cancelled steps still wait for a worker
            step = queue[0]
            if pipeline.barriers.standing and pipeline.barriers.holds_build(step.seq):
                break
            program = step.program
            view: Any = None
            if program.slot_at_build:
                slot = pipeline.memory.class_of(step).ring.acquire_as(Slot)
                if slot is None:
                    if pipeline.memory.poll():
                        continue
                    break
                step.slot = slot
                step.slot_index, step.generation = slot.index, slot.generation
                view = slot.index
            elif program.image_nbytes:
                lease = pipeline.staging.acquire_as(Lease) or self._reclaimed()
                if lease is None:
                    break
                view = self._view(step, lease)
                if view is None:
                    moved = True
                    continue
            queue.popleft()
            step.state = BUILDING
            step.build_start_ns = now
            order.append(step)
            if pool is None or not program.has_build:
                self.build_inline(step, view)
                # One at a time: the pump first moves what is built on to the device.
                return True
            self._send(step, view, pool)
            moved = True
        return moved

    def _view(self, step: Step, lease: Lease[Staging]) -> Any:
        """The step's view of its staging buffer; None if that had to grow and could not, which fails the step."""
        staging = self.pipeline.staging.items[lease.index]
        step.staging = lease
        extras = step.extras
        if extras is None or extras.sizes is None:
            return staging.views[step.program.index]
        try:
            self.pipeline.memory.prepare_staging(staging, step)
        except OrchError as exc:
            self.fail_step(step, BuildError, "its staging buffer could not grow", exc)
            return None
        if step.program.program.slot.image is not None:
            return staging.views[step.program.index]
        return staging.buffer.array[: extras.sizes.image_nbytes]

    def _reclaimed(self) -> Lease[Staging] | None:
        """Staging that a finished copy gives back; asks for a wake-up at the next one if there is none."""
        h2d = self.pipeline.h2d
        if h2d.reclaim():
            return self.pipeline.staging.acquire_as(Lease)
        h2d.watch_oldest()
        return None

    # -- inline --------------------------------------------------------------------------------------------

    def build_inline(self, step: Step, view: Any) -> None:
        """Run ``build`` here; the step is built or failed afterwards."""
        program = step.program
        result: Any = None
        if program.has_build:
            try:
                result = program.build(step.payload, view)
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                if self._retry(step, exc):
                    self.retrying.append((step, view))
                    return
                self.pipeline.hook_raised(exc)
                step.build_end_ns = self.pipeline.now()
                self.built(step, None, exc)
                return
        end = step.build_end_ns = self.pipeline.now()
        if end - step.build_start_ns > self.blocked_ns:
            self.warn_blocked("build", step, end - step.build_start_ns)
        if result is None and step.extras is None and step.state == BUILDING:
            step.copy_nbytes = program.image_nbytes
            step.state = BUILT
            step.acquire_start_ns = end
        else:
            self.built(step, result, None)

    def _retry(self, step: Step, error: BaseException) -> bool:
        """Whether a failed build is tried again; the step keeps its seq and its staging."""
        extras = step.extras
        if step.state == SETTLED or extras is None or extras.retries_left == 0 or not isinstance(error, Exception):
            return False
        extras.retries_left -= 1
        return True

    # -- on worker threads ---------------------------------------------------------------------------------

    def _send(self, step: Step, view: Any, pool: WorkerPool[BuildJob]) -> None:
        job = self.working[step] = BuildJob(step, view)
        limit_s = self.pipeline.config.build_timeout_s
        if limit_s is not None:
            extras = step.ensure_extras()
            extras.stage_timer = self.pipeline.loop.call_later(limit_s, self._overdue, step)
        pool.submit(job)

    def _work(self, job: BuildJob) -> None:
        if job.step.state == SETTLED:
            return  # cancelled while it waited for this thread
        thread = threading.get_ident()
        if thread not in self._warm_threads:
            self._warm_threads.add(thread)
            job.cold = True
        now = self.pipeline.now
        job.began_s = self.pipeline.loop.time()
        job.start_ns = now()
        try:
            job.result = job.step.program.build(job.payload, job.view)
        except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            job.error = exc
        job.end_ns = now()

    def _take_finished(self, pool: WorkerPool[BuildJob]) -> bool:
        moved = False
        while (job := pool.take()) is not None:
            moved = True
            step = job.step
            if job.abandoned:
                continue
            del self.working[step]
            if step.extras is not None:
                step.extras.stop_stage_timer()
            if step.state == SETTLED:
                # Cancelled meanwhile: only now is nobody writing to its staging.
                self._give_back(job)
                continue
            step.build_start_ns, step.build_end_ns = job.start_ns, job.end_ns
            if job.cold:
                step.cold_reason = "worker_start"
            if job.error is not None and self._retry(step, job.error):
                self._send(step, job.view, pool)
                continue
            self.built(step, job.result, job.error)
        return moved

    def _give_back(self, job: BuildJob) -> None:
        if job.lease is not None:
            job.lease.release()
        if job.slot is not None:
            job.slot.ring.release(job.slot)
        job.step.staging = None
        job.step.slot = None

    def holds(self, step: Step) -> bool:
        """Whether a worker has, or is to get, the step's staging."""
        return step in self.working

    def writes(self, step: Step) -> bool:
        """Whether a worker has begun to write to the step's staging."""
        job = self.working.get(step)
        return job is not None and job.began_s is not None

    def stop(self) -> None:
        """The orchestrator closes: no time limit may strike any more."""
        for step in self.working:
            if step.extras is not None:
                step.extras.stop_stage_timer()

    def _overdue(self, step: Step) -> None:
        """A build took longer than ``build_timeout_s``, unless it had to wait for its worker first."""
        job, limit_s, extras = self.working.get(step), self.pipeline.config.build_timeout_s, step.extras
        if job is None or limit_s is None or extras is None:
            return
        loop = self.pipeline.loop
        left_s = limit_s if job.began_s is None else job.began_s + limit_s - loop.time()
        if left_s > 0:
            extras.stage_timer = loop.call_later(left_s, self._overdue, step)
            return
        if step.state != SETTLED:
            text = f"step {step.step_id!r} (seq {step.seq}): build did not return within build_timeout_s={limit_s} s"
            error = StepTimeout(text, stage="build", step_id=step.step_id, seq=step.seq)
            step.failed_in = "build"
            self.pipeline.settling.drop(step, "failed", error)
        self.quarantine(step)
        self.pipeline.pump()

    def quarantine(self, step: Step) -> None:
        """A build is stuck: its buffer is out of use for good; a new one and a new thread take their places."""
        job = self.working.pop(step, None)
        pool = self.pool
        if job is None or pool is None:
            return
        job.abandoned = True
        step.staging = None
        step.slot = None
        if self.pipeline.quarantine.take(job.lease, job.slot):
            pool.replace_thread()

    # -- the outcome ---------------------------------------------------------------------------------------

    def built(self, step: Step, result: Any, error: BaseException | None) -> None:
        """``build`` returned or raised: the step is built or failed."""
        if step.state == SETTLED:
            # An inline hook cancelled its own step; `drop` gave the staging back.
            return
        program = step.program
        if step.build_end_ns == UNKNOWN:
            step.build_end_ns = self.pipeline.now()
        if program.slot_at_build:
            step.ensure_extras().prepared = result
            if error is not None:
                self.fail_step(step, BuildError, "prepare raised", error)
            else:
                step.state = BUILT
                step.acquire_start_ns = step.build_end_ns
            return
        capacity = program.image_nbytes
        if step.extras is not None and step.extras.sizes is not None:
            capacity = step.extras.sizes.image_nbytes
        if error is None:
            try:
                if result is None:
                    step.copy_nbytes = capacity
                elif type(result) is Built:
                    step.copy_nbytes = as_nbytes(result.nbytes)
                    step.sm_nbytes = as_nbytes(result.sm_nbytes)
                else:
                    step.copy_nbytes = as_nbytes(result)
            except TypeError as exc:
                error = exc
        if error is not None:
            self.fail_step(step, BuildError, "build raised", error)
        elif not 0 <= step.copy_nbytes <= capacity:
            what = f"build returned {step.copy_nbytes} bytes used, the image has {capacity}"
            self.fail_step(step, BuildError, what, None)
        else:
            step.state = BUILT
            step.acquire_start_ns = step.build_end_ns
