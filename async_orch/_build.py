"""The build stage: images are written ahead of the device, inline or by workers off the loop."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from async_orch._build_job import BuildJob
from async_orch._build_workers import BuildWorkers
from async_orch._nbytes import as_nbytes
from async_orch._program import Built
from async_orch._ring import Lease
from async_orch._slot import Slot
from async_orch._stage import Stage
from async_orch._staging import Staging
from async_orch._step import BUILDING, BUILT, SETTLED, UNKNOWN, Step
from async_orch.exceptions import BuildError, OrchError, WorkerDied

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["BuildStage"]


class BuildStage(Stage):
    """Grants staging in order and runs ``build``; its queue is in order of acceptance."""

    name = "build"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        config = pipeline.config
        self.limit = config.queue_depth + config.build_workers
        self.workers = None if config.build_in == "inline" else BuildWorkers(self)
        self.working: dict[Step, BuildJob] = {} if self.workers is None else self.workers.working
        self.retrying: deque[tuple[Step, Any]] = deque()

    def advance(self) -> bool:
        pipeline, queue, workers = self.pipeline, self.queue, self.workers
        moved = False if workers is None else workers.take_finished()
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
            if workers is None and pipeline.turn_is_over(now):
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
            if workers is None or not program.has_build:
                self.build_inline(step, view)
                # One at a time: the pump first moves what is built on to the device.
                return True
            workers.send(step, view)
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
        if step.program.program.slot.image is not None or staging.shared is not None:
            return staging.views[step.program.index]
        return staging.buffer.array[: extras.sizes.image_nbytes]

    def _reclaimed(self) -> Lease[Staging] | None:
        """Staging that a finished copy gives back; asks for a wake-up at the next one if too few steps are built."""
        h2d = self.pipeline.h2d
        if h2d.reclaim():
            return self.pipeline.staging.acquire_as(Lease)
        if self.workers is not None or len(self.pipeline.acquire.queue) < self.pipeline.queue_depth:
            h2d.watch_oldest()
        # Otherwise as many are built as are promised, and when one gets its slot the copies are looked at as well.
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
                if self.retry(step, exc):
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

    def retry(self, step: Step, error: BaseException) -> bool:
        """Whether a failed build is tried again; the step keeps its seq and its staging."""
        extras = step.extras
        if step.state == SETTLED or extras is None or extras.retries_left == 0 or not isinstance(error, Exception):
            return False
        extras.retries_left -= 1
        return True

    # -- off the loop --------------------------------------------------------------------------------------

    def holds(self, step: Step) -> bool:
        """Whether a worker has, or is to get, the step's staging."""
        return step in self.working

    def writes(self, step: Step) -> bool:
        """Whether a worker has begun to write to the step's staging."""
        return self.workers is not None and self.workers.writes(step)

    def quarantine(self, step: Step) -> None:
        """A settled step's build is stuck off the loop: its worker is given up."""
        if self.workers is not None:
            self.workers.give_up(step)

    def stop(self) -> None:
        """The orchestrator closes: no time limit may strike any more."""
        if self.workers is not None:
            self.workers.stop_timers()

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
        if isinstance(error, WorkerDied):
            step.failed_in = "build"
            self.pipeline.settling.drop(step, "failed", error)
        elif error is not None:
            self.fail_step(step, BuildError, "build raised", error)
        elif not 0 <= step.copy_nbytes <= capacity:
            what = f"build returned {step.copy_nbytes} bytes used, the image has {capacity}"
            self.fail_step(step, BuildError, what, None)
        else:
            step.state = BUILT
            step.acquire_start_ns = step.build_end_ns
