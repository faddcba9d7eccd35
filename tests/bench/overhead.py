"""What a step costs, beside the pipelines of others: ``python -m tests.bench.overhead [--out DIR]``.

No-op items through four stages. Ours carries leases, fences, time stamps and handles on ``sim:instant``, hooks inline,
no log. Wall clock and CPU time of the process, in microseconds a step; on the stock loop and on uvloop. SPDL runs on a
loop of its own. Ray is in a bench of its own (`tests.bench.overhead_ray`), because its processes need a while to start.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable
from functools import partial

from async_orch._bench import engine_cost, queue_cost
from async_orch._bench._checks import check_order
from async_orch._bench._overhead import WARM_UP, Cost, timed
from tests.bench import _peers
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, quotient, single

STEPS = 4_000
SLOW_STEPS = 1_000

COROUTINES: dict[str, tuple[Callable[[int], Awaitable[list[int]]], int]] = {
    "sequential awaits": (_peers.sequential, STEPS),
    "anyio streams": (_peers.anyio_streams, STEPS),
    "aiostream": (_peers.aiostream_pipes, SLOW_STEPS),
    "aiometer": (_peers.aiometer_map, SLOW_STEPS),
    "pypeln": (_peers.pypeln_tasks, SLOW_STEPS),
}
CALLED = {"SPDL default": (_peers.spdl_default, SLOW_STEPS), "SPDL best form": (_peers.spdl_best, STEPS)}


def _sample(cost: Cost) -> Sample:
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def ours(loop: str) -> Sample:
    return _sample(on_loop(partial(engine_cost, STEPS), loop))


def queue(loop: str) -> Sample:
    return _sample(on_loop(partial(queue_cost, STEPS), loop))


def peer(name: str, loop: str) -> Sample:
    work, steps = COROUTINES[name]

    async def run() -> Cost:
        await work(WARM_UP)
        return await timed(steps, work)

    return _sample(on_loop(run, loop))


def called(name: str) -> Sample:
    work, steps = CALLED[name]
    return call(work, steps)


def call(work: Callable[[int], list[int]], steps: int) -> Sample:
    """The cost of an item in a peer that is no coroutine; starting its threads is part of its one-time cost."""
    work(WARM_UP)
    gc.collect()
    start_ns = time.perf_counter_ns()
    first = work(1)
    once_ns = time.perf_counter_ns() - start_ns
    wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
    out = work(steps)
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    check_order([*first, *(item + 1 for item in out)], steps + 1)
    return {"wall_us": (wall_ns - once_ns) / steps / 1e3, "cpu_us": cpu_ns / steps / 1e3}


def figures(samples: Samples) -> list[Figure]:
    found = []
    for loop in ("asyncio", "uvloop"):
        mine = (f"async_orch/{loop}", "wall_us")
        stock = loop == "asyncio"
        found.append(single(samples, mine[0], "wall_us", f"ours_{loop}", f"async_orch, {loop}", unit="us"))
        found.append(single(samples, f"queue/{loop}", "wall_us", f"queue_{loop}", f"asyncio.Queue, {loop}", unit="us"))
        goals = {"queue": 0.75, "anyio streams": 0.25} if stock else {}
        for name in ("queue", *COROUTINES):
            bound = goals.get(name)
            found.append(
                quotient(
                    samples, mine, (f"{name}/{loop}", "wall_us"), f"to_{name.replace(' ', '_')}_{loop}",
                    f"async_orch / {'asyncio.Queue' if name == 'queue' else name}, {loop}",
                    unit="x", goal=None if bound is None else ("<=", bound),
                )
            )  # fmt: skip
    found += [
        quotient(
            samples, ("async_orch/asyncio", "wall_us"), (name, "wall_us"), f"to_{name.replace(' ', '_')}",
            f"async_orch / {name}", unit="x", goal=("<=", 0.1) if "best" in name else None,
        )
        for name in CALLED
    ]  # fmt: skip
    cpu = (("async_orch/asyncio", "cpu_us"), ("queue/asyncio", "cpu_us"))
    found.append(quotient(samples, *cpu, "to_queue_cpu", "async_orch / asyncio.Queue, CPU time", unit="x"))
    return found


BENCH = Bench(
    "overhead",
    {
        **{
            f"{name}/{loop}": partial(work, loop)
            for loop in ("asyncio", "uvloop")
            for name, work in (("async_orch", ours), ("queue", queue))
        },
        **{f"{name}/{loop}": partial(peer, name, loop) for loop in ("asyncio", "uvloop") for name in COROUTINES},
        **{name: partial(called, name) for name in CALLED},
    },
    figures,
    rounds=11,
    about={"steps": STEPS, "steps_of_slow_peers": SLOW_STEPS, "stages": 4, "queue_depth": 2},
)

if __name__ == "__main__":
    main(BENCH)
