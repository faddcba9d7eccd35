"""Counts of an orchestrator at one moment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from async_orch._opening import Opened

__all__ = ["Statistics", "statistics_of"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts as of one moment; at any of them ``submitted == completed + failed + cancelled + pending``.

    Attributes
    ----------
    submitted, completed, failed, cancelled, pending:
        Steps accepted, and what became of them. ``cancelled`` holds detached ones too.
    in_flight, on_device:
        Accepted and not settled; launched and not settled.
    slots_total, slots_leased, slots_quarantined:
        Slots of the ring; held by steps or waiting for their last fence; out of use because that fence never came.
    staging_total, staging_leased, staging_quarantined:
        The same for staging buffers.
    queue_lengths:
        Steps waiting before each stage. A full ``acquire`` means too few slots or a slow device; a full ``build``
        means that building is the slowest part.
    step_path_allocs:
        Allocations on the step path since opening; in mode naive those of the slots. 0 is promise 1.
    records_dropped:
        Records that a step log could not keep up with or write.
    failed_unretrieved:
        Failed steps whose failure nobody has looked at.
    threads_abandoned:
        Threads that could not be joined because they are stuck in code of the caller, and worker processes that the
        system could not end.
    resident_nbytes:
        Device memory that programs allocated in ``open`` and hold now.
    """

    submitted: int
    completed: int
    failed: int
    cancelled: int
    pending: int
    in_flight: int
    on_device: int
    slots_total: int
    slots_leased: int
    slots_quarantined: int
    staging_total: int
    staging_leased: int
    staging_quarantined: int
    queue_lengths: Mapping[str, int]
    step_path_allocs: int
    records_dropped: int
    failed_unretrieved: int
    threads_abandoned: int
    resident_nbytes: int


def statistics_of(opened: Opened) -> Statistics:
    """Read the counts. On another thread than the loop's without a look at the fences: buffers change on the loop."""
    pipeline, counts, memory, writer = opened.pipeline, opened.counts, opened.memory, opened.writer
    if threading.get_ident() == opened.loop_thread:
        pipeline.h2d.reclaim()
        memory.poll()
    rings = [slot_class.ring for slot_class in memory.classes]
    return Statistics(
        submitted=counts.accepted,
        completed=counts.completed,
        failed=counts.failed,
        cancelled=counts.cancelled,
        pending=len(pipeline.live),
        in_flight=len(pipeline.live),
        on_device=pipeline.on_device,
        slots_total=sum(len(ring) for ring in rings),
        slots_leased=sum(ring.leased for ring in rings),
        slots_quarantined=sum(ring.quarantined for ring in rings),
        staging_total=len(memory.staging),
        staging_leased=memory.staging.leased,
        staging_quarantined=memory.staging.quarantined,
        queue_lengths=pipeline.queue_lengths(),
        step_path_allocs=opened.device.step_path_allocs + memory.step_path_allocs,
        records_dropped=0 if writer is None else writer.dropped,
        failed_unretrieved=counts.failed_unretrieved,
        threads_abandoned=opened.threads_abandoned,
        resident_nbytes=opened.device.resident_nbytes,
    )
