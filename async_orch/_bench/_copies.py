"""Copies of an image through the pipeline, beside bare copies that rotate over the very same buffers."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import NamedTuple

import numpy as np

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from async_orch.abc import ByteArray, Stream

__all__ = ["IMAGE_NBYTES", "Bandwidth", "measure_copies"]

IMAGE_NBYTES = 5_543_943
SLOTS = 3
TURNS = 4
EDGE_SHARE = 0.1


class Bandwidth(NamedTuple):
    """Decimal gigabytes a second, through the pipeline and bare, and their ratio."""

    pipeline_gb_per_s: float
    bare_gb_per_s: float
    ratio: float


class _Copy(StepProgram[int, int]):
    """An image with the step's number at both ends, and a kernel that carries both numbers to the output.

    Remembers the buffers that it was given: the bare copies go over the same ones, when no step is under way. Memory
    differs in speed from buffer to buffer, as its pages lie.
    """

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, output_nbytes=16)

    def __init__(self) -> None:
        self.staging: dict[int, ByteArray] = {}
        self.images: dict[int, ByteArray] = {}

    def build(self, step: int, image: ByteArray) -> None:
        self.staging.setdefault(image.ctypes.data, image)
        image[:8].view("i8")[0] = step
        image[-8:].view("i8")[0] = step

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(self._both_ends, slot.image, slot.output)

    def collect(self, step: int, output: ByteArray) -> int:
        first, last = output.view("i8").tolist()
        return int(first if first == last else -1)

    def _both_ends(self, image: ByteArray, output: ByteArray) -> None:
        self.images.setdefault(image.ctypes.data, image)
        output[:8] = image[:8]
        output[8:] = image[-8:]

    def bare_copy_s(self, copies: int) -> float:
        """Seconds a copy, on the calling thread."""
        staging, images = list(self.staging.values()), list(self.images.values())
        start_ns = time.perf_counter_ns()
        for i in range(copies):
            np.copyto(images[i % len(images)], staging[i % len(staging)])
        return (time.perf_counter_ns() - start_ns) / copies / 1e9


async def measure_copies(steps: int) -> Bandwidth:
    """On backend ``host``: pipeline and bare copies in turn, `steps` images each in all."""
    program, share = _Copy(), steps // TURNS
    edge = max(round(share * EDGE_SHARE), 1)
    pipeline_s, bare_s, results = [], [], []
    async with Orchestrator(program, "host", slots=SLOTS) as orch:
        for turn in range(TURNS):
            ends: list[int] = []
            async for result in orch.map(range(turn * share, (turn + 1) * share)):
                ends.append(time.perf_counter_ns())
                results.append(result)
            pipeline_s.append((ends[-1 - edge] - ends[edge]) / (share - 1 - 2 * edge) / 1e9)
            bare_s.append(await asyncio.to_thread(program.bare_copy_s, share))
    check_order([result.output for result in results], share * TURNS)
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), share * TURNS)
    check_intervals("copy", [(r.timings.h2d_start_ns, r.timings.h2d_ns) for r in results], least_ns=1)
    check_intervals("compute", [(r.timings.device_start_ns, r.timings.device_ns) for r in results], least_ns=1)
    step_s, copy_s = statistics.median(pipeline_s), statistics.median(bare_s)
    ratio = statistics.median(bare / step for bare, step in zip(bare_s, pipeline_s, strict=True))
    return Bandwidth(IMAGE_NBYTES / step_s / 1e9, IMAGE_NBYTES / copy_s / 1e9, ratio)
