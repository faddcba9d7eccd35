"""The figures of ``async-orch bench``: measured in rounds, the parts of each ratio in turn."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from async_orch import Orchestrator
from async_orch._bench._checks import CheckFailed
from async_orch._bench._copies import measure_copies
from async_orch._bench._overhead import NoOp, engine_cost, queue_cost
from async_orch._bench._overlap import Shape, measure_feed, measure_overlap
from async_orch._bench._wakeups import threaded_cost, wakeup_cost

__all__ = ["FIGURES", "Measured", "measure_all"]


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured figure: the median of the rounds with the least and the most of them, and what it is held against.

    ``beside`` is the other side of a ratio, in words with its own figure. ``value`` is None if the check of a round
    failed; ``why_not`` then says which.
    """

    name: str
    title: str
    value: float | None
    least: float | None
    most: float | None
    unit: str
    beside: str
    why_not: str | None = None


class _Round(NamedTuple):
    value: float
    beside: str


async def _overhead(size: float) -> _Round:
    steps = max(round(4_000 * size), 500)
    queue, engine = await queue_cost(steps), await engine_cost(steps)
    return _Round(engine.wall_us / queue.wall_us, f"{engine.wall_us:.1f} us a step against {queue.wall_us:.1f} us")


async def _logged(size: float) -> _Round:
    steps = max(round(8_000 * size), 500)
    with tempfile.TemporaryDirectory() as folder:
        queue = await queue_cost(steps)
        engine = await engine_cost(steps, log=Path(folder) / "bench.jsonl")
    return _Round(engine.wall_us / queue.wall_us, f"{engine.wall_us:.1f} us a step against {queue.wall_us:.1f} us")


async def _threads(size: float) -> _Round:
    steps = max(round(3_000 * size), 300)
    least, cost = await wakeup_cost(steps), await threaded_cost(steps)
    return _Round(cost.wall_us, f"threads that do nothing else: {least.wall_us:.1f} us")


async def _overlap(size: float) -> _Round:
    found = await measure_overlap(Shape(), max(round(80 * size), 30))
    return _Round(found.share_of_bound, f"{found.step_ms:.2f} ms a step, the bound is 5 ms")


async def _tenth(size: float) -> _Round:
    found = await measure_overlap(Shape(0.2, 0.3, 0.5), max(round(600 * size), 60))
    return _Round(found.share_of_bound, f"{found.step_ms:.3f} ms a step, the bound is 0.5 ms")


async def _feed(size: float) -> _Round:
    found = await measure_feed(max(round(60 * size), 30))
    return _Round(found.bubble_us, f"{found.step_ms:.2f} ms a step of 5 ms")


async def _copies(size: float) -> _Round:
    found = await measure_copies(max(round(200 * size), 40))
    rates = found.pipeline_gb_per_s, found.bare_gb_per_s, found.beside_gb_per_s
    detail = "{:.1f} GB/s; bare {:.1f}, beside a busy thread {:.1f}".format(*rates)
    return _Round(found.ratio, detail)


async def _opening(size: float) -> _Round:
    start = time.perf_counter_ns()
    async with Orchestrator(NoOp(), "host") as orch:
        opened = time.perf_counter_ns()
        if (await orch.run(1)).output != 1:
            raise CheckFailed("the first step did not come back")
        stepped = time.perf_counter_ns()
    return _Round((stepped - start) / 1e6, f"of it opening {(opened - start) / 1e6:.2f} ms")


class _Recipe(NamedTuple):
    name: str
    title: str
    unit: str
    measure: Callable[[float], Coroutine[Any, Any, _Round]]


FIGURES: Final = (
    _Recipe("overhead", "a step that does nothing / asyncio.Queue, 4 stages", "x", _overhead),
    _Recipe("overhead_logged", "the same with a step log, flushed, none dropped", "x", _logged),
    _Recipe("threads", "a step on a device of threads (host)", "us", _threads),
    _Recipe("overlap", "build 2, copy 3, device 5 ms: share of the bound", "", _overlap),
    _Recipe("overlap_tenth", "build 0.2, copy 0.3, device 0.5 ms: share of the bound", "", _tenth),
    _Recipe("feed", "late input, device 5 ms: idle before a step, p50", "us", _feed),
    _Recipe("copies", "copies of 5.5 MB through the pipeline / bare", "x", _copies),
    _Recipe("opening", "open, and the first step", "ms", _opening),
)
"""What is measured, in order."""


def measure_all(rounds: int = 3, size: float = 1.0) -> Iterator[Measured]:
    """Measure the figures one after the other, each in `rounds` rounds; `size` scales the number of steps.

    A figure of which a round fails its check comes without a value. About three seconds a round at size 1.
    """
    for recipe in FIGURES:
        found: list[_Round] = []
        why_not = None
        for _ in range(rounds):
            try:
                found.append(asyncio.run(recipe.measure(size)))
            except CheckFailed as error:
                why_not = str(error)
                break
        yield _figure(recipe, found, why_not)


def _figure(recipe: _Recipe, found: list[_Round], why_not: str | None) -> Measured:
    if why_not is not None:
        return Measured(recipe.name, recipe.title, None, None, None, recipe.unit, "", why_not)
    values = sorted(item.value for item in found)
    middle = min(found, key=lambda item: abs(item.value - statistics.median(values)))
    return Measured(
        recipe.name, recipe.title, statistics.median(values), values[0], values[-1], recipe.unit, middle.beside
    )
