"""How near overlapped steps come to the slowest stage: ``python -m tests.bench.overlap [--out DIR]``.

Build 2 ms, copy 3 ms, device 5 ms (and a tenth of it), a ring of 3, in real time on ``sim``; filling and draining left
out. The build sleeps, as one that waits for others does, or computes in Python, which holds the GIL: on the event
loop, on a thread, and in a worker process where this version has those. 1 is the bound: a device that never waits.
"""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from async_orch._bench import Shape, measure_overlap
from async_orch._config import BuildIn
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, single

STEPS = 150
TENTH_STEPS = 1_500
PLACES = get_args(BuildIn)


def overlap(build: str, place: Any, tenth: bool) -> Sample:
    shape = Shape(0.2, 0.3, 0.5, build) if tenth else Shape(build=build)
    steps = TENTH_STEPS if tenth else STEPS
    found = on_loop(partial(measure_overlap, shape, steps, build_in=place))
    return {"share_of_bound": found.share_of_bound, "step_ms": found.step_ms, "bubble_us": found.bubble_us}


CASES = {
    f"{build}/{place}{'/tenth' if tenth else ''}": partial(overlap, build, place, tenth)
    for tenth in (False, True)
    for build in ("sleeping", "computing")
    for place in PLACES
}


def figures(samples: Samples) -> list[Figure]:
    found = []
    for name in CASES:
        build, place, *tenth = name.split("/")
        times = "0.2/0.3/0.5" if tenth else "2/3/5"
        title = f"{times} ms, build {build} ({place}): share of the bound"
        goal = (">=", 0.9 if tenth else 0.98)
        found.append(single(samples, name, "share_of_bound", name.replace("/", "_"), title, goal=goal))
    return found


BENCH = Bench("overlap", CASES, figures, rounds=3, about={"steps": STEPS, "steps_of_a_tenth": TENTH_STEPS, "slots": 3})

if __name__ == "__main__":
    main(BENCH)
