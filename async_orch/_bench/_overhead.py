"""What a step costs: a program that does nothing, beside a pipeline of bare `asyncio.Queue` that does nothing."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._bench._checks import CheckFailed, check_order, check_slots, check_statistics
from async_orch.abc import ByteArray, Stream

__all__ = ["DEPTH", "STAGES", "Cost", "NoOp", "engine_cost", "queue_cost", "queue_pipeline", "timed", "verify"]

STAGES = 4
DEPTH = 2
WARM_UP = 200


class Cost(NamedTuple):
    """Of one step: wall clock, and CPU time of the whole process, in microseconds."""

    wall_us: float
    cpu_us: float


class NoOp(StepProgram[int, int]):
    """Does nothing, through all five stages: its output is 8 bytes that nobody writes."""

    slot = SlotSpec(image_nbytes=64, output_nbytes=8)

    def build(self, step: int, image: ByteArray) -> None:
        """Nothing."""

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        """Nothing."""

    def collect(self, step: int, output: ByteArray) -> int:
        return step


class _Echo(NoOp):
    """Of the same shape, with data: what is built must come back."""

    def build(self, step: int, image: ByteArray) -> None:
        image[:8].view("i8")[0] = step

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(_echo, slot.image, slot.output)

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view("i8")[0])


def _echo(image: ByteArray, output: ByteArray) -> None:
    output[:8] = image[:8]


async def queue_pipeline(steps: int) -> list[int]:
    """The yardstick: one task a stage, joined by queues of two."""
    queues: list[asyncio.Queue[int | None]] = [asyncio.Queue(DEPTH) for _ in range(STAGES + 1)]
    out: list[int] = []

    async def stage(i: int) -> None:
        while True:
            item = await queues[i].get()
            await queues[i + 1].put(item)
            if item is None:
                return

    async def source() -> None:
        for i in range(steps):
            await queues[0].put(i)
        await queues[0].put(None)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source())
        for i in range(STAGES):
            tasks.create_task(stage(i))
        while (item := await queues[STAGES].get()) is not None:
            out.append(item)
    return out


async def timed(steps: int, work: Callable[[int], Awaitable[list[int]]]) -> Cost:
    """Time `work`, after a garbage collection; what it gives must be 0, 1, 2, ..."""
    gc.collect()
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    out = await work(steps)
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    check_order(out, steps)
    return Cost(wall_ns / steps / 1e3, cpu_ns / steps / 1e3)


async def queue_cost(steps: int) -> Cost:
    """The cost of an item in `queue_pipeline`."""
    await queue_pipeline(WARM_UP)
    return await timed(steps, queue_pipeline)


async def engine_cost(steps: int, *, backend: str = "sim:instant", log: Path | None = None, slots: int = 3) -> Cost:
    """The cost of a step here. With `log`, until the last record is in the file, and without one dropped."""
    await verify(backend, slots)
    async with Orchestrator(NoOp(), backend, slots=slots, step_log=log) as orch:
        async for _ in orch.map(range(WARM_UP)):
            pass
        await orch.drain()

        async def run(steps: int) -> list[int]:
            out: list[int] = []
            async for result in orch.map(range(steps)):
                out.append(result.output)  # noqa: PERF401 - like the yardstick, and mypy knows the element
            if log is not None:
                await orch.drain()
            return out

        cost = await timed(steps, run)
    statistics = orch.statistics()
    check_statistics(statistics, steps + WARM_UP)
    if statistics.records_dropped:
        raise CheckFailed(f"the step log dropped {statistics.records_dropped} records")
    if log is not None:
        _check_log(log, steps + WARM_UP)
    return cost


async def verify(backend: str, slots: int) -> None:
    """Not timed: the same engine with data in it."""
    async with Orchestrator(_Echo(), backend, slots=slots) as orch:
        results = [result async for result in orch.map(range(WARM_UP))]
    check_order([result.output for result in results], WARM_UP)
    check_order([result.seq for result in results], WARM_UP)
    check_slots(results, slots)
    check_statistics(orch.statistics(), WARM_UP)


def _check_log(log: Path, steps: int) -> None:
    with log.open("rb") as file:
        found = sum(b'"event":"step.completed"' in line for line in file)
    if found != steps:
        raise CheckFailed(f"the step log holds {found} of {steps} records")
