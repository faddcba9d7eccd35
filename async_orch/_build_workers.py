"""Builds off the event loop: jobs go to worker threads or processes, and what they give comes back in one place."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from async_orch._build_job import BuildJob
from async_orch._step import SETTLED, Step
from async_orch._workers import WorkerPool
from async_orch.exceptions import StepTimeout

if TYPE_CHECKING:
    from async_orch._build import BuildStage
    from async_orch._process_pool import ProcessPool
    from async_orch._process_wire import Hello

__all__ = ["BuildWorkers"]


class BuildWorkers:
    """The workers of a `BuildStage`, the builds that they are at, and the time limits of those."""

    def __init__(self, stage: BuildStage) -> None:
        pipeline = self._pipeline = stage.pipeline
        config = pipeline.config
        self._stage = stage
        self._warm_threads: set[int] = set()
        self.working: dict[Step, BuildJob] = {}
        self.threads: WorkerPool[BuildJob] | None = None
        self.processes: ProcessPool | None = None
        if config.build_in == "process":
            from async_orch._process_pool import ProcessPool  # noqa: PLC0415 - not to be had on every system

            self.pool: WorkerPool[BuildJob] | ProcessPool = ProcessPool(pipeline)
            self.processes = self.pool
        else:
            self.pool = WorkerPool("build", config.build_workers, self._work, pipeline.waker.wake)
            self.threads = self.pool

    async def open(self, programs: Hello | None) -> None:
        """Wait until every worker process has made its programs; threads are there already."""
        if self.processes is not None and programs is not None:
            await self.processes.open(programs)

    async def close(self, timeout_s: float) -> int:
        """End the workers, within about ``timeout_s``; gives the number that could not be. Idempotent."""
        if self.threads is not None:
            self.threads.stop()
            return self.threads.join(timeout_s)
        if self.processes is None:
            return 0
        abandoned = await self.processes.close(timeout_s)
        self.take_finished()  # nobody writes to the memory of their jobs any more
        return abandoned

    # -- one build -----------------------------------------------------------------------------------------

    def send(self, step: Step, view: Any) -> None:
        """Give a step to the workers."""
        job = self.working[step] = BuildJob(step, view)
        limit_s = self._pipeline.config.build_timeout_s
        if limit_s is not None:
            extras = step.ensure_extras()
            extras.stage_timer = self._pipeline.loop.call_later(limit_s, self._overdue, step)
        self.pool.submit(job)

    def _work(self, job: BuildJob) -> None:
        """On a worker thread: run ``build``."""
        if job.step.state == SETTLED:
            return  # cancelled while it waited for this thread
        thread = threading.get_ident()
        if thread not in self._warm_threads:
            self._warm_threads.add(thread)
            job.cold = True
        now = self._pipeline.now
        job.began_s = self._pipeline.loop.time()
        job.start_ns = now()
        try:
            job.result = job.step.program.build(job.payload, job.view)
        except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            job.error = exc
        job.end_ns = now()

    def take_finished(self) -> bool:
        """Hand finished builds on; True if there was one."""
        moved = False
        while (job := self.pool.take()) is not None:
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
            step.staging_copy_ns = job.copy_ns
            if job.cold:
                step.cold_reason = "worker_start"
            if job.error is not None and self._stage.retry(step, job.error):
                self.send(step, job.view)
                continue
            self._stage.built(step, job.result, job.error)
        return moved

    @staticmethod
    def _give_back(job: BuildJob) -> None:
        if job.lease is not None:
            job.lease.release()
        if job.slot is not None:
            job.slot.ring.release(job.slot)
        job.step.staging = None
        job.step.slot = None

    # -- time limits ---------------------------------------------------------------------------------------

    def writes(self, step: Step) -> bool:
        """Whether a worker has begun to write to the step's staging."""
        job = self.working.get(step)
        return job is not None and job.began_s is not None

    def stop_timers(self) -> None:
        """The orchestrator closes: no time limit may strike any more."""
        for step in self.working:
            if step.extras is not None:
                step.extras.stop_stage_timer()

    def _overdue(self, step: Step) -> None:
        """A build took longer than ``build_timeout_s``, unless it had to wait for its worker first."""
        job, limit_s, extras = self.working.get(step), self._pipeline.config.build_timeout_s, step.extras
        if job is None or limit_s is None or extras is None:
            return
        loop = self._pipeline.loop
        left_s = limit_s if job.began_s is None else job.began_s + limit_s - loop.time()
        if left_s > 0:
            extras.stage_timer = loop.call_later(left_s, self._overdue, step)
            return
        if step.state != SETTLED:
            text = f"step {step.step_id!r} (seq {step.seq}): build did not return within build_timeout_s={limit_s} s"
            error = StepTimeout(text, stage="build", step_id=step.step_id, seq=step.seq)
            step.failed_in = "build"
            self._pipeline.settling.drop(step, "failed", error)
        self.give_up(step)
        self._pipeline.pump()

    def give_up(self, step: Step) -> None:
        """The step's build is stuck, and the step has settled.

        A process is killed; its buffer is used again once that has happened. A thread cannot be killed: its buffer is
        out of use for good, and a new buffer and a new thread take their places.
        """
        job, threads = self.working.get(step), self.threads
        if job is None:
            return
        if self.processes is not None:
            self.processes.kill(job)
            return
        del self.working[step]
        job.abandoned = True
        step.staging = None
        step.slot = None
        if self._pipeline.quarantine.take(job.lease, job.slot) and threads is not None:
            threads.replace_thread()
