"""How late the event loop's timers are: ``python -m tests.bench.lag [--out DIR]``.

A timer every millisecond, beside an orchestrator on ``sim`` (device 10 ms, copy 1 ms, step log on) whose build
computes 8 ms in Python: on the loop, on a thread, in a worker process where this version has those; and beside
nothing. What counts is how much later than idle a timer fires at p99, and what the steps reach of the bound meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

from async_orch import Orchestrator
from async_orch._bench._checks import check_order, check_statistics
from async_orch._bench._overlap import IMAGE_NBYTES, Shape, TimedSteps
from async_orch._config import BuildIn
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, single

STEPS = 150
IDLE_S = 1.5
PERIOD_S = 0.001
SHAPE = Shape(build_ms=8.0, copy_ms=1.0, device_ms=10.0, build="computing")
PLACES = get_args(BuildIn)
PROFILE = {"name": "lag", "copy_bytes_per_s": IMAGE_NBYTES / SHAPE.copy_ms * 1e3}


class Busy(TimedSteps):
    """Made without arguments, as a worker process makes it."""

    def __init__(self) -> None:
        super().__init__(SHAPE)


@contextlib.asynccontextmanager
async def _ticking() -> AsyncIterator[list[float]]:
    """How late each timer was, in us."""
    loop = asyncio.get_running_loop()
    late: list[float] = []
    handle: asyncio.TimerHandle | None = None

    def tick(due: float) -> None:
        nonlocal handle
        now = loop.time()
        late.append((now - due) * 1e6)
        handle = loop.call_at(now + PERIOD_S, tick, now + PERIOD_S)

    tick(loop.time())
    yield late
    if handle is not None:
        handle.cancel()


def _quantiles(late: list[float]) -> Sample:
    late.sort()
    return {"p50_us": late[len(late) // 2], "p99_us": late[len(late) * 99 // 100], "max_us": late[-1]}


async def _idle() -> Sample:
    async with _ticking() as late:
        await asyncio.sleep(IDLE_S)
    return _quantiles(late)


async def _beside(place: Any) -> Sample:
    with tempfile.TemporaryDirectory() as folder:
        profile, log = Path(folder) / "lag.json", Path(folder) / "run.jsonl"
        profile.write_text(json.dumps(PROFILE))
        outputs: list[int] = []
        ends: list[int] = []
        async with Orchestrator(Busy(), f"sim:{profile}", build_in=place, step_log=log) as orch, _ticking() as late:
            async for result in orch.map(range(STEPS)):
                outputs.append(result.output)
                ends.append(time.perf_counter_ns())
        check_order(outputs, STEPS)
        check_statistics(orch.statistics(), STEPS)
    edge = STEPS // 10
    step_ms = (ends[-edge] - ends[edge]) / (STEPS - 2 * edge) / 1e6
    return _quantiles(late) | {"share_of_bound": SHAPE.device_ms / step_ms}


def idle() -> Sample:
    sample: Sample = on_loop(_idle)
    return sample


def beside(place: str) -> Sample:
    sample: Sample = on_loop(partial(_beside, place))
    return sample


def figures(samples: Samples) -> list[Figure]:
    found = [single(samples, "idle", "p99_us", "lag_idle", "loop lag p99, idle", unit="us")]
    for place in PLACES:
        name = f"build {place}"
        pairs = zip(samples.get(name, ()), samples.get("idle", ()), strict=False)
        more = {"above": [{"ms": (one["p99_us"] - base["p99_us"]) / 1e3} for one, base in pairs]}
        best = place == "process"
        found += [
            single(
                more, "above", "ms", f"lag_{place}", f"loop lag p99 above idle, 8 ms Python build ({place})", unit="ms",
                goal=("<=", 2) if best else None,
            ),
            single(
                samples, name, "share_of_bound", f"lag_{place}_rate", f"the same steps: share of the bound ({place})",
                goal=(">=", 0.95) if best else None,
            ),
        ]  # fmt: skip
    return found


BENCH = Bench(
    "lag", {"idle": idle, **{f"build {place}": partial(beside, place) for place in PLACES}}, figures, rounds=3
)

if __name__ == "__main__":
    main(BENCH)
