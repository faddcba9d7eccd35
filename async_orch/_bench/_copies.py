"""Copies of an image through the pipeline, beside bare copies that rotate over buffers of the same number and size."""

from __future__ import annotations

import time
from typing import NamedTuple

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram, open_backend
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from async_orch.abc import ByteArray, Stream

__all__ = ["IMAGE_NBYTES", "Bandwidth", "measure_copies"]

IMAGE_NBYTES = 5_543_943
SLOTS = 3
QUEUE_DEPTH = 2
UNDER_WAY = 3  # bare copies enqueued and not waited for: the stream never runs dry
EDGE_SHARE = 0.1


class Bandwidth(NamedTuple):
    """Decimal gigabytes a second, through the pipeline and bare, and their ratio."""

    pipeline_gb_per_s: float
    bare_gb_per_s: float
    ratio: float


class _Copy(StepProgram[int, int]):
    """An image with the step's number at both ends, and a kernel that carries both numbers to the output."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, output_nbytes=16)

    def build(self, step: int, image: ByteArray) -> None:
        image[:8].view("i8")[0] = step
        image[-8:].view("i8")[0] = step

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(_both_ends, slot.image, slot.output)

    def collect(self, step: int, output: ByteArray) -> int:
        first, last = output.view("i8").tolist()
        return int(first if first == last else -1)


def _both_ends(image: ByteArray, output: ByteArray) -> None:
    output[:8] = image[:8]
    output[8:] = image[-8:]


async def measure_copies(steps: int) -> Bandwidth:
    """On backend ``host``, each way the copies of `steps` images: half of the bare ones before, half after."""
    before_s = _bare_copy_s(steps // 2)
    ends: list[int] = []
    async with Orchestrator(_Copy(), "host", slots=SLOTS, queue_depth=QUEUE_DEPTH) as orch:
        results = []
        async for result in orch.map(range(steps)):
            ends.append(time.perf_counter_ns())
            results.append(result)
    check_order([result.output for result in results], steps)
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), steps)
    check_intervals("copy", [(r.timings.h2d_start_ns, r.timings.h2d_ns) for r in results], least_ns=1)
    bare_s = (before_s + _bare_copy_s(steps // 2)) / 2
    edge = max(round(steps * EDGE_SHARE), 1)
    step_s = (ends[-1 - edge] - ends[edge]) / (steps - 1 - 2 * edge) / 1e9
    return Bandwidth(IMAGE_NBYTES / step_s / 1e9, IMAGE_NBYTES / bare_s / 1e9, bare_s / step_s)


def _bare_copy_s(copies: int) -> float:
    """Seconds a copy, by the same backend's copy stream and nothing else; a few are always enqueued."""
    backend = open_backend("host")
    try:
        stream = backend.create_stream("copy")
        staging = [backend.alloc_host(IMAGE_NBYTES) for _ in range(QUEUE_DEPTH + 2)]
        images = [backend.alloc(IMAGE_NBYTES) for _ in range(SLOTS)]
        for buffer in (*staging, *images):
            backend.touch(buffer)
        fences = []
        start = time.perf_counter_ns()
        for i in range(copies):
            stream.copy(images[i % SLOTS], staging[i % len(staging)], IMAGE_NBYTES)
            fences.append(stream.record())
            if i >= UNDER_WAY:
                fences[i - UNDER_WAY].synchronize()
        fences[-1].synchronize()
        spent_ns = time.perf_counter_ns() - start
        for buffer in (*staging, *images):
            buffer.free()
        return spent_ns / copies / 1e9
    finally:
        backend.close()
