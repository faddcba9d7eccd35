"""Leases left behind when something goes wrong, here and in the pipelines of others: ``python tests/bench/leaks.py``.

The task is the same for all: items pass through four stages joined by queues of two. Each item takes a lease when it
is made, and the consumer gives it back. Code of the caller is written with care: a stage or consumer that is
interrupted by an exception or a cancel gives back the lease of the item in its hands. What is counted as leaked are
therefore the leases of the items that were in queues, or on their way from one stage to the next, when

raise
    the third stage raises at its twelfth item, and the consumer gets to see that;
break
    the consumer leaves its loop after eight items;
cancel
    the consumer's task is cancelled after eight items.

For async_orch the leases are those of its staging buffers and slots, which are not the caller's business. SPDL runs on
a loop and threads of its own, so its consumer waits for items on a thread: one that arrives there after a cancel counts
as leaked. Every variant is left the way its documentation says, and gets time to clean up and a garbage collection
before the count. ``--json`` prints the table as JSON. Needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import importlib.metadata
import json
import logging
import platform
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream

STEPS = 40
FAILS_AT = 12
STOPS_AFTER = 8
DEPTH = 2
STAGES = 4
SCENARIOS = ("raise", "break", "cancel")


class PlannedFailure(Exception):
    """What the third stage raises."""


class Pool:
    """Leases, counted."""

    def __init__(self) -> None:
        self.acquired = 0
        self.held: set[int] = set()

    def acquire(self) -> int:
        self.acquired += 1
        self.held.add(self.acquired)
        return self.acquired

    def release(self, lease: int) -> None:
        self.held.discard(lease)

    async def source(self) -> AsyncIterator[int]:
        """Makes items, each with a lease."""
        for _ in range(STEPS):
            lease = self.acquire()
            try:
                await asyncio.sleep(0)
            except BaseException:
                self.release(lease)
                raise
            yield lease

    def stage(self, index: int, scenario: str) -> Callable[[int], Awaitable[int]]:
        """A stage that gives back the lease in its hands if it is interrupted."""

        async def work(lease: int) -> int:
            try:
                await asyncio.sleep(0.0005)
                if scenario == "raise" and index == 2 and lease == FAILS_AT:
                    raise PlannedFailure
            except BaseException:
                self.release(lease)
                raise
            return lease

        return work

    async def consume(self, items: AsyncIterator[int], scenario: str) -> None:
        """The consumer; stops early, or cancels itself, as the scenario says."""
        count = 0
        async for lease in items:
            try:
                await asyncio.sleep(0.001)
            finally:
                self.release(lease)
            count += 1
            if count == STOPS_AFTER and scenario == "break":
                return
            if count == STOPS_AFTER and scenario == "cancel":
                task = asyncio.current_task()
                if task is not None:
                    task.cancel()


async def anyio_streams(pool: Pool, scenario: str) -> None:
    import anyio

    async def worker(work: Callable[[int], Awaitable[int]], receive: Any, send: Any) -> None:
        async with receive, send:
            async for lease in receive:
                await send.send(await work(lease))

    async def feed(send: Any) -> None:
        async with send:
            async for lease in pool.source():
                await send.send(lease)

    async with anyio.create_task_group() as tasks:
        send, receive = anyio.create_memory_object_stream[int](DEPTH)
        tasks.start_soon(feed, send)
        for index in range(STAGES):
            next_send, next_receive = anyio.create_memory_object_stream[int](DEPTH)
            tasks.start_soon(worker, pool.stage(index, scenario), receive, next_send)
            receive = next_receive
        async with receive:
            await pool.consume(receive, scenario)
        tasks.cancel_scope.cancel()


async def aiostream_pipes(pool: Pool, scenario: str) -> None:
    from aiostream import pipe, stream

    def one_argument(work: Callable[[int], Awaitable[int]]) -> Callable[..., Awaitable[int]]:
        async def call(lease: int, *_: Any) -> int:
            return await work(lease)

        return call

    items: Any = stream.iterate(pool.source())
    for index in range(STAGES):
        items = items | pipe.map(one_argument(pool.stage(index, scenario)), ordered=True, task_limit=DEPTH)
    async with items.stream() as streamer:
        await pool.consume(streamer, scenario)


async def pypeln_tasks(pool: Pool, scenario: str) -> None:
    import pypeln

    items: Any = pool.source()
    for index in range(STAGES):
        items = pypeln.task.map(pool.stage(index, scenario), items, workers=1, maxsize=DEPTH)
    await pool.consume(aiter(items), scenario)


async def spdl_pipeline(pool: Pool, scenario: str) -> None:
    from spdl.pipeline import PipelineBuilder

    logging.getLogger("spdl").setLevel(logging.CRITICAL)
    builder: Any = PipelineBuilder().add_source(pool.source())
    for index in range(STAGES):
        builder = builder.pipe(pool.stage(index, scenario))
    pipeline = builder.add_sink(DEPTH).build(num_threads=1, max_failures=0)
    loop = asyncio.get_running_loop()

    async def items() -> AsyncIterator[int]:
        # The pipeline has a loop of its own on a thread; a consumer on ours waits for items on another.
        iterator = pipeline.get_iterator()
        while (lease := await loop.run_in_executor(None, next, iterator, None)) is not None:
            yield lease

    with pipeline.auto_stop():
        await pool.consume(items(), scenario)


class _Program(StepProgram[int, int]):
    """The four stages as hooks."""

    slot = SlotSpec(image_nbytes=8, workspace_nbytes=8, output_nbytes=8)

    def __init__(self, pool: Pool, scenario: str) -> None:
        self.pool = pool
        self.scenario = scenario
        self.built = 0

    def build(self, step: int, image: ByteArray) -> int | None:
        self.pool.acquired += 1  # a staging buffer
        self.built += 1
        if self.scenario == "raise" and self.built == FAILS_AT:
            raise PlannedFailure
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self.pool.acquired += 1  # a slot
        stream.launch(_nothing, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return step


def _nothing(output: ByteArray) -> None:
    """The kernel."""


async def ours(pool: Pool, scenario: str) -> None:
    orch = Orchestrator(_Program(pool, scenario), "host", slots=3, queue_depth=DEPTH)
    try:
        async with orch:

            async def items() -> AsyncGenerator[int, None]:
                results = orch.map(range(STEPS))
                try:
                    async for result in results:
                        yield result.output
                finally:
                    await results.aclose()

            async with contextlib.aclosing(items()) as results:
                await pool.consume(results, scenario)
    finally:
        statistics = orch.statistics()
        pool.held = set(range(statistics.slots_leased + statistics.staging_leased))


VARIANTS: dict[str, tuple[str, Callable[[Pool, str], Awaitable[None]]]] = {
    "async_orch": ("async-orch", ours),
    "anyio streams": ("anyio", anyio_streams),
    "aiostream": ("aiostream", aiostream_pipes),
    "SPDL": ("spdl-core", spdl_pipeline),
    "pypeln": ("pypeln", pypeln_tasks),
}


async def measure(run: Callable[[Pool, str], Awaitable[None]], scenario: str) -> tuple[int, int, bool]:
    """Leases leaked and acquired in one run, and whether the failure of a stage came out of it."""
    pool = Pool()
    task = asyncio.create_task(_came_out(run, pool, scenario))
    came_out = False
    with contextlib.suppress(asyncio.CancelledError):
        came_out = await task
    del task
    for _ in range(20):
        await asyncio.sleep(0.01)
        gc.collect()
    return len(pool.held), pool.acquired, came_out


async def _came_out(run: Callable[[Pool, str], Awaitable[None]], pool: Pool, scenario: str) -> bool:
    try:
        await run(pool, scenario)
    except Exception:
        if scenario != "raise":
            raise
        # Each library wraps the stage's exception in its own way.
        return True
    return False


def run_all(rounds: int) -> list[dict[str, Any]]:
    """One row for each library and scenario: the least and the most that leaked over the rounds."""
    rows = []
    for name, (package, run) in VARIANTS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: not installed", file=sys.stderr)
            continue
        for scenario in SCENARIOS:
            results = [asyncio.run(measure(run, scenario)) for _ in range(rounds)]
            leaked = sorted(result[0] for result in results)
            rows.append(
                {
                    "library": name,
                    "version": version,
                    "scenario": scenario,
                    "leaked_least": leaked[0],
                    "leaked_most": leaked[-1],
                    "acquired_most": max(result[1] for result in results),
                    "failure_came_out": sum(result[2] for result in results),
                    "rounds": rounds,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table of leaked/acquired."""
    lines = ["| library | " + " | ".join(SCENARIOS) + " |", "|---|" + "---|" * len(SCENARIOS)]
    for name in dict.fromkeys(row["library"] for row in rows):
        own = {row["scenario"]: row for row in rows if row["library"] == name}
        cells = []
        for scenario in SCENARIOS:
            row = own[scenario]
            least, most = row["leaked_least"], row["leaked_most"]
            cell = f"{most if least == most else f'{least} to {most}'} / {row['acquired_most']}"
            if scenario == "raise" and row["failure_came_out"] < row["rounds"]:
                cell += f" (failure came out in {row['failure_came_out']} of {row['rounds']})"
            cells.append(cell)
        lines.append(f"| {name} {own['raise']['version']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Leases left behind when something goes wrong.")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each library and scenario")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # what a library leaves behind complains at length
    rows = run_all(options.rounds)
    if options.json:
        print(json.dumps({"python": platform.python_version(), "rows": rows}, indent=2))
    else:
        print(f"leaked / acquired leases, {options.rounds} rounds, Python {platform.python_version()}\n\n{table(rows)}")


if __name__ == "__main__":
    main()
