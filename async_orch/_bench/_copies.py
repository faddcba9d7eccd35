"""Copies of an image through the pipeline, beside bare copies that rotate over the very same buffers.

The bare copies come twice: alone, and beside a thread that is as busy in Python as the event loop was in the pipeline.
On two hardware threads of one core the second is what is there to reach.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
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
    """Decimal gigabytes a second, through the pipeline, bare, and bare beside a busy thread.

    ``ratio``: pipeline / bare, ``beside_ratio``: pipeline / beside. ``loop_us``: CPU time of the loop's thread a step.
    """

    pipeline_gb_per_s: float
    bare_gb_per_s: float
    ratio: float
    beside_gb_per_s: float
    beside_ratio: float
    loop_us: float


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

    def beside_s(self, copies: int, busy_s: float) -> float:
        """Seconds a copy as `bare_copy_s`, beside a thread that computes `busy_s` in each time that a copy takes."""
        rest_s = self.bare_copy_s(copies) - busy_s
        over = threading.Event()

        def compute() -> None:
            while not over.wait(max(rest_s, 0)):
                until_s = time.thread_time() + busy_s
                while time.thread_time() < until_s:
                    pass

        thread = threading.Thread(target=compute)
        thread.start()
        try:
            return self.bare_copy_s(copies)
        finally:
            over.set()
            thread.join()


async def measure_copies(steps: int) -> Bandwidth:
    """On backend ``host``: pipeline and bare copies in turn, `steps` images each in all."""
    program, share = _Copy(), steps // TURNS
    edge = max(round(share * EDGE_SHARE), 1)
    pipeline_s, bare_s, beside_s, loop_s, results = [], [], [], [], []
    async with Orchestrator(program, "host", slots=SLOTS) as orch:
        for turn in range(TURNS):
            ends: list[int] = []
            began_s = time.thread_time()
            async for result in orch.map(range(turn * share, (turn + 1) * share)):
                ends.append(time.perf_counter_ns())
                results.append(result)
            pipeline_s.append((ends[-1 - edge] - ends[edge]) / (share - 1 - 2 * edge) / 1e9)
            loop_s.append((time.thread_time() - began_s) / share)
            bare_s.append(await asyncio.to_thread(program.bare_copy_s, share))
            beside_s.append(await asyncio.to_thread(program.beside_s, share, loop_s[-1]))
    check_order([result.output for result in results], share * TURNS)
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), share * TURNS)
    check_intervals("copy", [(r.timings.h2d_start_ns, r.timings.h2d_ns) for r in results], least_ns=1)
    check_intervals("compute", [(r.timings.device_start_ns, r.timings.device_ns) for r in results], least_ns=1)

    def gb_per_s(seconds: list[float]) -> float:
        return IMAGE_NBYTES / statistics.median(seconds) / 1e9

    def ratio(bare: list[float]) -> float:
        return statistics.median(other / step for other, step in zip(bare, pipeline_s, strict=True))

    return Bandwidth(
        gb_per_s(pipeline_s),
        gb_per_s(bare_s),
        ratio(bare_s),
        gb_per_s(beside_s),
        ratio(beside_s),
        statistics.median(loop_s) * 1e6,
    )
