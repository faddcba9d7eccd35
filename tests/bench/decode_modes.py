"""A decode in every mode, in one run: naive, ring, pipelined, and pipelined with only changed bytes copied.

    python -m tests.bench.decode_modes [--rounds 5] [--tokens 40] [--backend host] [--json FILE]
    python -m tests.bench.decode_modes --shape qwen3-14b --backend sim:a5-report [--steps 40] [--memory report]

Without ``--shape`` the checkpoint of `examples/qwen3` is decoded, and every mode must choose the same tokens in every
round. With it the true graph of a large model is built, copied and checked on the device side. Each round runs all
modes, beginning with another one; a ratio is the median of the rounds' ratios to ``pipelined``. Times are those of the
steady steps: warm, but in naive each step allocates.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from async_orch import open_backend
from async_orch.abc import Backend
from examples.large.runner import MEMORY, SETTINGS, Setting
from examples.large.runner import decode as decode_shape
from examples.large.shape import SHAPES
from examples.qwen3.decode import decode as decode_tokens
from examples.qwen3.figures import Figures, ModeRun
from examples.qwen3.program import Qwen3Decode
from examples.qwen3.report import assumptions
from examples.qwen3.schedule import Schedule
from tests.bench._kit import CheckFailed
from tests.bench._raw import RawFile, add_option

__all__ = ["Rounds", "checkpoint_runs", "measure", "shape_runs"]

CHECKPOINT = Path(__file__).resolve().parents[2] / "examples" / "qwen3" / "checkpoint"
PROMPT_LENGTHS = (7, 3, 5, 9)
BASE = "pipelined"

Run = Callable[[Setting], ModeRun]
Rounds = dict[str, list[ModeRun]]
"""By mode, one run for each round."""


def checkpoint_runs(folder: Path, backend: Backend, tokens: int) -> Run:
    """Decodes four ragged prompts of the model in a folder, each time with a program of its own."""
    prompts = [[17 * row + place for place in range(1, length + 1)] for row, length in enumerate(PROMPT_LENGTHS)]
    schedule = Schedule(prompts, tokens, max(PROMPT_LENGTHS) + tokens)

    def run(setting: Setting) -> ModeRun:
        program = Qwen3Decode(folder, batch=schedule.batch, capacity=schedule.capacity)
        return asyncio.run(
            decode_tokens(program, schedule, backend, mode=setting.mode, upload=setting.upload, slots=3, queue_depth=2)
        )

    return run


def shape_runs(name: str, memory: str, backend: Backend, steps: int) -> Run:
    """Decodes with a model's graph, without its weights."""
    return lambda setting: asyncio.run(decode_shape(SHAPES[name], MEMORY[memory], backend, setting, steps, None))


def measure(run: Run, rounds: int) -> Rounds:
    """Every mode in every round. Raises `CheckFailed` where tokens differ."""
    found: Rounds = {setting.name: [] for setting in SETTINGS}
    tokens: list[list[int]] | None = None
    for number in range(rounds):
        first = number % len(SETTINGS)
        for setting in (*SETTINGS[first:], *SETTINGS[:first]):
            one = run(setting)
            tokens = one.tokens if tokens is None else tokens
            if one.tokens != tokens:
                raise CheckFailed(f"round {number}: mode {setting.name} chose other tokens than the first run")
            found[setting.name].append(one)
    return found


def steady(run: ModeRun) -> Figures:
    """The figures of its steady steps. Raises `CheckFailed` if there is none."""
    if run.steady is None:
        raise CheckFailed(f"mode {run.mode}: {len(run.steps)} steps, each of which paid a one-time cost; run more")
    return run.steady


def ratios(rounds: Rounds, name: str) -> list[float]:
    """Time of a step over that of `BASE`, in each round."""
    pairs = zip(rounds[name], rounds[BASE], strict=True)
    return [steady(one).ms_per_step_p50 / steady(base).ms_per_step_p50 for one, base in pairs]


def show(rounds: Rounds) -> None:
    """One row a mode: medians of the rounds."""
    heading = f"{'':<20}{'ms a step':>10}{'ratio':>8}  {'(least to most)':<18}"
    print(f"{heading}{'alloc ms':>9}{'copied B':>11}{'opening ms':>12}")
    for name, runs in rounds.items():
        figures = [steady(run) for run in runs]
        found = ratios(rounds, name)
        spread = f"({min(found):.2f} to {max(found):.2f})"
        opening = statistics.median(run.open_ns for run in runs) / 1e6
        print(
            f"{name:<20}{middle([one.ms_per_step_p50 for one in figures]):>10.3f}{statistics.median(found):>8.2f}  "
            f"{spread:<18}{middle([one.alloc_ms_per_step for one in figures]):>9.3f}"
            f"{middle([one.copy_nbytes_per_step for one in figures]):>11,.0f}{opening:>12.1f}"
        )


def middle(values: Sequence[float | None]) -> float:
    """Median of what is known, 0 if nothing is."""
    return statistics.median([value or 0.0 for value in values])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=5)
    add("--backend", default="host")
    add("--tokens", type=int, default=40, help="of each prompt, without --shape")
    add("--shape", choices=tuple(SHAPES), help="a large model without its weights")
    add("--steps", type=int, default=40, help="of each mode, with --shape")
    add("--memory", choices=tuple(MEMORY), default="natural", help="size of a slot, with --shape")
    add_option(parser)
    options = parser.parse_args()
    command = f"python -m tests.bench.decode_modes --rounds {options.rounds} --backend {options.backend}"
    if options.shape:
        command += f" --shape {options.shape} --steps {options.steps} --memory {options.memory}"
    else:
        command += f" --tokens {options.tokens}"
    raw = RawFile(options.json, command)
    backend = open_backend(options.backend)
    try:
        if options.shape:
            run = shape_runs(options.shape, options.memory, backend, options.steps)
        else:
            run = checkpoint_runs(CHECKPOINT, backend, options.tokens)
        rounds = measure(run, options.rounds)
    finally:
        backend.close()
    info = backend.info
    print(f"{command}\n{options.backend}: {info.support}{'; ' if info.assumed else ''}{assumptions(info)}")
    show(rounds)
    raw.figures = {
        "support": info.support,
        "assumed": info.assumed,
        "modes": {
            name: [
                {
                    "open_ms": one.open_ns / 1e6,
                    "steady": steady(one).as_json(),
                    "one_time": None if one.cold is None else one.cold.as_json(),
                }
                for one in runs
            ]
            for name, runs in rounds.items()
        },
        "ratio_to_pipelined": {name: ratios(rounds, name) for name in rounds},
    }
    raw.write()


if __name__ == "__main__":
    main()
