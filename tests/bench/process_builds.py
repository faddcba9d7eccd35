"""CPU-heavy builds inline, on a thread and in a worker process: ``python tests/bench/process_builds.py``.

Each step's build is pure Python that takes about 8 ms and holds the GIL; the simulated device takes 10 ms a step in
real time, so that building could hide behind it completely. A step log is written to a file. For each place where
builds may run, two figures:

steps/s / bound
    Steps a second, without the first and the last few, over the 100 a second that the device could do at most.
lag above idle
    How much later than due a 1 ms timer of the same loop fires, p50 and p99, less the same of a loop that does nothing
    else: what another task on this loop would notice.

Rounds are interleaved and the medians of the rounds count. No figure is printed unless every round's outputs were
right, its log complete and without drops, and its device busy with one step at a time for as long as the profile says.
A round in which builds took longer than a step of the device, because the machine gave this program less time than when
it was calibrated, is set aside and counted; the question is not asked there.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import Layout, Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream

DEVICE_NS = 10_000_000
BUILD_NS = 8_000_000
IMAGE_NBYTES = 64 * 1024
TIMER_S = 0.001
EDGE = 5
"""Steps left out at either end, where the pipeline fills and drains."""


class Heavy(StepProgram[int, int]):
    """A build of ``rounds`` rounds of a linear congruential generator, whose last state is the step's result."""

    slot = SlotSpec(image=Layout(state=("u4", (1,)), rest=("u1", (IMAGE_NBYTES - 64,))), output_nbytes=4)

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def build(self, step: int, image: Any) -> int | None:
        image.state[0] = generate(step, self.rounds)
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_take, slot.image, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view(np.uint32)[0])


def generate(seed: int, rounds: int) -> int:
    """Pure Python work; every round depends on the one before."""
    state = seed
    for _ in range(rounds):
        state = (state * 1_664_525 + 1_013_904_223) & 0xFFFFFFFF
    return state


def _take(image: ByteArray, output: ByteArray) -> None:
    output[:] = image[:4]


def calibrate() -> int:
    """Rounds that take `BUILD_NS` here, by the fastest of several tries: a busy moment must not shorten the builds."""
    tries = []
    for _ in range(15):
        start = time.perf_counter_ns()
        generate(1, 20_000)
        tries.append(time.perf_counter_ns() - start)
    return round(20_000 * BUILD_NS / min(tries))


async def lags(stop: asyncio.Event) -> list[float]:
    """Milliseconds that a 1 ms timer is late, until ``stop``."""
    late = []
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        due = loop.time() + TIMER_S
        await asyncio.sleep(TIMER_S)
        late.append((loop.time() - due) * 1000)
    return late


