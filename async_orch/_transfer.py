"""The acquire and h2d stages: a step gets its slot, and its image goes there."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from async_orch._slot import Slot, Staging
from async_orch._stage import Stage
from async_orch._step import ACQUIRED, BUILT, Step
from async_orch.abc import Fence
from async_orch.exceptions import CopyError, OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline
    from async_orch._ring import Lease


__all__ = ["AcquireStage", "H2DStage"]


class AcquireStage(Stage):
    """Grants slots in order: the head of `order` gets the next one, even if later steps are built already."""

    name = "acquire"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.order = self.queue

    def advance(self) -> bool:
        pipeline, order = self.pipeline, self.order
        moved = False
        while order and order[0].state == BUILT and len(pipeline.h2d.queue) < pipeline.queue_depth:
            slot = pipeline.slots.acquire_as(Slot)
            if slot is None:
                if not pipeline.slots.poll():
                    break
                continue
            step = order.popleft()
            step.slot = slot
            step.slot_index, step.generation = slot.index, slot.generation
            step.state = ACQUIRED
            moved = True
            if pipeline.allocate is not None:
                try:
                    pipeline.allocate(step, slot.index)
                except OrchError as exc:
                    self.fail_step(step, CopyError, "allocating its slot failed", exc)
                    continue
            step.acquire_ns = pipeline.now()
            pipeline.h2d.queue.append(step)
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
        launch_queue = pipeline.launch.queue
        moved = False
        while queue and len(launch_queue) < pipeline.queue_depth:
            step = queue.popleft()
            moved = True
            if step.staging is not None and step.slot is not None and not self._copy(step, step.staging, step.slot):
                continue
            launch_queue.append(step)
        return moved

    def _copy(self, step: Step, staging: Lease[Staging], slot: Slot) -> bool:
        pipeline, stream = self.pipeline, self.pipeline.copy_stream
        step.h2d_start_ns = pipeline.now()
        try:
            stream.isolate()
            step.copy_start = stream.record()
            if step.copy_nbytes:
                stream.copy(slot.image, pipeline.staging.items[staging.index].buffer, step.copy_nbytes)
        except OrchError as exc:
            self._end_copy(step, staging)
            self.fail_step(step, CopyError, "enqueuing the copy failed", exc)
            return False
        self._end_copy(step, staging)
        return True

    def _end_copy(self, step: Step, staging: Lease[Staging]) -> None:
        """Hand staging over to the copy's fence."""
        try:
            fence = step.copy_end = self.pipeline.copy_stream.record()
        except OrchError as exc:
            # Without a fence nobody can tell when the copy is over: staging stays leased until close.
            self.fail_step(step, CopyError, "recording the copy's fence failed", exc)
            return
        step.staging = None
        self.copying.append((fence, staging))

    def reclaim(self) -> bool:
        """Free the staging whose copies are done; copies of one stream end in order."""
        copying = self.copying
        freed = False
        while copying and copying[0][0].query():
            self.pipeline.staging.release(copying.popleft()[1])
            freed = True
        return freed

    def watch_oldest(self) -> None:
        """Ask for a wake-up when the oldest copy ends."""
        if self.copying and self.copying[0][0] is not self._watched:
            self._watched = self.copying[0][0]
            self.pipeline.watcher.watch(self._watched)
