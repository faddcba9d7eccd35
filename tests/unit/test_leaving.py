"""Cancelling, draining and leaving: nothing leaks and nothing hangs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked as blocked

from async_orch import Orchestrator, StepHandle
from async_orch.exceptions import OrchestratorClosed, StepCancelled
from async_orch.testing import ManualBackend
from tests.programs import Square


def run_device(backend: ManualBackend) -> None:
    backend.copy.run()
    backend.compute.run()


async def test_cancelling_before_launch_removes_the_step() -> None:
    """A cancelled step that the device has not seen is a hole that later steps skip."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=1, queue_depth=2) as orch:
        handles = [await orch.submit(i) for i in range(3)]
        assert handles[1].status == "built"
        assert handles[1].cancel()
        assert not handles[1].cancel()
        assert handles[1].status == "cancelled"
        with pytest.raises(StepCancelled, match="removed before its launch"):
            await handles[1]
        for _ in range(2):
            run_device(backend)
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
        assert (await handles[2]).output == 4
        statistics = orch.statistics()
        assert (statistics.completed, statistics.cancelled) == (2, 1)


async def test_cancelling_after_launch_detaches_and_the_slot_waits_for_its_fence() -> None:
    """The handle settles at once; the slot comes back only when the device is done with it."""
    collected: list[int] = []

    class Notes(Square):
        def collect(self, step: int, output: Any) -> int:
            collected.append(step)
            return super().collect(step, output)

    backend = ManualBackend()
    async with Orchestrator(Notes(), backend) as orch:
        handle = await orch.submit(1)
        assert handle.cancel()
        assert handle.status == "detached"
        assert orch.statistics().slots_leased == 1
        with pytest.raises(StepCancelled, match="detached after its launch"):
            await handle
        run_device(backend)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        assert orch.statistics().slots_leased == 0
    assert collected == []


async def test_cancelling_during_a_threaded_build_keeps_its_staging_until_the_build_returns() -> None:
    """Nobody else gets the buffer that a cancelled build still writes to."""
    started, release = threading.Event(), threading.Event()

    class Slow(Square):
        def build(self, step: int, image: Any) -> int | None:
            started.set()
            release.wait(20)
            return super().build(step, image)

    async with Orchestrator(Slow(), "sim:instant", build_in="thread") as orch:
        handle = await orch.submit(1)
        await asyncio.to_thread(started.wait, 20)
        assert handle.cancel()
        assert handle.done()
        assert orch.statistics().staging_leased == 1
        release.set()
        assert (await orch.run(2)).output == 4
        assert orch.statistics().staging_leased == 0


async def test_a_cancelled_run_cancels_its_step() -> None:
    """``run`` owns its step: giving up the call gives up the step."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(orch.run, 3)
                await blocked()
                scope.cancel()
        statistics = orch.statistics()
        assert (statistics.in_flight, statistics.cancelled) == (0, 1)
        run_device(backend)


async def test_a_submit_cancelled_while_waiting_leaves_nothing_and_lets_the_next_in() -> None:
    """A waiter that gives up is forgotten; the one behind it is served."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, max_inflight=1) as orch:
        first = await orch.submit(1)
        waiting = asyncio.ensure_future(orch.submit(2))
        behind = asyncio.ensure_future(orch.submit(3))
        await blocked()
        waiting.cancel()
        await blocked()
        run_device(backend)
        assert (await first).output == 1
        handle = await behind
        run_device(backend)
        assert (await handle).output == 9
        assert orch.statistics().submitted == 2


async def test_a_submit_cancelled_in_the_tick_of_its_acceptance_cancels_the_step() -> None:
    """A native cancel that races the acceptance does not leave an unowned step behind."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, max_inflight=1) as orch:
        first = await orch.submit(1)
        waiting = asyncio.ensure_future(orch.submit(2))
        await blocked()
        first.cancel()  # makes room: the waiting step is accepted here
        assert orch.statistics().submitted == 2
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        statistics = orch.statistics()
        assert (statistics.in_flight, statistics.cancelled) == (0, 2)
        run_device(backend)


async def test_leaving_drains() -> None:
    """Leaving without an exception waits for every accepted step."""
    async with Orchestrator(Square(), "host") as orch:
        handles = [await orch.submit(i) for i in range(5)]
    assert [(await h).output for h in handles] == [0, 1, 4, 9, 16]
    statistics = orch.statistics()
    assert (statistics.completed, statistics.pending, statistics.slots_leased) == (5, 0, 0)


async def test_leaving_on_an_exception_cancels_and_raises_it_unchanged() -> None:
    """The body's own exception comes out as it is, not in a group; steps are cancelled, memory is freed."""
    backend = ManualBackend()
    error = KeyError("mine")
    orch = Orchestrator(Square(), backend, drain_timeout_s=5)
    handles: list[StepHandle[int]] = []
    with pytest.raises(KeyError) as caught:
        async with orch:
            handles += [await orch.submit(i) for i in range(4)]
            backend.copy.run()
            asyncio.get_running_loop().call_later(0, run_device, backend)
            raise error
    assert caught.value is error
    assert [h.status for h in handles] == ["detached", "detached", "detached", "cancelled"]
    assert backend.live == []
    assert orch.statistics().slots_leased == 0


