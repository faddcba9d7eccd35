"""Exceptions that are no `Exception`: cancels, exits and interrupts out of hooks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_orch import EngineProgram, Orchestrator, Slot
from async_orch.abc import Stream
from async_orch.exceptions import BuildError, CollectError, LaunchError, StepError
from tests.faults.support import assert_balanced, assert_no_threads
from tests.programs import Square

ERRORS: dict[str, type[StepError]] = {"build": BuildError, "launch": LaunchError, "collect": CollectError}


class Raises(Square):
    """One hook raises for the step -1."""

    def __init__(self, hook: str, error: BaseException) -> None:
        super().__init__()
        self.hook, self.error = hook, error

    def _maybe(self, hook: str, step: int) -> None:
        if hook == self.hook and step == -1:
            raise self.error

    def build(self, step: int, image: Any) -> int | None:
        self._maybe("build", step)
        return super().build(step, image)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self._maybe("launch", step)
        return super().launch(step, slot, stream)

    def collect(self, step: int, output: Any) -> int:
        self._maybe("collect", step)
        return super().collect(step, output)


@pytest.mark.parametrize("where", ["inline", "thread"])
@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
@pytest.mark.parametrize("kind", [asyncio.CancelledError, GeneratorExit])
async def test_a_cancel_raised_by_a_hook_is_its_steps_failure(hook: str, where: str, kind: Any) -> None:
    """It cancels neither the task that submits nor the pipeline, and ends no worker."""
    program = Raises(hook, kind("from a library"))
    options: Any = {f"{hook}_in": where}
    async with Orchestrator(program, "sim:instant", **options) as orch:
        handle = await orch.submit(-1)
        with pytest.raises(ERRORS[hook], match="from a library"):
            await handle
        assert (await orch.run(3)).output == 9
    assert_balanced(orch)


@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_an_interrupt_in_an_inline_hook_comes_out_and_leaves_nothing(hook: str, kind: Any) -> None:
    """It is meant for the thread that the hook borrowed; the step fails and the others can go on."""
    program = Raises(hook, kind())
    orch = Orchestrator(program, "sim:instant")
    with pytest.raises(kind):
        async with orch:
            await orch.run(2)
            await orch.submit(-1)
            raise AssertionError("not reached")
    assert_balanced(orch)
    assert orch.statistics().completed == 1


@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
async def test_an_exit_in_a_worker_ends_the_step_and_not_the_worker(hook: str) -> None:
    """A worker thread has nobody to raise to: SystemExit is the step's failure there."""
    program = Raises(hook, SystemExit(3))
    options: Any = {f"{hook}_in": "thread"}
    async with Orchestrator(program, "sim:instant", **options) as orch:
        handle = await orch.submit(-1)
        with pytest.raises(ERRORS[hook]):
            await handle
        assert (await orch.run(3)).output == 9
    assert_balanced(orch)
    assert_no_threads()


class Engine(EngineProgram[int, int]):
    """Its reclaim of -1 exits."""

    def prepare(self, step: int, slot_index: int) -> int:
        return step

    def dispatch(self, prepared: int) -> int:
        return prepared

    def reclaim(self, pending: int, timeout_s: float) -> int:
        if pending == -1:
            raise SystemExit(3)
        return pending * pending


async def test_an_exit_in_reclaim_ends_the_step_and_not_the_lane() -> None:
    """The thread that reclaims goes on with the next step."""
    async with Orchestrator(Engine()) as orch:
        with pytest.raises(LaunchError):
            await orch.run(-1)
        assert (await orch.run(3)).output == 9
    assert_balanced(orch)


class BadSizes(Square):
    """Its `sizes` raises for -1."""

    def sizes(self, step: int) -> None:
        if step == -1:
            raise ArithmeticError("sizes of -1")


async def test_a_sizes_that_raises_refuses_the_step() -> None:
    """Nothing was accepted; from map it comes after the results of the steps before, and ends the iteration."""
    async with Orchestrator(BadSizes(), "sim:instant") as orch:
        with pytest.raises(ArithmeticError, match="sizes of -1"):
            await orch.submit(-1)
        assert orch.statistics().submitted == 0
        results = []
        iterator = orch.map([1, 2, -1, 3])
        with pytest.raises(ArithmeticError, match="sizes of -1"):
            while True:
                results.append((await anext(iterator)).output)
        assert results == [1, 4]
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)
    assert_balanced(orch)


async def test_thousands_of_retries_need_no_stack() -> None:
    """A build may be tried as often as the caller asks."""
    calls: list[int] = []

    class Never(Square):
        def build(self, step: int, image: Any) -> int | None:
            calls.append(step)
            raise ArithmeticError("never")

    async with Orchestrator(Never(), "sim:instant") as orch:
        with pytest.raises(BuildError, match="never"):
            await orch.run(1, retries=5000)
    assert len(calls) == 5001
