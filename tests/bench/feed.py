"""The device's idle time before a step that needs the one before: ``python -m tests.bench.feed [--out DIR]``.

Device time 5 ms on ``sim``, in real time. Build and copy run ahead; between the end of one step's kernels and the
start of the next lies what late input costs: the output's copy, `collect`, `feed`, the feed's copy and the launch.
Beside it the same chain by hand: a thread that sleeps 5 ms, tells the loop, and is told to go on.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from functools import partial

from async_orch._bench import measure_feed
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, single

STEPS = 150
DEVICE_MS = 5.0


def fed() -> Sample:
    found = on_loop(partial(measure_feed, STEPS, DEVICE_MS))
    return {"bubble_us": found.bubble_us, "step_ms": found.step_ms}


async def _bare() -> float:
    """Idle time in us, p50, of a thread that does nothing but wait to be told."""
    loop = asyncio.get_running_loop()
    told = threading.Semaphore(0)
    idle: list[int] = []
    finished = asyncio.Event()

    def device() -> None:
        for _ in range(STEPS):
            ended_ns = time.perf_counter_ns()
            loop.call_soon_threadsafe(told.release)
            told.acquire()
            idle.append(time.perf_counter_ns() - ended_ns)
            time.sleep(DEVICE_MS / 1e3)
        loop.call_soon_threadsafe(finished.set)

    thread = threading.Thread(target=device)
    thread.start()
    await finished.wait()
    thread.join()
    return statistics.median(idle) / 1e3


def bare() -> Sample:
    return {"bubble_us": on_loop(_bare)}


def figures(samples: Samples) -> list[Figure]:
    return [
        single(
            samples, "fed", "bubble_us", "feed_bubble", "late input, device 5 ms: idle before a step, p50", unit="us",
            goal=("<=", 300),
        ),
        single(samples, "bare", "bubble_us", "feed_bare", "a thread and the loop, there and back, p50", unit="us"),
    ]  # fmt: skip


BENCH = Bench("feed", {"fed": fed, "bare": bare}, figures, rounds=7, about={"steps": STEPS, "device_ms": DEVICE_MS})

if __name__ == "__main__":
    main(BENCH)
