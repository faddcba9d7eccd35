"""Decode a batch of prompts through an orchestrator, in one of its modes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

from async_orch import Orchestrator
from async_orch.abc import Backend
from examples.qwen3.figures import ModeRun, StepFacts
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import DecodeStep, Schedule

__all__ = ["Mode", "decode"]

Mode = Literal["naive", "ring", "pipelined"]


async def decode(
    program: Qwen3Decode,
    schedule: Schedule,
    backend: str | Backend,
    *,
    mode: Mode = "pipelined",
    slots: int = 3,
    queue_depth: int = 2,
    max_inflight: int | None = None,
    upload: Literal["full", "delta"] = "full",
    step_log: Any = None,
    on_token: Callable[[int, int], None] | None = None,
    on_step: Callable[[DecodeStep, DecodeOutput], None] | None = None,
) -> ModeRun:
    """Run every step of the schedule; returns each prompt's tokens and the steps' timings.

    ``on_token(row, token)`` and ``on_step(step, output)`` are called as results arrive, on the loop's thread.
    No step waits for a token: what is submitted depends on the prompts' lengths alone.
    """
    run = ModeRun(mode, tokens=[[] for _ in schedule.prompts])
    start_ns = time.monotonic_ns()
    async with Orchestrator(
        program,
        backend=backend,
        mode=mode,
        slots=slots,
        queue_depth=queue_depth,
        max_inflight=max_inflight,
        upload=upload,
        step_log=step_log,
    ) as orchestrator:
        run.open_ns = time.monotonic_ns() - start_ns
        steps = iter(schedule)
        async for result in orchestrator.map(schedule):
            step = next(steps)
            generating = step.rows[step.generates].tolist()
            for row in generating:
                token = int(result.output.tokens[row])
                run.tokens[row].append(token)
                if on_token is not None:
                    on_token(row, token)
            run.steps.append(StepFacts(result.timings, result.cold_reason, len(generating)))
            if on_step is not None:
                on_step(step, result.output)
    run.records_dropped = orchestrator.statistics().records_dropped
    return run
