"""The least that an engine of this structure can cost: ``python -m tests.bench.structure [--out DIR]``.

CPU time of the thread a no-op step, of the yardstick, of stage coroutines over hand-written channels, of one
synchronous pump without fences and records, and of the engine: see `tests.bench.engine_structure`, which has them.
"""

from __future__ import annotations

from functools import partial

from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, quotient, single
from tests.bench.engine_structure import VARIANTS, timed

STEPS = 4_000
TITLES = {
    "coroutines": "a task a stage over hand-written channels / asyncio.Queue",
    "pump": "one synchronous pump, nothing else / asyncio.Queue",
    "engine": "the engine with opening and closing, 4,000 steps / asyncio.Queue",
}


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
