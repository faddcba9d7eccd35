"""Buffers that nobody can account for: out of use for good, and replaced as long as that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from async_orch._ring import Lease
from async_orch._slot import Slot
from async_orch._staging import Staging
from async_orch.exceptions import OrchError, PipelineFailed

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["Quarantine"]


class Quarantine:
    """The one place where a ring loses a buffer, so that nobody is left waiting on an empty one.

    A buffer is lost when a hook that may still touch it does not return, or when the device refuses the fence that
    would tell the end of its work. At most ``max_quarantined`` losses are replaced; the next fails the pipeline.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def take(self, staging: Lease[Staging] | None, slot: Slot | None) -> bool:
        """Take the buffers of one step out of use and put new ones in their place; False if the pipeline failed."""
        pipeline = self._pipeline
        if staging is not None:
            staging.quarantine()
        if slot is not None:
            slot.ring.quarantine(slot)
        if pipeline.failure is not None:
            return False
        if slot is not None and not pipeline.memory.has_memory:
            # An engine indexes buffers of its own: an index beyond them would be no replacement.
            if slot.ring.quarantined == len(slot.ring):
                pipeline.settling.fail(PipelineFailed("every slot index is lost to hooks that do not return"))
                return False
            return True
        limit, counts = pipeline.config.max_quarantined, pipeline.counts
        if counts.replaced >= limit:
            text = f"max_quarantined={limit} buffers are lost to hooks that do not return or fences that cannot be had"
            pipeline.settling.fail(PipelineFailed(text))
            return False
        counts.replaced += 1
        try:
            if staging is not None:
                pipeline.memory.replace_staging()
            if slot is not None:
                pipeline.memory.replace_slot(slot.ring)
        except OrchError as exc:
            pipeline.settling.fail(PipelineFailed(f"a quarantined buffer could not be replaced: {exc}"), exc)
            return False
        return True
