"""Whether a step costs more with more of everything: ``python -m tests.bench.growth [--out DIR]``.

Microseconds of CPU time of the process a step, on ``sim:instant``: within one run of a million steps, by the median of
its windows of 1,000 steps early (from step 1,000 on) and late; with 2 to 64 slots; and with 1 to 8 orchestrators in one
process that take turns. The run of a million also gives the growth of resident memory, from step 100,000 on; it is a
process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from async_orch import Orchestrator
from async_orch._bench import CheckFailed, engine_cost
from async_orch._bench._checks import SlotsSeen, check_statistics
from async_orch._bench._overhead import WARM_UP, NoOp
from tests.bench._kit import Bench, Figure, NotInstalled, Sample, Samples, main, on_loop, quotient, single

STEPS = 1_000_000
WARM_STEPS = 100_000
WINDOW = 1_000
SLOTS = (2, 8, 64)
SLOTS_EACH = 3
ORCHESTRATORS = (1, 2, 4, 8)
SHORT_STEPS = 4_000
PAGE_NBYTES = 4096


def _resident_nbytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_NBYTES


async def _million() -> Sample:
    """One run, window by window; what is done between windows is in none."""
    window_us = array("d", bytes(8 * (STEPS // WINDOW)))
    resident = 0
    async with Orchestrator(NoOp(), "sim:instant", slots=SLOTS_EACH) as orch:
        count = 0
        seen = SlotsSeen()
        began_ns = time.process_time_ns()
        async for result in orch.map(range(STEPS)):
            seen.see(result)
            if result.output != count:
                raise CheckFailed(f"step {count} came out as {result.output}")
            count += 1
            if count % WINDOW == 0:
                window_us[count // WINDOW - 1] = (time.process_time_ns() - began_ns) / WINDOW / 1e3
                if count == WARM_STEPS:
                    gc.collect()
                    resident = _resident_nbytes()
                began_ns = time.process_time_ns()
        gc.collect()
        grown = _resident_nbytes() - resident
    seen.end(SLOTS_EACH)
    check_statistics(orch.statistics(), STEPS)
    return tenths(window_us) | {"growth_mib": grown / 2**20}


def tenths(window_us: Sequence[float]) -> Sample:
    """Medians of each tenth of the windows, the first window left out: ``tenth_1_us`` to ``tenth_10_us``."""
    share = len(window_us) // 10
    return {
        f"tenth_{number + 1}_us": statistics.median(window_us[max(number * share, 1) : (number + 1) * share])
        for number in range(10)
    }


async def _several(orchestrators: int) -> Sample:
    """As many orchestrators, each with its share of the steps, in turn on one loop; a step is a step of any."""
    steps = SHORT_STEPS // orchestrators

    async def one(orch: Orchestrator[int, int], seen: SlotsSeen) -> None:
        count = 0
        async for result in orch.map(range(WARM_UP, WARM_UP + steps)):
            if result.output != WARM_UP + count:
                raise CheckFailed(f"step {count} came out as {result.output}")
            seen.see(result)
            count += 1
            if count % 16 == 0:
                await asyncio.sleep(0)

    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(Orchestrator(NoOp(), "sim:instant", slots=SLOTS_EACH))
            for _ in range(orchestrators)
        ]
        slots_seen = [SlotsSeen() for _ in opened]
        for orch, seen in zip(opened, slots_seen, strict=True):
            async for result in orch.map(range(WARM_UP)):
                seen.see(result)
        gc.collect()
        start_ns = time.process_time_ns()
        async with asyncio.TaskGroup() as tasks:
            for orch, seen in zip(opened, slots_seen, strict=True):
                tasks.create_task(one(orch, seen))
        spent_ns = time.process_time_ns() - start_ns
    for orch, seen in zip(opened, slots_seen, strict=True):
        seen.end(SLOTS_EACH)
        check_statistics(orch.statistics(), WARM_UP + steps)
    return {"cpu_us": spent_ns / (steps * orchestrators) / 1e3}


def million() -> Sample:
    """In a process of its own, so that its memory is its own."""
    if not Path("/proc/self/statm").exists():
        raise NotInstalled("/proc, from which resident memory is read")
    done = subprocess.run([sys.executable, "-m", "tests.bench.growth", "--million"], check=True, capture_output=True)
    sample: Sample = json.loads(done.stdout)
    return sample


def slots(count: int) -> Sample:
    cost = on_loop(partial(engine_cost, SHORT_STEPS, slots=count))
    return {"cpu_us": cost.cpu_us}


def several(orchestrators: int) -> Sample:
    sample: Sample = on_loop(partial(_several, orchestrators))
    return sample


VARIANTS: dict[str, Callable[[], Sample]] = {
    "million": million,
    **{f"slots {count}": partial(slots, count) for count in SLOTS},
    **{f"orchestrators {count}": partial(several, count) for count in ORCHESTRATORS},
}


def figures(samples: Samples) -> list[Figure]:
    flat = ("<=", 1.1)
    return [
        single(
            samples, "million", "tenth_1_us", "cost_early", "steps 1,000 to 100,000: CPU time a step, by windows",
            unit="us",
        ),
        quotient(
            samples, ("million", "tenth_10_us"), ("million", "tenth_1_us"), "growth_steps",
            "the last 100,000 of a million steps / steps 1,000 to 100,000", unit="x", goal=flat,
        ),
        quotient(
            samples, (f"slots {SLOTS[-1]}", "cpu_us"), (f"slots {SLOTS[0]}", "cpu_us"), "growth_slots",
            f"{SLOTS[-1]} slots / {SLOTS[0]} slots", unit="x", goal=flat,
        ),
        quotient(
            samples, (f"orchestrators {ORCHESTRATORS[-1]}", "cpu_us"), ("orchestrators 1", "cpu_us"),
            "growth_orchestrators", f"{ORCHESTRATORS[-1]} orchestrators / 1, a step", unit="x", goal=flat,
        ),
        single(
            samples, "million", "growth_mib", "growth_memory", "growth of resident memory, steps 100,000 to 1,000,000",
            unit="MiB", goal=("<=", 2),
        ),
    ]  # fmt: skip


BENCH = Bench("growth", VARIANTS, figures, rounds=5, about={"steps": STEPS, "window": WINDOW})

if __name__ == "__main__":
    if sys.argv[1:] == ["--million"]:
        print(json.dumps(on_loop(_million)))
    else:
        main(BENCH)
