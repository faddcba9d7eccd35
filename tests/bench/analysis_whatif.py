"""Predictions of `async-orch whatif` against runs in real time, on backends ``sim`` and ``host``.

    python -m tests.bench.analysis_whatif [--backend sim|host|both] [--steps 150]

For each workload one run is logged (3 slots, queue depth 2, one build thread), every other setting is predicted from
that log alone, and then run. Builds and kernels sleep, so that a machine with few cores has room for the stages to
overlap; on ``host`` copies are real. Prints each prediction beside the rate that was measured, the median of three. The
error in brackets is that of the model fed with the stage times of the very run that it predicts: what is left of the
error where the machine was as busy for both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream
from async_orch.analysis import read_frames, whatif

# Build and device in ms, and bytes to copy: a different stage is the slowest in each.
WORKLOADS = {"device": (3.0, 10.0, 4), "copy": (3.0, 4.0, 24), "build": (12.0, 4.0, 4), "even": (8.0, 8.0, 12)}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"slots": 1, "queue_depth": 1},
    {"slots": 2, "queue_depth": 1},
    {"slots": 4, "queue_depth": 4},
    {"slots": 3, "queue_depth": 2, "max_inflight": 1},
    {"slots": 3, "queue_depth": 2, "build_workers": 3},
    {"slots": 3, "queue_depth": 2, "mode": "ring"},
)
COPY_MS_A_MB = 0.5
PROFILE = {"name": "whatif", "copy_bytes_per_s": 1e9 / COPY_MS_A_MB, "kernel_ns": 0}


class Sleeping(StepProgram[int, int]):
    def __init__(self, build_ms: float, device_ms: float, copy_mb: int, *, simulated: bool) -> None:
        self.slot = SlotSpec(image_nbytes=copy_mb * 1_000_000, output_nbytes=8)
        self.build_s, self.device_ms, self.simulated = build_ms / 1e3, device_ms, simulated

    def build(self, step: int, image: Any) -> None:
        time.sleep(self.build_s)

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        if self.simulated:
            stream.launch(lambda: None, cost_ns=round(self.device_ms * 1e6))
        else:
            stream.launch(time.sleep, self.device_ms / 1e3)

    def collect(self, step: int, output: ByteArray) -> int:
        return step


async def measure(backend: str, workload: str, steps: int, log: Path, **options: Any) -> None:
    program = Sleeping(*WORKLOADS[workload], simulated=backend.startswith("sim"))
    async with Orchestrator(program, backend=backend, step_log=log, build_in="thread", **options) as orch:
        async for _ in orch.map(range(steps)):
            pass


def rate_of(backend: str, workload: str, steps: int, folder: Path, setting: dict[str, Any]) -> tuple[float, float]:
    """The median rate of three runs, and the median error of the model from each run's own stage times."""
    rates, errors = [], []
    for attempt in range(3):
        log = folder / f"{workload}-{'-'.join(map(str, setting.values()))}-{attempt}.jsonl"
        asyncio.run(measure(backend, workload, steps, log, **setting))
        found = whatif(read_frames(log), [{}])
        rates.append(found.measured_steps_per_s)
        errors.append(found.error)
        log.unlink()
    return statistics.median(rates), statistics.median(errors)


def compare(backend: str, steps: int, folder: Path) -> None:
    errors, own_errors, rates, bounds = [], [], [], []
    title = backend.partition(":")[0]
    for workload in WORKLOADS:
        base = folder / f"{workload}.jsonl"
        asyncio.run(measure(backend, workload, steps, base, slots=3, queue_depth=2))
        found = whatif(read_frames(base), SETTINGS)
        base.unlink()
        for setting, predicted in zip(SETTINGS, found.predictions, strict=True):
            actual, own_error = rate_of(backend, workload, steps, folder, setting)
            error = predicted.steps_per_s / actual - 1
            errors.append(abs(error))
            own_errors.append(abs(own_error))
            rates.append(actual)
            bounds.append(predicted.critical)
            print(
                f"{title:5} {workload:7} {setting!s:62} predicted {predicted.steps_per_s:6.1f} "
                f"measured {actual:6.1f} ({100 * error:+5.1f} %) {predicted.critical} [{100 * own_error:+.1f} %]"
            )
    within = [number for number, error in enumerate(errors) if error <= 0.05]
    of_these = [rates[number] for number in within] or [1.0]
    changes = sum(bounds[one] != bounds[other] for one, other in itertools.pairwise(within))
    print(
        f"{title}: {len(within)} of {len(errors)} settings within 5 %; their rates span "
        f"{max(of_these) / min(of_these):.1f}x and their critical resource changes {changes} times; "
        f"median error of all {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %; "
        f"from each run's own times {sum(error <= 0.05 for error in own_errors)} within 5 %\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("sim", "host", "both"), default="both")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        profile = folder / "whatif.json"
        profile.write_text(json.dumps(PROFILE))
        for backend in ("sim", "host") if options.backend == "both" else (options.backend,):
            compare(f"sim:{profile}" if backend == "sim" else "host", options.steps, folder)


if __name__ == "__main__":
    main()