async def test_leaving_within_a_cancelled_scope_settles_all_the_same() -> None:
    """A cancel from outside does not leave leases or memory behind."""
    orch = Orchestrator(Square(), "host")
    with anyio.CancelScope() as scope:
        async with orch:
            for i in range(4):
                await orch.submit(i)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    statistics = orch.statistics()
    assert statistics.pending == statistics.slots_leased == statistics.staging_leased == 0


async def test_leaving_with_a_hung_device_ends_in_time_and_reports_the_slots() -> None:
    """A fence that never comes costs drain_timeout_s, once for draining and once for closing; the slot counts."""
    backend = ManualBackend()
    orch = Orchestrator(Square(), backend, drain_timeout_s=0.01)
    with pytest.raises(TimeoutError, match=r"drain_timeout_s=0\.01 s: step 0 \(seq 0\) was still launched"):
        async with orch:
            await orch.submit(1)
    assert orch.statistics().slots_leased == 1


async def test_waiting_submits_are_refused_when_the_orchestrator_is_left() -> None:
    """Nobody hangs in submit after the end."""
    backend = ManualBackend()
    waiting: list[asyncio.Future[Any]] = []
    with pytest.raises(ZeroDivisionError):
        async with Orchestrator(Square(), backend, max_inflight=1, drain_timeout_s=0.01) as orch:
            await orch.submit(1)
            waiting.append(asyncio.ensure_future(orch.submit(2)))
            await blocked()
            raise ZeroDivisionError
    with pytest.raises(OrchestratorClosed):
        await waiting[0]


async def test_drain_waits_for_earlier_steps_only() -> None:
    """A drain ends although later submits keep coming."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        first = await orch.submit(1)
        draining = asyncio.ensure_future(orch.drain())
        await blocked()
        later = await orch.submit(2)
        backend.copy.run()
        backend.compute.run_step()
        await draining
        assert first.done()
        assert not later.done()
        run_device(backend)


async def test_oldest_gives_the_first_unsettled_step() -> None:
    """A serving loop can wait for the oldest step."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        assert orch.oldest() is None
        handles = [await orch.submit(i) for i in range(2)]
        oldest = orch.oldest()
        assert oldest is not None
        assert oldest.seq == 0
        handles[0].cancel()
        oldest = orch.oldest()
        assert oldest is not None
        assert oldest.seq == 1
        run_device(backend)


async def test_submit_nowait_raises_would_block_at_the_bound() -> None:
    """max_inflight bounds accepted steps, and submit_nowait says so at once."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, max_inflight=2) as orch:
        orch.submit_nowait(1)
        orch.submit_nowait(2)
        with pytest.raises(anyio.WouldBlock):
            orch.submit_nowait(3)
        run_device(backend)


@pytest.mark.parametrize("mode", ["ring", "naive"])
async def test_serial_modes_have_one_step_at_a_time(mode: Any) -> None:
    """In modes ring and naive the next build starts after the step before settled."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, mode=mode) as orch:
        first, second = await orch.submit(1), await orch.submit(2)
        assert (first.status, second.status) == ("launched", "queued")
        slot_buffers = [b for b in backend.live if b.name.startswith("slot.") and not b.is_host]
        assert len(slot_buffers) == (9 if mode == "ring" else 3)
        run_device(backend)
        await first
        run_device(backend)
        result = await second
        assert result.output == 4
        assert result.timings.alloc_count == (0 if mode == "ring" else 3)
        assert result.timings.alloc_nbytes == (0 if mode == "ring" else 8 + 64 + 8)
        assert result.cold_reason == (None if mode == "ring" else "each_step")
    assert backend.live == []


async def test_the_mode_variable_overrides_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASYNC_ORCH_MODE lets a user bisect without touching code."""
    monkeypatch.setenv("ASYNC_ORCH_MODE", "naive")
    async with Orchestrator(Square(), "sim:instant") as orch:
        assert orch.config.mode == "naive"
        assert (await orch.run(3)).timings.alloc_count == 3
