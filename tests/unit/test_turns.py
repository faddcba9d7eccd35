"""Callers that never wait for anything still give other tasks of the loop their turn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import Orchestrator
from tests.programs import Square

BUILD_NS = 600_000
STEPS = 24


class Slow(Square):
    """Builds that take 0.6 ms each on a clock that only they move; notes how many came between two turns of others."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.since_turn = self.most_since_turn = 0

    def build(self, step: int, image: Any) -> int | None:
        self.now_ns += BUILD_NS
        self.since_turn += 1
        self.most_since_turn = max(self.most_since_turn, self.since_turn)
        return super().build(step, image)


async def _submit(orch: Orchestrator[int, int]) -> list[int]:
    return [await handle for handle in [await orch.submit(i) for i in range(STEPS)]]  # type: ignore[misc]


async def _run(orch: Orchestrator[int, int]) -> list[Any]:
    return [await orch.run(i) for i in range(STEPS)]


async def _map(orch: Orchestrator[int, int]) -> list[Any]:
    return [result async for result in orch.map(range(STEPS))]


@pytest.mark.parametrize("call", [_submit, _run, _map])
async def test_slow_inline_steps_give_others_a_turn_every_millisecond(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where 32 inline steps take far longer, others get their turn after 1 ms: after two builds of 0.6 ms."""
    program = Slow()
    backend = SimBackend(SimProfile(name="instant"))
    monkeypatch.setattr(backend, "clock_source", lambda: lambda: program.now_ns)
    over = False

    async def other() -> None:
        while not over:
            program.since_turn = 0
            await asyncio.sleep(0)

    async with Orchestrator(program, backend) as orch:
        watching = asyncio.create_task(other())
        await asyncio.sleep(0)
        results = await call(orch)
        over = True
        await watching
    backend.close()
    assert [result.output for result in results] == [i * i for i in range(STEPS)]
    # A map begins with as many steps as may be in flight, before its first result is asked for.
    assert program.most_since_turn <= (6 if call is _map else 3), "the turn comes after the step that took too long"
