"""Entering and leaving while cancels and failing hooks get in the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from async_orch import Device, Orchestrator
from async_orch.exceptions import OrchestratorClosed
from async_orch.testing import ManualBackend
from tests.faults.support import assert_balanced, assert_no_threads, eventually
from tests.programs import Square, settle


async def test_native_cancels_while_leaving_do_not_cut_it_short() -> None:
    """Each cancel is kept until everything is closed and freed; only then does it come out."""
    backend = ManualBackend()
    program = Square()
    orch = Orchestrator(program, backend, drain_timeout_s=20)

    async def body() -> None:
        async with orch:
            await orch.submit(1)

    task = asyncio.ensure_future(body())
    await settle()
    for _ in range(4):
        task.cancel()
        await settle()
    assert not task.done()
    backend.copy.run()
    backend.compute.run()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.live == []
    assert program.calls == ["open", "close"]
    assert_balanced(orch)


class BadClose(Square):
    """Its close raises."""

    def close(self) -> None:
        super().close()
        raise ArithmeticError("close")


@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_a_close_that_raises_does_not_replace_the_bodys_exception(launch_in: Any) -> None:
    """The body's own exception comes out unchanged; without one, what close raised does."""
    backend = ManualBackend()
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        async with Orchestrator(BadClose(), backend, launch_in=launch_in):
            raise error
    assert caught.value is error
    with pytest.raises(ArithmeticError, match="close"):
        async with Orchestrator(BadClose(), backend, launch_in=launch_in):
            pass
    assert backend.live == []
    assert_no_threads()


class BadOpen(BadClose):
    """Its open raises, and its close too."""

    def open(self, device: Device) -> None:
        device.alloc(64)
        raise LookupError("open")


@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_a_failed_open_comes_out_although_close_fails_too(launch_in: Any) -> None:
    """What made opening fail is raised, and everything is freed."""
    backend = ManualBackend()
    with pytest.raises(LookupError, match="open"):
        async with Orchestrator(BadOpen(), backend, launch_in=launch_in):
            raise AssertionError("not reached")
    assert backend.live == []
    assert_no_threads()


class SlowOpen(Square):
    """Its open writes to device memory until the test lets it end."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()
        self.written = False

    def open(self, device: Device) -> None:
        super().open(device)
        buffer = device.alloc(64)
        self.entered.set()
        self.release.wait(30)
        buffer.array.fill(1)
        self.written = True


@pytest.mark.parametrize("native", [True, False])
async def test_a_cancel_during_open_on_the_device_thread_waits_for_the_hook(native: bool) -> None:
    """Memory is not freed, and close not called, while open still runs."""
    backend, program = ManualBackend(), SlowOpen()

    async def body() -> None:
        async with Orchestrator(program, backend, launch_in="thread"):
            raise AssertionError("not reached")

    with anyio.CancelScope() as scope:
        task = asyncio.ensure_future(body())
        await eventually(program.entered.is_set)
        if native:
            task.cancel()
            await settle()
            task.cancel()
        else:
            scope.cancel()
            task.cancel()
        with anyio.CancelScope(shield=True):
            await settle()
            assert program.calls == ["open"]
            program.release.set()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert program.written
    assert program.calls == ["open", "close"]
    assert backend.live == []
    assert_no_threads()


async def test_a_log_target_that_hangs_is_counted() -> None:
    """The writer's thread is abandoned inside the caller's target, within a bound, and reported."""
    release = threading.Event()

    def stuck(record: object) -> None:
        release.wait(30)

    orch = Orchestrator(Square(), "sim:instant", step_log=stuck, drain_timeout_s=0.05)
    async with orch:
        await orch.submit(1)
    assert orch.statistics().threads_abandoned == 1
    release.set()
    assert_no_threads()


async def test_the_consumer_of_a_map_is_told_when_its_source_is_cut_off() -> None:
    """Another task that iterates an async source must not take the orchestrator's end for the source's."""
    started = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        yield 1
        started.set()
        await asyncio.Event().wait()

    results: list[Any] = []

    async def consume(orch: Orchestrator[int, int]) -> None:
        iterator = orch.map(endless())
        while True:
            results.append((await anext(iterator)).output)

    async with Orchestrator(Square(), "sim:instant") as orch:
        task = asyncio.ensure_future(consume(orch))
        await started.wait()
        await settle()
    with pytest.raises(OrchestratorClosed):
        await task
    assert results == [1]
