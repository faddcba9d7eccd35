"""Engines with their own prepare, dispatch and reclaim."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from async_orch import EngineProgram, Orchestrator
from async_orch.exceptions import BuildError, ConfigurationError, DeviceLost, LaunchError, StepCancelled
from async_orch.logs import StepRecord
from async_orch.testing import ManualFence
from tests.programs import Square, settle


class Engine(EngineProgram[int, int]):
    """Squares an int in one of its own buffers; fails loudly if a buffer is used for two steps at a time."""

    def __init__(self, slots: int = 3) -> None:
        self.buffers: list[int | None] = [None] * slots
        self.calls: list[str] = []
        self.fail: dict[str, set[int]] = {}
        self.gate: threading.Event | None = None

    def _note(self, hook: str, step: int) -> None:
        self.calls.append(f"{hook} {step}")
        if step in self.fail.get(hook, ()):
            raise ArithmeticError(f"{hook} of {step}")

    def open(self) -> None:
        self.calls.append("open")

    def prepare(self, step: int, slot_index: int) -> Any:
        if self.buffers[slot_index] is not None:
            raise RuntimeError(f"buffer {slot_index} still holds {self.buffers[slot_index]}")
        self.buffers[slot_index] = step
        try:
            self._note("prepare", step)
        except ArithmeticError:
            self.buffers[slot_index] = None
            raise
        return (step, slot_index)

    def dispatch(self, prepared: Any) -> Any:
        step, index = prepared
        try:
            self._note("dispatch", step)
        except ArithmeticError:
            self.buffers[index] = None
            raise
        return prepared

    def reclaim(self, pending: Any, timeout_s: float) -> int:
        step, index = int(pending[0]), pending[1]
        if self.gate is not None and not self.gate.wait(timeout_s):
            raise TimeoutError(f"no answer within {timeout_s} s")
        if self.buffers[index] != step:
            raise RuntimeError(f"buffer {index} holds {self.buffers[index]} instead of {step}")
        self.buffers[index] = None
        self._note("reclaim", step)
        return step * step

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize("build_in", ["inline", "thread"])
@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_an_engine_runs_like_any_program(build_in: Any, launch_in: Any) -> None:
    """Results in order, each buffer with one step at a time, one record a step with nulls for what is unseen."""
    engine, records = Engine(), list[StepRecord]()
    async with Orchestrator(engine, build_in=build_in, launch_in=launch_in, step_log=records.append) as orch:
        assert [r.output async for r in orch.map(range(30))] == [i * i for i in range(30)]
        assert orch.statistics().slots_leased == 0
    assert engine.calls[0] == "open"
    assert engine.calls[-1] == "close"
    assert [c for c in engine.calls if c.startswith("dispatch")] == [f"dispatch {i}" for i in range(30)]
    assert len(records) == 30
    first = min(records, key=lambda r: r.seq)
    assert (first.device_ns, first.h2d_ns, first.alloc_count) == (None, None, None)
    assert first.build_ns is not None


@pytest.mark.parametrize(
    ("hook", "kind"), [("prepare", BuildError), ("dispatch", LaunchError), ("reclaim", LaunchError)]
)
async def test_a_failing_hook_fails_its_step_only(hook: str, kind: type[Exception]) -> None:
    """An exception in one of the three fails that step; its index is used again."""
    engine = Engine()
    engine.fail[hook] = {2}
    async with Orchestrator(engine) as orch:
        handles = [await orch.submit(i) for i in range(5)]
        with pytest.raises(kind, match=f"{hook} of 2"):
            await handles[2]
        assert [(await h).output for i, h in enumerate(handles) if i != 2] == [0, 1, 9, 16]
    assert orch.statistics().slots_leased == 0


async def test_a_failed_dispatch_gives_its_index_back() -> None:
    """The index comes back once the steps dispatched before are over, and the window is as wide as before."""
    engine = Engine(slots=2)
    engine.fail["dispatch"] = {2}
    engine.gate = threading.Event()
    async with Orchestrator(engine, slots=2) as orch:
        first, failed, third = [await orch.submit(i) for i in (1, 2, 3)]
        with pytest.raises(LaunchError):
            await failed
        engine.gate.set()
        assert (await first).output == 1
        assert (await third).output == 9
        engine.gate = threading.Event()
        later = [await orch.submit(i) for i in (4, 5)]
        await wait_all_tasks_blocked()
        assert [h.status for h in later] == ["launched", "launched"]
        engine.gate.set()


async def test_a_cancelled_step_is_still_reclaimed() -> None:
    """After dispatch only the engine knows when the buffer is free: reclaim runs, then the index comes back."""
    engine = Engine()
    engine.gate = threading.Event()
    async with Orchestrator(engine, slots=1) as orch:
        handle = await orch.submit(3)
        assert handle.cancel()
        with pytest.raises(StepCancelled):
            await handle
        assert orch.statistics().slots_leased == 1
        engine.gate.set()
        assert (await orch.run(4)).output == 16
    assert "reclaim 3" in engine.calls


async def test_a_reclaim_that_times_out_loses_the_device() -> None:
    """TimeoutError from reclaim means that the engine hangs: every step fails with DeviceLost."""
    engine = Engine()
    engine.gate = threading.Event()
    async with Orchestrator(engine, fence_timeout_s=0.05, drain_timeout_s=1) as orch:
        first, second = await orch.submit(1), await orch.submit(2)
        for handle in (first, second):
            with pytest.raises(DeviceLost, match="device lost at step 0"):
                await handle
        engine.gate.set()


async def test_what_an_engine_cannot_do_is_refused() -> None:
    """wait_for needs a stream; engines and step programs do not share an orchestrator."""
    async with Orchestrator(Engine()) as orch:
        with pytest.raises(ConfigurationError, match="an EngineProgram's streams are its own"):
            await orch.submit(1, wait_for=[ManualFence()])
        await settle()
    with pytest.raises(ConfigurationError, match="cannot share an orchestrator"):
        Orchestrator({"engine": Engine(), "step": Square()})


async def test_policies_and_after_hold_for_engines_too() -> None:
    """discard_dependents drops the steps built on a failed one, as a serving loop wants it."""
    engine = Engine()
    engine.fail["reclaim"] = {1}
    engine.gate = threading.Event()
    async with Orchestrator(engine, policy="discard_dependents") as orch:
        first = await orch.submit(1)
        second = await orch.submit(2, after=first)
        engine.gate.set()
        with pytest.raises(LaunchError):
            await first
        error = second.exception()
        while not second.done():
            await settle()
        error = second.exception()
        assert error is not None
        assert "needs the output of step 0" in str(error)
