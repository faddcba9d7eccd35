"""Overlap in real time on a simulated device: how near the steps come to the slowest stage, and to each other."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram, StepResult
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from async_orch.abc import ByteArray, Stream

__all__ = ["Overlapped", "Shape", "TimedSteps", "measure_feed", "measure_overlap"]

IMAGE_NBYTES = 300_000
SLOTS = 3
EDGE_SHARE = 0.1  # of the steps at either end: filling and draining


@dataclass(frozen=True, slots=True)
class Shape:
    """The times of a step in ms, and whether its build sleeps or computes."""

    build_ms: float = 2.0
    copy_ms: float = 3.0
    device_ms: float = 5.0
    build: str = "sleeping"


class Overlapped(NamedTuple):
    """What was reached: the bound (the slowest stage) over the time from one step to the next, that time in ms, and the
    device's idle time before a step, p50, in us."""

    share_of_bound: float
    step_ms: float
    bubble_us: float


class TimedSteps(StepProgram[int, int]):
    """Builds for a while, copies an image, computes for a while; the step's number goes all the way and comes back."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, output_nbytes=8)

    def __init__(self, shape: Shape) -> None:
        self._build_s = shape.build_ms / 1e3
        self._cost_ns = round(shape.device_ms * 1e6)
        self._computes = shape.build == "computing"

    def build(self, step: int, image: ByteArray) -> None:
        if self._computes:
            end_ns = time.thread_time_ns() + self._build_s * 1e9
            while time.thread_time_ns() < end_ns:
                pass
        else:
            time.sleep(self._build_s)
        image[:8].view("i8")[0] = step

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(_copy_number, slot.image, slot.output, cost_ns=self._cost_ns)

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view("i8")[0])


class FedSteps(TimedSteps):
    """Each step adds its number to the sum that the step before gave: late input, as a decoder's next token is."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, output_nbytes=8, feed_nbytes=8)

    def feed(self, step: int, previous: int | None, feed: ByteArray) -> None:
        feed.view("i8")[0] = previous or 0

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        if step == 0:
            stream.launch(_copy_number, slot.image, slot.output, cost_ns=self._cost_ns)
        else:
            stream.launch(_add_number, slot.image, slot.feed, slot.output, cost_ns=self._cost_ns)


def _copy_number(image: ByteArray, output: ByteArray) -> None:
    output[:8] = image[:8]


def _add_number(image: ByteArray, feed: ByteArray, output: ByteArray) -> None:
    output.view("i8")[0] = image[:8].view("i8")[0] + feed.view("i8")[0]


async def measure_overlap(shape: Shape, steps: int, *, build_in: Any = "thread") -> Overlapped:
    """Run steps of `shape` and check them; steps at the ends, where the pipeline fills and drains, do not count."""
    found = await _run(TimedSteps(shape), shape, steps, chain=False, build_in=build_in)
    check_order([result.output for result, _ in found], steps)
    return _figures(found, shape)


async def measure_feed(steps: int, device_ms: float = 5.0) -> Overlapped:
    """Chained steps, each of which needs what the one before gave: the bubble is what the device waits for that."""
    shape = Shape(build_ms=1.0, copy_ms=1.0, device_ms=device_ms)
    found = await _run(FedSteps(shape), shape, steps, chain=True, build_in="thread")
    check_order([round((8 * result.output + 1) ** 0.5) // 2 for result, _ in found], steps)  # sums 0, 1, 3, 6, ...
    return _figures(found, shape)


Arrived = tuple[StepResult[int], int]


async def _run(program: TimedSteps, shape: Shape, steps: int, *, chain: bool, build_in: Any) -> list[Arrived]:
    profile = {"name": "bench", "copy_bytes_per_s": IMAGE_NBYTES / shape.copy_ms * 1e3}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        path.write_text(json.dumps(profile))
        async with Orchestrator(program, f"sim:{path}", slots=SLOTS, build_in=build_in) as orch:
            found: list[Arrived] = []
            async for result in orch.map(range(steps), chain=chain):
                found.append((result, time.perf_counter_ns()))  # noqa: PERF401 - the time of each is the point
    results = [result for result, _ in found]
    check_order([result.seq for result in results], steps)
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), steps)
    timings = [result.timings for result in results]
    compute = [(t.device_start_ns, t.device_ns) for t in timings]
    copies = [(t.h2d_start_ns, t.h2d_ns) for t in timings]
    check_intervals("compute", compute, least_ns=round(shape.device_ms * 1e6))
    check_intervals("copy", copies, least_ns=round(shape.copy_ms * 1e6))
    return found


def _figures(found: Sequence[Arrived], shape: Shape) -> Overlapped:
    edge = max(round(len(found) * EDGE_SHARE), 1)
    inner = found[edge:-edge]
    step_ms = (inner[-1][1] - inner[0][1]) / (len(inner) - 1) / 1e6
    bubbles = [bubble for result, _ in inner if (bubble := result.timings.bubble_ns) is not None]
    bound_ms = max(shape.build_ms, shape.copy_ms, shape.device_ms)
    return Overlapped(bound_ms / step_ms, step_ms, statistics.median(bubbles) / 1e3)
