"""From a step's fences to the times of its work on the device."""

from __future__ import annotations

from async_orch._step import UNKNOWN, Step
from async_orch.abc import Fence
from async_orch.exceptions import OrchError

__all__ = ["StepClocks"]


class StepClocks:
    """Reads fences into a step's numbers, in launch order; remembers when the device was done with the last step."""

    def __init__(self) -> None:
        self._device_end_ns: int | None = None

    def read(self, step: Step) -> None:
        """`note` with the step's own fences; drops those that nothing else needs."""
        start = step.device_start
        if step.d2d_start is not None:
            step.d2d_ns = self._d2d_ns(step)
            step.d2d_start = None
        self.note(step, step.copy_start, step.copy_end, start, step.device_end, step.output_done)
        step.copy_start = step.device_start = None

    @staticmethod
    def _d2d_ns(step: Step) -> int:
        try:
            if step.device_start is not None and step.d2d_start is not None:
                return step.device_start.elapsed_ns(step.d2d_start) or 0
        except OrchError:
            pass  # as in `note`
        return UNKNOWN

    def note(
        self,
        step: Step,
        copy_start: Fence | None,
        copy_end: Fence | None,
        start: Fence | None,
        end: Fence | None,
        done: Fence | None,
    ) -> None:
        """Times of copy, kernels and output, and the bubble before them.

        A time that the driver cannot give is unknown; the step is none the worse for it.
        """
        try:
            if copy_start is not None and copy_end is not None:
                started_ns, ended_ns = copy_start.time_ns(), copy_end.time_ns()
                if started_ns is not None and ended_ns is not None:
                    step.h2d_start_ns = started_ns
                    step.h2d_ns = ended_ns - started_ns
            if start is None or end is None or done is None:
                return
            start_ns, end_ns = start.time_ns(), end.time_ns()
            if start_ns is None or end_ns is None:
                return
            step.device_start_ns = start_ns
            step.device_ns = end_ns - start_ns
            previous_ns = self._device_end_ns
            if previous_ns is not None:
                step.bubble_ns = start_ns - previous_ns
                accept_ns = step.accept_ns
                if accept_ns > previous_ns:
                    step.starved_ns = min(accept_ns, start_ns) - previous_ns
                else:
                    step.starved_ns = 0
            if done is not end:
                done_ns = done.time_ns()
                if done_ns is not None:
                    step.d2h_ns = done_ns - end_ns
                    end_ns = done_ns
            self._device_end_ns = end_ns
        except OrchError:
            return
