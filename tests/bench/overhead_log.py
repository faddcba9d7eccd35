"""What a step costs with a step log that loses nothing: ``python -m tests.bench.overhead_log [--out DIR]``.

100,000 no-op steps on ``sim:instant`` with ``step_log=FILE``, until the last record is in the file, beside the bare
`asyncio.Queue` pipeline without any log. A run that dropped a record, or whose file does not hold every step, gives no
figure. What the two parts cost by themselves is measured beside it: the same steps without a log, and encoding and
writing as many finished records, as many at a time as the log's writer does, on a thread that does nothing else.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from async_orch._bench import engine_cost, queue_cost
from async_orch._records import CHUNK_RECORDS
from async_orch.logs import encode_lines
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, quotient, single
from tests.unit.step_records import step_record

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


def unlogged() -> Sample:
    cost = on_loop(partial(engine_cost, QUEUE_STEPS))
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def writing() -> Sample:
    """The least that the log's writer can cost: what is left when somebody else has made the records."""
    records = [step_record(seq=seq, step_id=seq) for seq in range(CHUNK_RECORDS)]
    with tempfile.TemporaryFile() as file:
        start_ns = time.perf_counter_ns()
        for _ in range(0, STEPS, CHUNK_RECORDS):
            file.write(encode_lines(records))
        file.flush()
        return {"wall_us": (time.perf_counter_ns() - start_ns) / STEPS / 1e3}


def figures(samples: Samples) -> list[Figure]:
    return [
        single(samples, "logged", "wall_us", "logged", "async_orch with a lossless log", unit="us"),
        quotient(
            samples, ("logged", "wall_us"), ("queue", "wall_us"), "logged_to_queue",
            "async_orch with a lossless log / asyncio.Queue without", unit="x", goal=("<=", 1.5),
        ),
        single(samples, "unlogged", "wall_us", "unlogged", "of it: the steps without a log, alone", unit="us"),
        single(samples, "writing", "wall_us", "writing", "of it: encoding and writing the records, alone", unit="us"),
    ]  # fmt: skip


BENCH = Bench(
    "overhead_log",
    {"queue": queue, "logged": logged, "unlogged": unlogged, "writing": writing},
    figures,
    rounds=5,
    about={"steps": STEPS},
)

if __name__ == "__main__":
    main(BENCH)
