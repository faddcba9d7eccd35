"""What threads cost a step, and the least that they can cost: ``python -m tests.bench.threads [--out DIR]``.

On ``host`` copies and kernels run on stream threads; on ``sim`` with costs of 1 ns so do their simulated times. The
limit is measured alone: the loop hands an item to one thread, that to a second, that back to the loop, with as many
items under way as there are slots and wake-ups merged where they can be. No engine with such a device costs less.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from async_orch._bench import threaded_cost, wakeup_cost
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, quotient, single

STEPS = 4_000
PROFILE = {"name": "nanosecond", "copy_fixed_ns": 1, "kernel_ns": 1, "launch_ns": 1}


def limit() -> Sample:
    cost = on_loop(partial(wakeup_cost, STEPS))
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def host() -> Sample:
    cost = on_loop(partial(threaded_cost, STEPS))
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def sim() -> Sample:
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "nanosecond.json"
        profile.write_text(json.dumps(PROFILE))
        cost = on_loop(partial(threaded_cost, STEPS, f"sim:{profile}"))
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def figures(samples: Samples) -> list[Figure]:
    found = [
        single(samples, "limit", "wall_us", "wakeups", "two threads and the loop, wake-ups only", unit="us"),
        single(samples, "host", "wall_us", "threads_host", "async_orch on host, no-op kernels", unit="us"),
        single(samples, "sim", "wall_us", "threads_sim", "async_orch on sim, costs of 1 ns", unit="us"),
    ]
    for name in ("host", "sim"):
        title = f"async_orch on {name} / wake-ups only"
        found.append(quotient(samples, (name, "wall_us"), ("limit", "wall_us"), f"{name}_to_wakeups", title, unit="x"))
    return found


BENCH = Bench(
    "threads", {"limit": limit, "host": host, "sim": sim}, figures, rounds=9, about={"steps": STEPS, "profile": PROFILE}
)

if __name__ == "__main__":
    main(BENCH)
