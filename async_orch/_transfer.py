"""The acquire and h2d stages: a step gets its slot, and its image goes there."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from async_orch._ring import Lease
from async_orch._slot import Slot
from async_orch._stage import Stage
from async_orch._staging import Staging
from async_orch._step import ACQUIRED, BUILT, Step
from async_orch._uploads import DeltaUploads
from async_orch.abc import Fence
from async_orch.exceptions import CopyError, OrchError, PipelineFailed

if TYPE_CHECKING:
    from async_orch._memory_plan import SlotClass
    from async_orch._pipeline import Pipeline

__all__ = ["AcquireStage", "H2DStage"]


class AcquireStage(Stage):
    """Grants slots in order: the head of the queue gets the next one, even if later steps are built already."""

    name = "acquire"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        classes = pipeline.memory.classes
        self.only = classes[0].ring if len(classes) == 1 else None

    def advance(self) -> bool:
        pipeline, order = self.pipeline, self.queue
        only = self.only
        if only is not None and not only.free_indices and not only.parked and order[0].slot is None:
            return False  # told at once, since each step is here several times before it gets its slot
        memory, to_copy = pipeline.memory, pipeline.h2d.queue
        moved = False
        while order and order[0].state == BUILT and len(to_copy) < pipeline.queue_depth:
            step = order[0]
            slot_class = memory.class_of(step)
            slot = step.slot
            if slot is None:
                slot = slot_class.ring.acquire_as(Slot)
                if slot is None:
                    break
                step.slot = slot
                step.slot_index, step.generation = slot.index, slot.generation
            order.popleft()
            step.state = ACQUIRED
            moved = True
            if (memory.naive or step.extras is not None) and not self.prepare(step, slot_class, slot):
                continue
            slot.fixed_image = step.program.fixed_image
            step.acquire_ns = pipeline.now()
            to_copy.append(step)
        return moved

    def prepare(self, step: Step, slot_class: SlotClass, slot: Slot) -> bool:
        """Allocate the slot (mode naive) or grow it; False if that failed, and the step or the pipeline with it."""
        pipeline = self.pipeline
        try:
            pipeline.memory.prepare_slot(slot_class, slot.item, step)
        except PipelineFailed as exc:
            pipeline.settling.fail(exc, exc.__cause__)
            return False
        except OrchError as exc:
            self.fail_step(step, CopyError, "its slot could not be allocated", exc)
            return False
        step.acquire_ns = pipeline.now()
        return True


class H2DStage(Stage):
    """Enqueues the copy of the image; its fence gives staging back.

    Where host and device share the memory of images, slot and staging exchange theirs instead. What staging gets is
    idle, as the slot's last fence was done before this step got it; so all that holds for leases holds unchanged.
    """

    name = "h2d"

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.copying: deque[tuple[Fence, Lease[Staging]]] = deque()
        self._watched: Fence | None = None
        self.shares_images = pipeline.memory.shares_images
        self.uploads = DeltaUploads(pipeline, self) if pipeline.memory.delta else None
        self.comparing: Mapping[Step, object] = {} if self.uploads is None else self.uploads.running
        self.pool = None if self.uploads is None else self.uploads.pool

    def advance(self) -> bool:
        queue, depth, comparing = self.queue, self.pipeline.queue_depth, self.comparing
        to_launch = self.pipeline.launch.queue
        moved = False if self.uploads is None else self._compare(self.uploads)
        while queue and len(to_launch) < depth and queue[0] not in comparing:
            step = queue.popleft()
            moved = True
            if step.staging is None or self.copy(step):
                to_launch.append(step)
        return moved

    def _compare(self, uploads: DeltaUploads) -> bool:
        """Take the comparisons that are done and begin those of all steps here, ahead of their turn to be copied."""
        moved = uploads.take_finished()
        for step in tuple(self.queue):
            uploads.begin(step)
        return moved

    def copy(self, step: Step) -> bool:
        """Enqueue the copy of the step's image, if it must be copied; False if that failed, and the step with it."""
        staging, slot = step.staging, step.slot
        if staging is None or slot is None:
            return False
        pipeline = self.pipeline
        if self.shares_images and slot.item.take_image(pipeline.staging.items[staging.index]):
            step.note_shared_image()
            step.staging = None
            staging.release()
            return True
        stream, image = pipeline.copy_stream, slot.item.image
        step.h2d_start_ns = pipeline.now()
        try:
            if image is None or step.delta is not None:
                step.copy_start = stream.begin()
                if image is not None and step.delta is not None:
                    buffer = pipeline.staging.items[staging.index].buffer
                    for start, nbytes in step.delta.ranges:
                        stream.copy(image, buffer, nbytes, dst_offset=start, src_offset=start)
                fence = step.copy_end = stream.record()
            else:
                buffer = pipeline.staging.items[staging.index].buffer
                step.copy_start, fence = stream.begin_copy(image, buffer, step.copy_nbytes)
                step.copy_end = fence
        except OrchError as exc:
            self.copy_failed(step, exc)
            return False
        step.staging = None
        if step.delta is not None and slot.item.shadow is not None:
            slot.item.shadow.copied(fence)
        if not self.copying and fence.query():
            staging.release()
        else:
            self.copying.append((fence, staging))
        return True

    def copy_failed(self, step: Step, cause: OrchError) -> None:
        """Part of it may be enqueued: staging and slot come back behind a fence, or never without one."""
        staging, step.staging = step.staging, None
        try:
            fence = step.copy_end = self.pipeline.copy_stream.record()
        except OrchError as unfenced:
            slot, step.slot = step.slot, None
            what = "enqueuing the copy, and then a fence behind what may be enqueued, failed"
            self.fail_step(step, CopyError, what, unfenced if self.is_lost(unfenced) else cause)
            self.pipeline.quarantine.take(staging, slot)
            return
        if staging is not None:
            self.copying.append((fence, staging))
        self.fail_step(step, CopyError, "enqueuing the copy failed", cause)

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
