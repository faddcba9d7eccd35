"""Ray's compiled graphs on the same task, beside ours: ``python -m tests.bench.overhead_ray [--out DIR]``.

Four actors, processes of their own; ours is in this process. Starting Ray does not count.
"""

from __future__ import annotations

from functools import partial

from async_orch._bench import engine_cost
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, quotient, single
from tests.bench._peers import RayGraph
from tests.bench.overhead import call

STEPS = 1_000
_graph = RayGraph()


def ray_graph() -> Sample:
    return call(_graph, STEPS)


def ours() -> Sample:
    cost = on_loop(partial(engine_cost, 4 * STEPS))
    return {"wall_us": cost.wall_us, "cpu_us": cost.cpu_us}


def figures(samples: Samples) -> list[Figure]:
    return [
        single(samples, "Ray compiled graph", "wall_us", "ray", "Ray compiled graph", unit="us"),
        quotient(
            samples, ("async_orch", "wall_us"), ("Ray compiled graph", "wall_us"), "to_ray",
            "async_orch / Ray compiled graph", unit="x",
        ),
    ]  # fmt: skip


BENCH = Bench("overhead_ray", {"async_orch": ours, "Ray compiled graph": ray_graph}, figures, rounds=5)

if __name__ == "__main__":
    main(BENCH)
