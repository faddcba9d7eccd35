"""What a step costs with a step log that loses nothing: ``python -m tests.bench.overhead_log [--out DIR]``.

100,000 no-op steps on ``sim:instant`` with ``step_log=FILE``, until the last record is in the file, beside the bare
`asyncio.Queue` pipeline without any log. A run that dropped a record, or whose file does not hold every step, gives no
figure.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from async_orch._bench import engine_cost, queue_cost
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, quotient, single

STEPS = 100_000
QUEUE_STEPS = 20_000


def logged() -> Sample:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.jsonl"
        cost = on_loop(partial(engine_cost, STEPS, log=log))
        return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us, "log_nbytes": log.stat().st_size}


def queue() -> Sample:
    cost = on_loop(partial(queue_cost, QUEUE_STEPS))
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def figures(samples: Samples) -> list[Figure]:
    return [
        single(samples, "logged", "wall_us", "logged", "async_orch with a lossless log", unit="us"),
        quotient(
            samples, ("logged", "wall_us"), ("queue", "wall_us"), "logged_to_queue",
            "async_orch with a lossless log / asyncio.Queue without", unit="x", goal=("<=", 1.5),
        ),
    ]  # fmt: skip


BENCH = Bench("overhead_log", {"queue": queue, "logged": logged}, figures, rounds=5, about={"steps": STEPS})

if __name__ == "__main__":
    main(BENCH)
