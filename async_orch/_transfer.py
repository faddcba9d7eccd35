"""The acquire and h2d stages: a step gets its slot, and its image goes there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from async_orch._ring import Lease
from async_orch._slot import Slot, Staging
from async_orch._stage import Stage
from async_orch._step import ACQUIRED, BUILT, Step
from async_orch.abc import Fence
from async_orch.exceptions import CopyError, OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["AcquireStage", "H2DStage"]


class AcquireStage(Stage):
    """Grants slots in order: the head of the queue gets the next one, even if later steps are built already."""

    name = "acquire"

    def advance(self) -> bool:
        pipeline, order = self.pipeline, self.queue
        memory, to_copy = pipeline.memory, pipeline.h2d.queue
        moved = False
        while order and order[0].state == BUILT and len(to_copy) < pipeline.queue_depth:
            step = order[0]
            slot_class = memory.class_of(step)
            slot = step.slot
            if slot is None:
                slot = slot_class.ring.acquire_as(Slot)
                if slot is None:
                    if not memory.poll():
                        break
                    continue
                step.slot = slot
                step.slot_index, step.generation = slot.index, slot.generation
            order.popleft()
            step.state = ACQUIRED
            moved = True
            if memory.naive or step.extras is not None:
                try:
                    memory.prepare_slot(slot_class, slot.item, step)
                except OrchError as exc:
                    self.fail_step(step, CopyError, "its slot could not be allocated", exc)
                    continue
            slot.fixed_image = step.program.fixed_image
            step.acquire_ns = pipeline.now()
            to_copy.append(step)
        return moved


class H2DStage(Stage):
    """Enqueues the copy of the image; its fence gives staging back."""

    name = "h2d"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.copying: deque[tuple[Fence, Lease[Staging]]] = deque()
        self._watched: Fence | None = None

    def advance(self) -> bool:
        pipeline, queue = self.pipeline, self.queue
        to_launch = pipeline.launch.queue
        moved = False
        while queue and len(to_launch) < pipeline.queue_depth:
            step = queue.popleft()
            moved = True
            staging, slot = step.staging, step.slot
            if staging is not None and slot is not None and not self._copy(step, staging, slot):
                continue
            to_launch.append(step)
        return moved

    def _copy(self, step: Step, staging: Lease[Staging], slot: Slot) -> bool:
        pipeline, stream = self.pipeline, self.pipeline.copy_stream
        step.h2d_start_ns = pipeline.now()
        image = slot.item.image
        try:
            stream.isolate()
            step.copy_start = stream.record()
            if step.copy_nbytes and image is not None:
                stream.copy(image, pipeline.staging.items[staging.index].buffer, step.copy_nbytes)
        except OrchError as exc:
            if self._end_copy(step, staging):
                self.fail_step(step, CopyError, "enqueuing the copy failed", exc)
            return False
        return self._end_copy(step, staging)

    def _end_copy(self, step: Step, staging: Lease[Staging]) -> bool:
        """Hand staging over to the copy's fence; False if that failed, and the step with it."""
        try:
            fence = step.copy_end = self.pipeline.copy_stream.record()
        except OrchError as exc:
            # Without a fence nobody can tell when the copy is over: staging and slot are never reused.
            step.staging = None
            self.pipeline.staging.quarantine(staging)
            self.lose_slot(step)
            self.fail_step(step, CopyError, "recording the copy's fence failed", exc)
            return False
        step.staging = None
        self.copying.append((fence, staging))
        return True

    def reclaim(self) -> bool:
        """Free the staging whose copies are done; copies of one stream end in order."""
        copying = self.copying
        freed = False
        while copying and copying[0][0].query():
            copying.popleft()[1].release()
            freed = True
        return freed

    def watch_oldest(self) -> None:
        """Ask for a wake-up when the oldest copy ends."""
        if self.copying and self.copying[0][0] is not self._watched:
            self._watched = self.copying[0][0]
            self.pipeline.watcher.watch(self._watched)
