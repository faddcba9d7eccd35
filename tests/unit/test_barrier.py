"""Barriers: a function of the caller with the device at rest."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import wait_all_tasks_blocked as blocked

from async_orch import Device, Orchestrator
from async_orch.exceptions import DeviceLost, MisuseError
from async_orch.testing import ManualBackend
from tests.programs import Square, settle


def run_device(backend: ManualBackend) -> None:
    backend.copy.run()
    backend.compute.run()


@pytest.mark.parametrize("rebuild", [False, True])
async def test_the_function_runs_between_earlier_and_later_steps(rebuild: bool) -> None:
    """Every earlier step has settled, no later one is launched; with rebuild none is built either."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        first = await orch.submit(1)
        seen: list[Any] = []
        later: list[Any] = []

        def between() -> str:
            seen.append((first.status, [h.status for h in later]))
            return "value"

        barrier = asyncio.ensure_future(orch.barrier(between, rebuild=rebuild))
        await blocked()
        later.append(await orch.submit(2))
        assert later[0].status == ("queued" if rebuild else "acquired")
        run_device(backend)
        assert await barrier == "value"
        assert seen == [("completed", ["queued" if rebuild else "acquired"])]
        run_device(backend)
        assert (await later[0]).output == 4


async def test_it_waits_for_detached_steps_to_leave_the_device() -> None:
    """A cancelled step that still runs on the device counts as earlier work."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        (await orch.submit(1)).cancel()
        ran: list[int] = []
        barrier = asyncio.ensure_future(orch.barrier(lambda: ran.append(1)))
        await blocked()
        assert ran == []
        run_device(backend)
        await barrier
        assert ran == [1]


async def test_an_async_function_may_allocate() -> None:
    """A barrier is off the step path: resident memory can be resized in it."""

    class Keeps(Square):
        def open(self, device: Device) -> None:
            self.device = device

    program = Keeps()
    async with Orchestrator(program, "sim:instant") as orch:

        async def resize() -> int:
            await anyio.lowlevel.checkpoint()
            assert program.device is not None
            return program.device.alloc(256).nbytes

        assert await orch.barrier(resize) == 256
        assert orch.statistics().step_path_allocs == 0


@pytest.mark.parametrize("call", ["submit", "submit_nowait", "run", "drain", "barrier", "map"])
async def test_calling_back_into_the_orchestrator_raises(call: str) -> None:
    """What would wait for itself is refused, at any depth of the function."""
    async with Orchestrator(Square(), "sim:instant") as orch:

        async def back() -> None:
            special: dict[str, list[Any]] = {"drain": [], "barrier": [lambda: None], "map": [[1]]}
            arguments = special.get(call, [1])
            value = getattr(orch, call)(*arguments)
            if call not in ("submit_nowait", "map"):
                await value

        with pytest.raises(MisuseError, match="may not call back"):
            await orch.barrier(back)
        assert (await orch.run(2)).output == 4


async def test_an_exception_of_the_function_comes_out_and_steps_go_on() -> None:
    """A failing barrier is its caller's matter."""

    def broken() -> None:
        raise LookupError("no such page")

    async with Orchestrator(Square(), "sim:instant") as orch:
        with pytest.raises(LookupError, match="no such page"):
            await orch.barrier(broken)
        assert (await orch.run(2)).output == 4


async def test_a_cancelled_barrier_lets_later_steps_go() -> None:
    """A caller that gives up waiting takes its barrier with it."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        await orch.submit(1)
        barrier = asyncio.ensure_future(orch.barrier(lambda: None))
        await blocked()
        later = await orch.submit(2)
        assert later.status == "acquired"
        barrier.cancel()
        await blocked()
        assert later.status == "launched"
        run_device(backend)
        assert (await later).output == 4


async def test_barriers_are_first_in_first_out() -> None:
    """Two barriers run in the order of their calls, each after the steps before it."""
    backend = ManualBackend()
    order: list[str] = []
    async with Orchestrator(Square(), backend) as orch:
        await orch.submit(1)
        first = asyncio.ensure_future(orch.barrier(lambda: order.append("first")))
        await blocked()
        await orch.submit(2)
        second = asyncio.ensure_future(orch.barrier(lambda: order.append("second")))
        await blocked()
        run_device(backend)
        await first
        assert order == ["first"]
        await settle()
        run_device(backend)
        await second
        assert order == ["first", "second"]


async def test_a_lost_device_wakes_who_waits_for_a_barrier() -> None:
    """Nobody hangs in barrier() when the device is gone."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, drain_timeout_s=0.05) as orch:
        await orch.submit(1)
        barrier = asyncio.ensure_future(orch.barrier(lambda: None))
        await blocked()
        backend.lose(DeviceLost("gone"))
        with pytest.raises(DeviceLost):
            await barrier


async def test_two_barriers_in_two_tasks_with_nothing_in_flight() -> None:
    """With no step on its way both run at once, one after the other."""
    order: list[int] = []
    async with Orchestrator(Square(), "host") as orch, anyio.create_task_group() as tasks:
        for i in range(2):
            tasks.start_soon(orch.barrier, partial(order.append, i))
    assert order == [0, 1]
