"""The decode step of a large model, without its weights, in four modes on a simulated device.

    python -m examples.decode_runner --shape qwen3-14b --backend sim:a5-report

The task graph is the real one: built anew each step, copied, and checked on the device side with all replays expanded.
Kernels do nothing but take the time that the profile gives a step. The modes are naive (a slot allocated and freed each
step), ring (allocated once), pipelined (also built and copied ahead), and pipelined with only changed bytes copied.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from async_orch import OrchError, Orchestrator, open_backend
from async_orch.abc import Backend
from async_orch.graph import unroll
from examples.large.program import NATURAL, REPORT, LargeDecode, SlotMemory
from examples.large.scheduling import moved_nbytes, schedule
from examples.large.shape import SHAPES, Shape
from examples.qwen3.figures import ModeRun, StepFacts
from examples.qwen3.report import IDLE_SHARE, assumptions, json_object, support, table

__all__ = ["main"]

CORES = 24
"""Cores that the schedule assumes; neither the report nor the published figures say how many there are."""

MEMORY = {"natural": NATURAL, "report": REPORT}


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A column of the table: the engine's mode and what it uploads."""

    name: str
    mode: Literal["naive", "ring", "pipelined"]
    upload: Literal["full", "delta"] = "full"


SETTINGS = (
    Setting("naive", "naive"),
    Setting("ring", "ring"),
    Setting("pipelined", "pipelined"),
    Setting("pipelined + delta", "pipelined", "delta"),
)


async def decode(
    shape: Shape, memory: SlotMemory, backend: Backend, setting: Setting, steps: int, log: Path | None
) -> ModeRun:
    """Run `steps` steps in one setting; the timings of each."""
    run = ModeRun(setting.name, tokens=[])
    program = LargeDecode(shape, memory)
    start_ns = time.monotonic_ns()
    async with Orchestrator(
        program, backend=backend, mode=setting.mode, upload=setting.upload, slots=3, queue_depth=2, step_log=log
    ) as orchestrator:
        run.open_ns = time.monotonic_ns() - start_ns
        async for result in orchestrator.map(range(steps)):
            run.steps.append(StepFacts(result.timings, result.cold_reason, shape.rows))
    run.records_dropped = orchestrator.statistics().records_dropped
    return run


def graph_lines(program: LargeDecode) -> list[str]:
    """What the graph is, and how it would lie on the cores."""
    shape = program.shape
    calls = unroll(program.probe, program.table, definitions=program.content)
    found = schedule(calls, [moved_nbytes(call, shape) for call in calls], CORES)
    facts = program.describe()
    model = (
        f"{shape.name}: {shape.rows} rows of {shape.context} tokens; weights {shape.weights_nbytes / 1e9:.1f} GB and "
        f"cache {shape.kv_nbytes / 1e9:.1f} GB as regions with a size and no memory"
    )
    graph = (
        f"graph: {facts['host_tasks']} tasks, {shape.layers} of them replays of one Definition of "
        f"{facts['layer_tasks']} tasks with {facts['parameters']} parameters; {found.calls} kernel calls; image "
        f"{facts['image_nbytes']:,} B, Definitions {facts['definitions_nbytes']:,} B, resident"
    )
    cores = (
        f"schedule: by bytes moved, {CORES} cores (assumed) are busy {100 * found.busy_share:.0f} % of the time; the "
        f"longest chain alone takes {100 * found.critical / found.makespan:.0f} % of it"
    )
    return [model, graph, cores]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, 1 if a step failed, 2 if it could not begin."""
    parser = argparse.ArgumentParser(prog="decode_runner", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--shape", choices=tuple(SHAPES), required=True, help="the model, without weights")
    add("--backend", default="sim:a5-report", metavar="NAME", help="sim:a5-report, sim:a2a3-published, ...")
    add("--mode", choices=(*(one.name for one in SETTINGS), "all"), default="all", help="default: all")
    add("--steps", type=int, default=40, metavar="N", help="steps of each mode (default: 40)")
    add("--memory", choices=tuple(MEMORY), default="natural", help="size of a slot: the graph's, or the report's")
    add("--log", type=Path, default=None, metavar="FILE", help="step log (default: none)")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args(argv)
    shape, memory = SHAPES[given.shape], MEMORY[given.memory]
    if given.steps < 2:
        parser.error("--steps must be at least 2: the first step is cold")
    try:
        backend = open_backend(given.backend)
    except OrchError as error:
        print(f"decode_runner: {error}", file=sys.stderr)
        return 2
    try:
        lines = graph_lines(LargeDecode(shape, memory))
        runs = [
            asyncio.run(decode(shape, memory, backend, one, given.steps, given.log))
            for one in SETTINGS
            if given.mode in ("all", one.name)
        ]
        words, assumed = support(backend.info), assumptions(backend.info)
    except OrchError as error:
        print(f"decode_runner: {error}", file=sys.stderr)
        return 1
    finally:
        backend.close()
    if given.json:
        print(json.dumps(json_object(runs, words)))
        return 0
    console = Console(highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(line, soft_wrap=True)
    console.print(f"{given.backend}: {words}; {given.steps} steps a mode, --memory {given.memory}", soft_wrap=True)
    if assumed:
        console.print(assumed, soft_wrap=True)
    console.print(table(runs))
    console.print(IDLE_SHARE, soft_wrap=True)
    return 0
