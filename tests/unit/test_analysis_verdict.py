"""What bounds a step, and how close a run comes to its bound, are what a plain loop over the same steps finds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from async_orch.analysis import Scanner
from async_orch.analysis._columns import StepRows
from async_orch.analysis._overlap import overlap_of
from async_orch.analysis._verdict import verdict_of
from async_orch.logs import StepRecord
from tests.unit.step_records import step_record

PARTS = {"build": "build_ns", "allocation": "alloc_ns", "copy": "h2d_ns", "device": "device_ns"}
HOOKS = {"feed": "feed_ns", "launch": "launch_ns"}


def _steps(seed: int) -> list[StepRecord]:
    """Steps of which each part is missing now and then."""
    chance = random.Random(seed)

    def some(most: int) -> int | None:
        return None if chance.random() < 0.15 else chance.randrange(most)

    names = ("build_ns", "alloc_ns", "device_ns", *HOOKS.values(), "d2h_ns", "d2d_ns", "retire_ns")
    return [
        step_record(
            seq=seq,
            h2d_ns=chance.randrange(999),
            starved_ns=None if chance.random() < 0.3 else chance.randrange(900),
            **{name: some(999) for name in names},
        )
        for seq in range(60)
    ]


def _rows(steps: list[StepRecord]) -> StepRows:
    scanner = Scanner()
    scanner.add(steps)
    return StepRows(scanner.frames().steps)


def _floored_mean(values: list[int]) -> int:
    return sum(values) // len(values)


@pytest.mark.parametrize("seed", range(6))
def test_a_verdict_is_that_of_a_loop_over_the_steps_that_have_all_parts(seed: int) -> None:
    """Hooks that a step lacks took it no time; without starving the largest part bounds."""
    steps = _steps(seed)
    complete = [step for step in steps if all(getattr(step, name) is not None for name in PARTS.values())]
    sums = {part: sum(getattr(step, name) or 0 for step in complete) for part, name in (PARTS | HOOKS).items()}
    found = verdict_of(_rows(steps), estimated=False)
    assert found is not None
    assert found.steps == len(complete) < len(steps)
    assert found.parts == {part: value // len(complete) for part, value in sums.items()}
    assert found.bound == max(sums, key=lambda part: sums[part])
    assert found.share == max(sums.values()) / sum(sums.values())


def test_nothing_copied_took_no_time_to_copy() -> None:
    """Steps without an image, or with one in shared memory, have a verdict; a copy that is not known has none."""
    uncopied = [step_record(seq=seq, h2d_ns=None, copy_nbytes=0, device_ns=90_000_000) for seq in range(3)]
    found = verdict_of(_rows(uncopied), estimated=False)
    assert found is not None
    assert (found.bound, found.parts["copy"], found.steps) == ("device", 0, 3)
    mixed = verdict_of(_rows([*uncopied, step_record(seq=3, h2d_ns=2000)]), estimated=False)
    assert mixed is not None
    assert (mixed.parts["copy"], mixed.steps) == (500, 4)
    untimed = [step_record(seq=seq, h2d_ns=None, h2d_graph_ns=None, copy_nbytes=8) for seq in range(3)]
    assert verdict_of(_rows(untimed), estimated=False) is None


@pytest.mark.parametrize("seed", range(4))
def test_starving_is_judged_by_the_steps_that_say_how_long(seed: int) -> None:
    """The device starves from the interval on for which its wait is half of what it does not work."""
    steps = _steps(seed)
    timed = [step for step in steps if all(getattr(step, name) is not None for name in (*PARTS.values(), "starved_ns"))]
    starved = _floored_mean([int(step.starved_ns or 0) for step in timed])
    device = _floored_mean([int(step.device_ns or 0) for step in timed])
    rows = _rows(steps)
    for interval, is_starved in (
        (device, False),
        (device + 1, True),
        (device + 2 * starved, True),
        (device + 2 * starved + 1, False),
    ):
        found = verdict_of(rows, estimated=False, intervals=np.full(3, interval))
        assert found is not None
        assert (found.bound == "starved") is is_starved
        assert not is_starved or found.share == starved / interval
    assert verdict_of(rows, estimated=False, intervals=np.empty(0, np.int64)) == verdict_of(rows, estimated=False)
    untimed = _rows([step_record(starved_ns=None)])
    assert verdict_of(untimed, estimated=False, intervals=np.full(1, 10**9)) == verdict_of(untimed, estimated=False)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_bound_of_a_run_is_made_of_the_means_of_a_loop(workers: int) -> None:
    """Each figure's mean is that of the steps that have it, and of none if none has."""
    steps = _steps(9)

    def mean(name: str) -> float:
        values = [value for step in steps if (value := getattr(step, name)) is not None]
        return sum(values) / len(values) if values else 0.0

    loads = {
        "loop": sum(map(mean, ("alloc_ns", "feed_ns", "launch_ns", "retire_ns"))),
        "copy stream": mean("h2d_ns"),
        "compute stream": sum(map(mean, ("d2d_ns", "device_ns", "d2h_ns"))),
    }
    if workers:
        loads["builders"] = mean("build_ns") / workers
    else:
        loads["loop"] += mean("build_ns")
    found = overlap_of(_rows(steps), np.array([5000, 6000, 8000]), workers)
    assert found is not None
    assert found.resources == {name: int(load) for name, load in loads.items()}
    assert found.critical == max(loads, key=lambda name: loads[name])
    assert (found.steps, found.measured_ns, found.bound_ns) == (3, 6333, int(max(loads.values())))
    assert found.efficiency == pytest.approx(max(loads.values()) * 3 / 19000)
    assert overlap_of(_rows([step_record(device_ns=None)]), np.array([5000]), workers) is None
    assert overlap_of(_rows([step_record(seq=seq, d2h_ns=None) for seq in (0, 1)]), np.array([9]), workers) is not None
