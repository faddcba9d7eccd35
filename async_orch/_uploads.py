"""Delta uploads in the engine: each step's image is compared with what its slot holds, off the event loop.

The comparison has a thread of its own. It is not the copy stream's: how many copies there are depends on the outcome,
and those are enqueued by the one thread that calls the streams; a driver's stream has no thread that runs Python
anyway. So the comparison of one step also overlaps the copy of the step before.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from async_orch._delta import Delta, Shadow
from async_orch._step import SETTLED, UNKNOWN, Step
from async_orch._workers import WorkerPool
from async_orch.abc import ByteArray
from async_orch.exceptions import CopyError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline
    from async_orch._transfer import H2DStage

__all__ = ["DeltaUploads"]

INLINE_NBYTES: Final = 1 << 16
"""Images up to this size are compared on the loop: 30 to 80 us; to the thread and back takes about 250 us."""


class CompareJob:
    """One step's comparison."""

    __slots__ = ("delta", "duration_ns", "error", "image", "nbytes", "shadow", "step")

    def __init__(self, step: Step, shadow: Shadow, image: ByteArray) -> None:
        self.step = step
        self.shadow = shadow
        self.image = image
        self.nbytes = step.copy_nbytes
        self.delta: Delta | None = None
        self.error: BaseException | None = None
        self.duration_ns = UNKNOWN


class DeltaUploads:
    """Begins comparisons as soon as a step has its slot, and takes their outcomes; bounded by the queue before h2d.

    While one runs, the step's staging and slot stay with it even if the step is removed.
    """

    def __init__(self, pipeline: Pipeline, stage: H2DStage) -> None:
        self._pipeline = pipeline
        self._stage = stage
        self._overhead_nbytes = pipeline.backend.copy_overhead_nbytes
        self.running: dict[Step, CompareJob] = {}
        self.pool: WorkerPool[CompareJob] | None = None
        memory = pipeline.memory
        # A loop in virtual time cannot wait for a thread; there is nobody whom comparing on it would hold up.
        on_thread = pipeline.now is time.monotonic_ns
        if on_thread and (memory.image_nbytes > INLINE_NBYTES or memory.grows):
            self.pool = WorkerPool("delta", 1, self._compare, pipeline.waker.wake)

    def begin(self, step: Step) -> None:
        """Find out what of the step's image is to be copied, unless that was begun before or all of it is."""
        if step.staging is None or step.slot is None or step.delta is not None or step in self.running:
            return
        shadow = step.slot.item.shadow
        if shadow is None:
            return
        if step.program.writes_image:
            shadow.forget()
            return
        image = self._pipeline.staging.items[step.staging.index].buffer.array
        job = CompareJob(step, shadow, image)
        if self.pool is None or step.copy_nbytes <= INLINE_NBYTES:
            self._compare(job)
            self._compared(job)
        else:
            self.running[step] = job
            self.pool.submit(job)

    def take_finished(self) -> bool:
        """Look at the comparisons that are done; True if there was one."""
        pool, taken = self.pool, False
        while pool is not None and (job := pool.take()) is not None:
            taken = True
            step = job.step
            del self.running[step]
            if step.state == SETTLED:
                # Removed meanwhile: only now does nobody read its staging.
                if step.staging is not None:
                    step.staging.release()
                    step.staging = None
                self._pipeline.release_slot(step)
            else:
                self._compared(job)
        return taken

    def _compare(self, job: CompareJob) -> None:
        """On the thread, or on the loop for what is small."""
        now = self._pipeline.now
        start_ns = now()
        try:
            job.delta = job.shadow.compare(job.image, job.nbytes, self._overhead_nbytes)
        except BaseException as exc:  # noqa: BLE001 - it becomes the step's failure
            job.error = exc
        job.duration_ns = now() - start_ns

    def _compared(self, job: CompareJob) -> None:
        step = job.step
        step.delta, step.delta_ns = job.delta, job.duration_ns
        if job.error is not None:
            self._stage.fail_step(step, CopyError, "comparing the image with the slot's failed", job.error)
