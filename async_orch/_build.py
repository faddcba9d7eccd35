"""The build stage: images are written ahead of the device, inline or on worker threads."""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING, Any

from async_orch._program import Built
from async_orch._ring import Lease
from async_orch._slot import Staging
from async_orch._stage import Stage
from async_orch._step import BUILDING, BUILT, SETTLED, UNKNOWN, Step
from async_orch._workers import WorkerPool
from async_orch.exceptions import BuildError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline


__all__ = ["BuildStage"]


class BuildJob:
    """A build on its way through a worker thread."""

    __slots__ = ("cold", "end_ns", "error", "lease", "payload", "result", "start_ns", "step", "view")

    def __init__(self, step: Step, payload: Any, view: Any, lease: Lease[Staging] | None) -> None:
        self.step = step
        self.payload = payload
        self.view = view
        self.lease = lease
        self.result: Any = None
        self.error: Exception | None = None
        self.cold = False
        self.start_ns = self.end_ns = UNKNOWN


class BuildStage(Stage):
    """Grants staging in order and runs ``build`` inline or on worker threads."""

    name = "build"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        config = pipeline.config
        self.limit = config.queue_depth + config.build_workers
        self.pool: WorkerPool[BuildJob] | None = None
        self.working: set[Step] = set()
        self._warm_threads: set[int] = set()
        if config.build_in == "thread":
            self.pool = WorkerPool("build", config.build_workers, self._work, pipeline.waker.wake)

    def advance(self) -> bool:
        pipeline, queue, pool = self.pipeline, self.queue, self.pool
        moved = False if pool is None else self._take_finished(pool)
        order = pipeline.acquire.queue
        while queue and len(order) < self.limit:
            if pipeline.serial and pipeline.busy():
                break
            now = pipeline.now()
            if pool is None and pipeline.turn_is_over(now):
                break
            step = queue[0]
            program = step.program
            view: Any = None
            if program.image_nbytes:
                staging = pipeline.staging
                lease = staging.acquire_as(Lease) or self._reclaimed()
                if lease is None:
                    break
                step.staging = lease
                view = staging.items[lease.index].views[program.index]
            queue.popleft()
            step.state = BUILDING
            step.build_start_ns = now
            order.append(step)
            if pool is None or not program.has_build:
                self._build_inline(step, view)
                # One at a time: the pump first moves what is built on to the device.
                return True
            self.working.add(step)
            pool.submit(BuildJob(step, step.payload, view, step.staging))
            moved = True
        return moved

    def _reclaimed(self) -> Lease[Staging] | None:
        """Staging that a finished copy gives back; asks for a wake-up at the next one if there is none."""
        h2d = self.pipeline.h2d
        if h2d.reclaim():
            return self.pipeline.staging.acquire()
        h2d.watch_oldest()
        return None

    def _build_inline(self, step: Step, view: Any) -> None:
        program = step.program
        error: Exception | None = None
        result: Any = None
        if program.has_build:
            try:
                result = program.build(step.payload, view)
            except Exception as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                error = exc
        step.build_end_ns = end = self.pipeline.now()
        self._settle_build(step, result, error)
        if end - step.build_start_ns > self.blocked_ns:
            self.warn_blocked("build", step, end - step.build_start_ns)

    def _work(self, job: BuildJob) -> None:
        """On a worker thread."""
        thread = threading.get_ident()
        if thread not in self._warm_threads:
            self._warm_threads.add(thread)
            job.cold = True
        now = self.pipeline.now
        job.start_ns = now()
        try:
            job.result = job.step.program.build(job.payload, job.view)
        except Exception as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            job.error = exc
        job.end_ns = now()

    def _take_finished(self, pool: WorkerPool[BuildJob]) -> bool:
        moved = False
        while (job := pool.take()) is not None:
            moved = True
            step = job.step
            self.working.discard(step)
            if step.state == SETTLED:
                # Cancelled meanwhile: only now is nobody writing to its staging.
                if job.lease is not None:
                    self.pipeline.staging.release(job.lease)
                step.staging = None
                continue
            step.build_start_ns, step.build_end_ns = job.start_ns, job.end_ns
            if job.cold:
                step.cold_reason = "worker_start"
            self._settle_build(step, job.result, job.error)
        return moved

    def _settle_build(self, step: Step, result: Any, error: Exception | None) -> None:
        if step.state == SETTLED:
            # An inline hook cancelled its own step; `drop` gave the staging back.
            return
        capacity = step.program.image_nbytes
        if error is None:
            try:
                if result is None:
                    step.copy_nbytes = capacity
                elif type(result) is Built:
                    step.copy_nbytes = operator.index(result.nbytes)
                    step.sm_nbytes = operator.index(result.sm_nbytes)
                else:
                    step.copy_nbytes = operator.index(result)
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

    def holds(self, step: Step) -> bool:
        """Whether a worker may still be writing to the step's staging."""
        return step in self.working
