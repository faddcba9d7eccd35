"""Builds in worker processes.

A worker that is idle gets one job, and the next one with its answer: what it builds lies in shared memory, so that an
answer is some hundred bytes. A process that ends in the middle of a job fails that job alone.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from async_orch._build_job import BuildJob
from async_orch._process_errors import revive
from async_orch._process_group import ProcessGroup, Worker
from async_orch._process_wire import Answer, Build, Hello
from async_orch._program import Built
from async_orch._step import SETTLED
from async_orch._workers import WorkerPool
from async_orch.exceptions import ConfigurationError, PipelineFailed, WorkerDied

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["ProcessPool"]


class ProcessPool:
    """Runs builds in processes; `submit` and `take` are those of a `WorkerPool`."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._group: ProcessGroup | None = None
        self._idle: deque[Worker] = deque()
        self._jobs: deque[BuildJob] = deque()
        self._finished: deque[BuildJob] = deque()
        self._copier: WorkerPool[BuildJob] | None = None
        # The workers' clock is CLOCK_MONOTONIC; where records have another, times are read here.
        self._own_clock = pipeline.now is not time.monotonic_ns
        self.busy = 0

    async def open(self, programs: Hello) -> None:
        """Start ``build_workers`` processes and wait until each has made its programs.

        Raises `ConfigurationError` with the reason if one cannot. After a failure or a cancel `close` ends them.
        """
        pipeline = self._pipeline
        if any(staging.copied for staging in pipeline.staging.items):
            self._copier = WorkerPool("staging", 1, _copy_image, pipeline.waker.wake)
        self._group = ProcessGroup(pipeline.loop, self, programs)
        await self._group.open(pipeline.config.build_workers)

    async def close(self, timeout_s: float) -> int:
        """End the processes; their jobs come out of `take`. Gives how many workers could not be ended. Idempotent."""
        if self._group is None:
            return 0
        stuck = await self._group.close(timeout_s)
        self._finished.extend(self._jobs)
        self._jobs.clear()
        if self._copier is not None:
            self._copier.stop()
            stuck += self._copier.join(timeout_s)
        return stuck

    # -- jobs ----------------------------------------------------------------------------------------------

    def submit(self, job: BuildJob) -> None:
        """Give a job to the next idle worker. The caller bounds how many there are."""
        self.busy += 1
        self._jobs.append(job)
        self._dispatch()

    def take(self) -> BuildJob | None:
        """A job that is over, None if there is none."""
        job = self._finished.popleft() if self._finished else None
        if job is None and self._copier is not None:
            job = self._copier.take()
        if job is not None:
            self.busy -= 1
        return job

    def kill(self, job: BuildJob) -> None:
        """Kill the worker that is at this job, which comes out of `take` once nobody can write to its memory."""
        if self._group is None:
            return
        for worker in self._group.workers:
            if worker.job is job:
                worker.fault = worker.fault or " because its build took too long"
                self._group.end(worker)

    def _finish(self, job: BuildJob, error: BaseException | None = None) -> None:
        if error is not None:
            job.error = error
            job.end_ns = self._pipeline.now()
        self._finished.append(job)
        self._pipeline.waker.wake()

    def _dispatch(self) -> None:
        jobs = self._jobs
        while jobs:
            if jobs[0].step.state == SETTLED:
                self._finish(jobs.popleft())  # cancelled while it waited for a worker
                continue
            worker = self._next_idle()
            if worker is None:
                return
            job = jobs.popleft()
            job.start_ns = self._pipeline.now()
            try:
                sent = self._order(worker, job, _pickled(job.payload))
            except (ConfigurationError, OSError) as exc:  # OSError: too many open files, or no memory for the message
                self._idle.appendleft(worker)
                self._finish(job, exc)
                continue
            if sent:
                worker.job = job
                job.began_s = self._pipeline.loop.time()
            else:
                jobs.appendleft(job)  # a worker that ended while it was idle costs no step
                if self._group is not None:
                    self._group.end(worker)

    def _next_idle(self) -> Worker | None:
        while self._idle:
            worker = self._idle.popleft()
            if not worker.ended:
                return worker
        return None

    def _order(self, worker: Worker, job: BuildJob, payload: bytes) -> bool:
        """Send the job; False if the worker has gone."""
        step, lease = job.step, job.lease
        memory = None if lease is None else self._pipeline.staging.items[lease.index].shared
        if lease is None or memory is None:
            return worker.tell(Build(step.program.index, -1, False, 0, 0, payload))
        extras = step.extras
        nbytes = step.program.image_nbytes if extras is None or extras.sizes is None else extras.sizes.image_nbytes
        fresh = worker.known.get(lease.index) is not memory
        order = Build(step.program.index, lease.index, fresh, nbytes, memory.nbytes, payload)
        if not worker.tell(order, *([memory.fd] if fresh else [])):
            return False
        worker.known[lease.index] = memory
        return True

    # -- what becomes of them, called by the group ---------------------------------------------------------

    def ready(self, worker: Worker) -> None:
        """A worker can take its first job."""
        self._idle.append(worker)
        self._dispatch()

    def answered(self, worker: Worker, answer: Answer) -> None:
        """A worker has built its step, or failed to."""
        job, worker.job = worker.job, None
        self._idle.append(worker)
        if job is None:
            return
        if job.step.extras is not None:
            job.step.extras.stop_stage_timer()
        if self._own_clock:
            job.end_ns = self._pipeline.now()
        else:
            job.start_ns, job.end_ns = answer.start_ns, answer.end_ns
        job.cold, worker.warm = not worker.warm, True
        if answer.failure is not None:
            job.error = revive(answer.failure, worker.pid)
        elif answer.sm_nbytes is not None and answer.nbytes is not None:
            job.result = Built(answer.nbytes, answer.sm_nbytes)
        else:
            job.result = answer.nbytes
        if self._copier is not None and self._must_be_copied(job):
            self._copier.submit(job)
        else:
            self._finished.append(job)
        self._dispatch()  # first: the worker need not wait for what the pump does now
        self._pipeline.pump()

    def _must_be_copied(self, job: BuildJob) -> bool:
        lease = job.lease
        if lease is None or job.error is not None or job.step.state == SETTLED:
            return False
        staging = self._pipeline.staging.items[lease.index]
        job.staging = staging
        return staging.copied

    def gone(self, worker: Worker) -> None:
        """A worker has ended: nobody writes to the memory of its job any more."""
        if worker in self._idle:
            self._idle.remove(worker)
        job, worker.job = worker.job, None
        if job is None:
            return
        step = job.step
        if step.state == SETTLED:
            self._finish(job)
            return
        if worker.unread:
            # It ended while it was idle, as the job was on its way: that costs no step.
            job.began_s = None
            self._jobs.appendleft(job)
            return
        what = f"worker process {worker.pid} {worker.how_it_ended()} while it built this step"
        text = f"step {step.step_id!r} (seq {step.seq}) failed in build: {what}"
        ids = {"step_id": step.step_id, "seq": step.seq}
        self._finish(job, WorkerDied(text, stage="build", pid=worker.pid, exit_code=worker.exit_code, **ids))

    def nobody_left(self, why: str) -> None:
        """No worker is left, and none can be had."""
        self._pipeline.settling.fail(PipelineFailed(f"no worker process is left to build: {why}"))
        self._dispatch()  # gives back what the steps in line hold
        self._pipeline.pump()


def _pickled(step: Any) -> bytes:
    try:
        return pickle.dumps(step, pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        what = f"the step cannot be sent to a worker process: {type(exc).__name__}: {exc}"
        raise ConfigurationError(what) from exc


def _copy_image(job: BuildJob) -> None:
    """On the copier's thread: the image, from shared memory to the buffer that the device copies from."""
    staging, result = job.staging, job.result
    if staging is None:
        return
    target, used = staging.buffer.array, result.nbytes if isinstance(result, Built) else result
    nbytes = target.nbytes if used is None else max(0, min(used, target.nbytes))  # what is no size fails the step later
    start_ns = time.monotonic_ns()
    np.copyto(target[:nbytes], staging.image[:nbytes])
    job.copy_ns = time.monotonic_ns() - start_ns
