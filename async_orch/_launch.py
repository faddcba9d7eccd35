"""The launch stage: kernels behind the copy of the image, the copy of the output behind the kernels."""

from __future__ import annotations

import operator

from async_orch._slot import Slot
from async_orch._stage import Stage
from async_orch._step import LAUNCHED, SETTLED, Step
from async_orch.exceptions import DeviceLost, LaunchError, OrchError

__all__ = ["LaunchStage"]


class LaunchStage(Stage):
    """Enqueues kernels behind the copy, and the output's copy behind the kernels."""

    name = "launch"

    def advance(self) -> bool:
        queue = self.queue
        moved = False
        while queue:
            step = queue.popleft()
            if step.slot is not None:
                self._launch(step, step.slot)
            moved = True
        return moved

    def _launch(self, step: Step, slot: Slot) -> None:
        pipeline, program, stream = self.pipeline, step.program, self.pipeline.compute_stream
        if not program.launched:
            program.launched = True
            step.cold_reason = "first_launch"
        start = step.launch_start_ns = pipeline.now()
        try:
            stream.isolate()
            if step.copy_end is not None:
                stream.wait(step.copy_end)
            step.device_start = stream.record()
            used = program.launch(step.payload, slot, stream)
            step.device_end = step.output_done = stream.record()
            capacity = program.output_nbytes
            nbytes = capacity if used is None else operator.index(used)
            if not 0 <= nbytes <= capacity:
                raise ValueError(f"launch returned {nbytes} output bytes, output_nbytes is {capacity}")
            step.d2h_nbytes = nbytes
            memory = pipeline.slots.items[slot.index]
            if nbytes and memory.output is not None and memory.output_host is not None:
                stream.copy(memory.output_host, memory.output, nbytes)
                step.output_done = stream.record()
        except Exception as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            self._launch_failed(step, exc)
            return
        step.launch_end_ns = end = pipeline.now()
        if end - start > self.blocked_ns:
            self.warn_blocked("launch", step, end - start)
        if step.state == SETTLED:
            # The hook cancelled its own step; its work is on the device all the same.
            pipeline.release_slot(step, step.output_done)
            return
        step.state = LAUNCHED
        pipeline.on_device += 1
        step.on_device = pipeline.on_device
        pipeline.retire.queue.append(step)
        pipeline.watchdog.start()

    def _launch_failed(self, step: Step, cause: Exception) -> None:
        """Some of its work may be enqueued already: the slot comes back behind a fence after all of it."""
        try:
            step.copy_end = self.pipeline.compute_stream.record()
        except OrchError as exc:
            if isinstance(exc, DeviceLost):
                cause = exc
        step.launch_end_ns = self.pipeline.now()
        self.fail_step(step, LaunchError, "launch raised", cause)