async def idle(seconds: float) -> list[float]:
    """The same of a loop that does nothing else."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    return await lags(stop)


async def measured(build_in: Any, rounds: int, steps: int, folder: Path) -> dict[str, Any]:
    """One run, checked."""
    backend = SimBackend(SimProfile(name="ten-ms", kernel_ns=DEVICE_NS))
    log = folder / f"{build_in}.jsonl"
    log.unlink(missing_ok=True)
    outputs: list[int] = []
    done_ns: list[int] = []
    stop = asyncio.Event()
    opened = time.perf_counter()
    async with Orchestrator(Heavy(rounds), backend, build_in=build_in, slots=3, step_log=log) as orch:
        opened = time.perf_counter() - opened
        watch = asyncio.ensure_future(lags(stop))
        async for result in orch.map(range(steps)):
            outputs.append(result.output)
            done_ns.append(time.monotonic_ns())
        stop.set()
        late = await watch
    dropped = orch.statistics().records_dropped
    backend.close()
    records = [json.loads(line) for line in log.read_bytes().splitlines()]
    builds_ms = check([r for r in records if "seq" in r], outputs, dropped, rounds, steps)
    seconds = (done_ns[-1 - EDGE] - done_ns[EDGE]) / 1e9
    rate = (steps - 1 - 2 * EDGE) / seconds
    return {
        "steps_per_s": rate,
        "of_bound": rate * DEVICE_NS / 1e9,
        "build_ms_p50": statistics.median(builds_ms),
        "lag_ms": quantiles(late),
        "open_s": opened,
    }


def check(records: list[dict[str, Any]], outputs: list[int], dropped: int, rounds: int, steps: int) -> list[float]:
    """What must hold for a figure to mean anything; gives the builds' durations in ms."""
    if outputs[:: max(1, steps // 8)] != [generate(i, rounds) for i in range(0, steps, max(1, steps // 8))]:
        raise SystemExit("a step's output is wrong: no figure")
    if dropped or [r["seq"] for r in records] != list(range(steps)) or len(set(outputs)) != steps:
        raise SystemExit("steps or records were lost, doubled or reordered: no figure")
    if any(r["event"] != "step.completed" for r in records):
        raise SystemExit("a step did not complete: no figure")
    end_ns = 0
    for record in records:
        if record["device_start_ns"] < end_ns or record["device_ns"] < DEVICE_NS:
            raise SystemExit("the device did two steps at once, or one in less than its time: no figure")
        end_ns = record["device_start_ns"] + record["device_ns"]
    return [r["build_ns"] / 1e6 for r in records]


def quantiles(values: list[float]) -> dict[str, float]:
    """p50 and p99."""
    cuts = statistics.quantiles(values, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if sys.platform != "linux":
        raise SystemExit("worker processes need Linux")
    if options.steps < 4 * EDGE:
        raise SystemExit(f"--steps={options.steps} must be at least {4 * EDGE}")
    load = os.getloadavg()[0]
    rounds = calibrate()
    found: dict[str, list[dict[str, Any]]] = {"inline": [], "thread": [], "process": []}
    quiet: list[dict[str, float]] = []
    disturbed = 0
    with tempfile.TemporaryDirectory() as folder:
        while len(quiet) < options.rounds:
            idle_lag = quantiles(asyncio.run(idle(0.5)))
            this_round = {}
            for build_in in found:
                gc.collect()
                this_round[build_in] = asyncio.run(measured(build_in, rounds, options.steps, Path(folder)))
            if any(run["build_ms_p50"] * 1e6 > DEVICE_NS for run in this_round.values()):
                disturbed += 1
                if disturbed > 2 * options.rounds:
                    raise SystemExit("this machine is too busy: builds take longer than the device: no figure")
                continue
            quiet.append(idle_lag)
            for build_in, run in this_round.items():
                found[build_in].append(run)
    machine = f"{platform.platform()}, {os.cpu_count()} cores, {platform.python_implementation()} "
    machine += f"{platform.python_version()}, load average {load:.1f}"
    if options.json:
        print(
            json.dumps(
                {
                    "machine": machine,
                    "build_rounds": rounds,
                    "idle_lag_ms": quiet,
                    "disturbed": disturbed,
                    "runs": found,
                }
            )
        )
        return
    base = {p: statistics.median(each[p] for each in quiet) for p in ("p50", "p99")}
    print(machine)
    print(f"{options.rounds} rounds of {options.steps} steps, {disturbed} more set aside")
    print(f"an idle loop lags p50 {base['p50']:.2f} ms, p99 {base['p99']:.2f} ms")
    for build_in, runs in found.items():
        share = [run["of_bound"] for run in runs]
        above = {p: statistics.median(run["lag_ms"][p] for run in runs) - base[p] for p in ("p50", "p99")}
        print(
            f"{build_in:8} {statistics.median(share):.3f} of the bound ({min(share):.3f} to {max(share):.3f})   "
            f"lag above idle p50 {above['p50']:6.2f} ms, p99 {above['p99']:6.2f} ms   "
            f"build p50 {statistics.median(run['build_ms_p50'] for run in runs):5.2f} ms   "
            f"open {statistics.median(run['open_s'] for run in runs):.2f} s"
        )


if __name__ == "__main__":
    main()
