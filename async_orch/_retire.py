"""The retire stage: fences become results, and slots come back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_orch._escape import escapes
from async_orch._stage import Stage
from async_orch._step import RETIRING, SETTLED, UNKNOWN, Step
from async_orch.abc import Fence
from async_orch.exceptions import CollectError, CopyError, LaunchError, OutputEscaped, StepError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline


__all__ = ["RetireStage"]


class RetireStage(Stage):
    """Waits for fences in launch order, runs ``collect``, gives the slot back and settles the step."""

    name = "retire"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.last_fence_ns = UNKNOWN
        self.device_end_ns: int | None = None

    def head(self) -> Step | None:
        """The oldest launched step."""
        return self.queue[0] if self.queue else None

    def advance(self) -> bool:
        queue = self.queue
        moved = False
        while queue:
            step = queue[0]
            fence = step.output_done
            if fence is not None and not fence.query():
                if not step.armed:
                    step.armed = True
                    self.pipeline.watcher.watch(fence)
                break
            queue.popleft()
            self._retire(step, fence)
            moved = True
        return moved

    def _retire(self, step: Step, fence: Fence | None) -> None:
        pipeline = self.pipeline
        step.retire_start_ns = self.last_fence_ns = pipeline.now()
        self._read_clocks(step)
        error = fence.error if fence is not None else None
        if step.state == SETTLED:
            self._finish_detached(step)
        else:
            step.state = RETIRING
            if error is not None:
                self._device_failed(step, error)
            else:
                self._collect(step)
        step.copy_start = step.copy_end = None
        step.device_start = step.device_end = step.output_done = None

    def _collect(self, step: Step) -> None:
        pipeline, program = self.pipeline, step.program
        slot = step.slot
        if step.d2h_nbytes > 0 and slot is not None:
            view = pipeline.slots.items[slot.index].output_view
            if view is not None:
                if view.nbytes != step.d2h_nbytes:
                    view = view[: step.d2h_nbytes]
                try:
                    output = program.collect(step.payload, view)
                    if output is not None and escapes(output, view):
                        raise OutputEscaped(
                            f"collect of {type(program.program).__name__} returned memory of the output view, "
                            "which a later step overwrites; return a copy, e.g. output.copy()"
                        )
                except Exception as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                    self._finish_failed(step, CollectError, "collect raised", exc)
                    return
                if step.state == SETTLED:
                    # The hook cancelled its own step, which wrote the record.
                    pipeline.release_slot(step)
                    return
                step.output = output
        step.retire_end_ns = end = pipeline.now()
        pipeline.release_slot(step)
        pipeline.settle(step, "completed")
        if end - step.retire_start_ns > self.blocked_ns:
            self.warn_blocked("collect", step, end - step.retire_start_ns)

    def _device_failed(self, step: Step, error: BaseException) -> None:
        """Say which part of the step's device work failed."""
        if step.copy_end is not None and step.copy_end.error is not None:
            self._finish_failed(step, CopyError, "the copy of its image failed on the device", error)
        elif step.device_end is not None and step.device_end.error is not None:
            self._finish_failed(step, LaunchError, "its kernels failed on the device", error)
        else:
            self._finish_failed(step, CollectError, "the copy of its output failed on the device", error)

    def _finish_detached(self, step: Step) -> None:
        """The slot of a step that was settled while on the device comes back, and its record is written."""
        self.pipeline.release_slot(step)
        step.retire_end_ns = self.pipeline.now()
        if self.pipeline.sink is not None:
            self.pipeline.sink(step)

    def _finish_failed(self, step: Step, kind: type[StepError], what: str, cause: BaseException) -> None:
        step.retire_end_ns = self.pipeline.now()
        self.pipeline.release_slot(step)
        self.fail_step(step, kind, what, cause)

    def _read_clocks(self, step: Step) -> None:
        """Turn the step's fences into numbers; fences are few on some devices and must not live on in results."""
        copy_start, copy_end = step.copy_start, step.copy_end
        if copy_start is not None and copy_end is not None:
            elapsed = copy_end.elapsed_ns(copy_start)
            started = copy_start.time_ns()
            if elapsed is not None and started is not None:
                step.h2d_ns, step.h2d_start_ns = elapsed, started
        start, end, done = step.device_start, step.device_end, step.output_done
        if start is None or end is None or done is None:
            return
        start_ns, end_ns = start.time_ns(), end.time_ns()
        if start_ns is None or end_ns is None:
            return
        step.device_start_ns, step.device_ns = start_ns, end_ns - start_ns
        if step.d2h_nbytes > 0:
            step.d2h_ns = done.elapsed_ns(end) or 0
        previous = self.device_end_ns
        if previous is not None:
            step.bubble_ns = start_ns - previous
            step.starved_ns = max(0, min(step.accept_ns, start_ns) - previous)
        self.device_end_ns = end_ns if done is end else (done.time_ns() or end_ns)
