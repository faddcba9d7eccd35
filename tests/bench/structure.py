"""The least that an engine of this structure can cost: ``python -m tests.bench.structure [--out DIR]``.

CPU time of the thread a no-op step. All move the same steps through four stages with queues of 2:

queue
    The yardstick: one task a stage, joined by `asyncio.Queue`.
coroutines
    One task a stage, joined by a hand-written bounded channel (a deque and futures): the least that stage
    coroutines can cost.
pump
    One synchronous function over four deques, no task a stage, no fences or records: the least that the chosen
    structure can cost.
engine
    async_orch itself on ``sim:instant``: the pump with leases, five fences a step, timings, handles.

Each checks that every item came out once and in order.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from async_orch import Orchestrator
from async_orch._bench._overhead import DEPTH, STAGES, NoOp, queue_pipeline
from tests.bench._kit import Bench, CheckFailed, Figure, Sample, Samples, main, on_loop, quotient, single

STEPS = 4_000
TITLES = {
    "coroutines": "a task a stage over hand-written channels / asyncio.Queue",
    "pump": "one synchronous pump, nothing else / asyncio.Queue",
    "engine": "the engine with opening and closing, 4,000 steps / asyncio.Queue",
}


class Channel:
    """A bounded queue for one producer and one consumer, with at most one future on either side."""

    def __init__(self) -> None:
        self.items: deque[int | None] = deque()
        self.getter: asyncio.Future[None] | None = None
        self.putter: asyncio.Future[None] | None = None

    async def get(self) -> int | None:
        while not self.items:
            self.getter = asyncio.get_running_loop().create_future()
            await self.getter
        item = self.items.popleft()
        if self.putter is not None and not self.putter.done():
            self.putter.set_result(None)
        return item

    async def put(self, item: int | None) -> None:
        while len(self.items) >= DEPTH:
            self.putter = asyncio.get_running_loop().create_future()
            await self.putter
        self.items.append(item)
        if self.getter is not None and not self.getter.done():
            self.getter.set_result(None)


async def coroutines(count: int) -> list[int]:
    """One task a stage over hand-written channels."""
    channels = [Channel() for _ in range(STAGES + 1)]
    out: list[int] = []

    async def stage(i: int) -> None:
        while True:
            item = await channels[i].get()
            await channels[i + 1].put(item)
            if item is None:
                return

    async def source() -> None:
        for i in range(count):
            await channels[0].put(i)
        await channels[0].put(None)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(source())
        for i in range(STAGES):
            tasks.create_task(stage(i))
        while (item := await channels[STAGES].get()) is not None:
            out.append(item)
    return out


async def pump(count: int) -> list[int]:
    """One synchronous function over four deques; a turn for the loop every 32 items."""
    queues: list[deque[int]] = [deque() for _ in range(STAGES + 1)]
    out: list[int] = []

    def run() -> None:
        moved = True
        while moved:
            moved = False
            for i in range(STAGES - 1, -1, -1):
                while queues[i] and len(queues[i + 1]) < DEPTH:
                    queues[i + 1].append(queues[i].popleft())
                    moved = True

    for i in range(count):
        queues[0].append(i)
        run()
        while queues[STAGES]:
            out.append(queues[STAGES].popleft())
        if i % 32 == 0:
            await asyncio.sleep(0)
    return out


async def engine(count: int) -> list[int]:
    """async_orch on a device that costs nothing."""
    async with Orchestrator(NoOp(), "sim:instant") as orch:
        return [result.seq async for result in orch.map(range(count))]


VARIANTS: dict[str, Callable[[int], Awaitable[list[int]]]] = {
    "queue": queue_pipeline,
    "coroutines": coroutines,
    "pump": pump,
    "engine": engine,
}


async def timed(variant: Callable[[int], Awaitable[list[int]]], count: int) -> float:
    """Microseconds of CPU time of this thread a step; the result is checked."""
    gc.collect()
    start = time.thread_time_ns()
    out = await variant(count)
    elapsed = time.thread_time_ns() - start
    if out != list(range(count)):
        raise CheckFailed("items were lost, doubled or reordered")
    return elapsed / count / 1000


def one(name: str) -> Sample:
    return {"cpu_us": on_loop(partial(timed, VARIANTS[name], STEPS))}


def figures(samples: Samples) -> list[Figure]:
    queue = ("queue", "cpu_us")
    return [
        single(samples, *queue, "structure_queue", "asyncio.Queue", unit="us"),
        *(quotient(samples, (name, "cpu_us"), queue, f"structure_{name}", TITLES[name], unit="x") for name in TITLES),
    ]


BENCH = Bench("structure", {name: partial(one, name) for name in VARIANTS}, figures, rounds=15, about={"steps": STEPS})

if __name__ == "__main__":
    main(BENCH)
