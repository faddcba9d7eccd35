"""`map`: results in order, a bounded window, and clean early ends."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from async_orch import Orchestrator
from async_orch.exceptions import BuildError
from async_orch.testing import ManualBackend
from tests.programs import Hooked, Square


@pytest.mark.parametrize("backend", ["sim:instant", "host"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
async def test_results_come_in_order_for_any_number_of_steps(backend: str, count: int) -> None:
    """Zero, one, fewer than slots and many steps all end, in order (DALI #2551)."""
    async with Orchestrator(Square(), backend) as orch:
        assert [r.output async for r in orch.map(range(count))] == [i * i for i in range(count)]


async def test_an_async_iterable_works_too() -> None:
    """Steps may come from an async generator."""

    async def source() -> AsyncIterator[int]:
        for i in range(20):
            await anyio.lowlevel.checkpoint()
            yield i

    async with Orchestrator(Square(), "host") as orch:
        assert [r.output async for r in orch.map(source())] == [i * i for i in range(20)]


@pytest.mark.parametrize("backend", ["sim:instant", "host"])
async def test_the_source_is_not_read_further_than_the_window(backend: str) -> None:
    """At most max_inflight steps are taken beyond those consumed (pypeln #111)."""
    taken = 0

    def source() -> Iterator[int]:
        nonlocal taken
        for i in range(100):
            taken += 1
            yield i

    async with Orchestrator(Square(), backend, max_inflight=3) as orch:
        consumed = 0
        async for _ in orch.map(source()):
            consumed += 1
            assert taken <= consumed + 3 + 1


async def test_breaking_out_removes_and_detaches_what_is_left() -> None:
    """After a break nothing is in flight, the source is no longer read, and the slots come back."""
    backend = ManualBackend()
    taken: list[int] = []

    def source() -> Iterator[int]:
        for i in range(100):
            taken.append(i)
            yield i

    async with Orchestrator(Square(), backend) as orch:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def consume() -> None:
                    async for _ in orch.map(source()):
                        break

                tasks.start_soon(consume)
                await anyio.wait_all_tasks_blocked()
                backend.copy.run()
                backend.compute.run_step()
        assert not scope.cancelled_caught
        gc.collect()
        assert orch.statistics().in_flight == 0
        assert len(taken) <= 7
        backend.copy.run()
        backend.compute.run()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        statistics = orch.statistics()
        assert (statistics.slots_leased, statistics.staging_leased) == (0, 0)


async def test_breaking_out_of_a_blocked_async_source_stops_it() -> None:
    """An async source that never gives another item is cancelled and closed when the loop is left."""
    closed: list[str] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            await anyio.sleep_forever()
        finally:
            closed.append("closed")

    async with Orchestrator(Square(), "sim:instant") as orch:
        async for result in orch.map(source()):
            if result.output == 4:
                break
        await anyio.wait_all_tasks_blocked()
        assert closed == ["closed"]
        assert orch.statistics().in_flight == 0


async def test_a_dropped_iterator_leaves_nothing_behind() -> None:
    """An iterator that is never iterated, or dropped half way, holds no step."""
    async with Orchestrator(Square(), "host") as orch:
        orch.map(range(10))
        iterator = orch.map(range(10))
        assert (await anext(iterator)).output == 0
        del iterator
        gc.collect()
        await orch.drain()
        assert orch.statistics().in_flight == 0


async def test_an_iterable_that_raises_does_so_after_the_results_before_it() -> None:
    """Nothing accepted is lost: the source's exception comes after the earlier results."""

    def source() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError("no more batches")

    outputs: list[int] = []
    async with Orchestrator(Square(), "host") as orch:
        with pytest.raises(LookupError, match="no more batches"):
            async for result in orch.map(source()):
                outputs.append(result.output)  # noqa: PERF401 - it must keep what came before the exception
    assert outputs == [1, 4]


async def test_an_async_iterable_that_raises_does_so_after_the_results_before_it() -> None:
    """The same for an async source; the orchestrator lives on."""

    async def source() -> AsyncIterator[int]:
        yield 1
        raise LookupError("no more batches")

    async with Orchestrator(Square(), "host") as orch:
        iterator = orch.map(source())
        assert (await anext(iterator)).output == 1
        with pytest.raises(LookupError):
            await anext(iterator)
        assert (await orch.run(3)).output == 9


async def test_a_failed_step_raises_in_its_place_and_iteration_can_go_on() -> None:
    """A failure is raised where its result would have come; the next call gives the next result."""
    async with Orchestrator(Hooked(build={1}), "host") as orch:
        iterator = orch.map(range(3))
        assert (await anext(iterator)).output == 0
        with pytest.raises(BuildError):
            await anext(iterator)
        assert (await anext(iterator)).output == 4
        with pytest.raises(StopAsyncIteration):
            await anext(iterator)


async def test_a_consumer_may_run_steps_of_its_own_while_iterating() -> None:
    """map and run share the window without waiting for each other in a circle."""
    async with Orchestrator(Square(), "host", max_inflight=2, slots=1) as orch:
        outputs = [(r.output, (await orch.run(10)).output) async for r in orch.map(range(5))]
    assert outputs == [(i * i, 100) for i in range(5)]


async def test_a_cancelled_wait_does_not_lose_the_result() -> None:
    """A time-out around one iteration leaves its step for the next (CPython's asyncio #201)."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        iterator = orch.map([5])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, iterator)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert orch.statistics().in_flight == 1
        backend.copy.run()
        backend.compute.run()
        assert (await anext(iterator)).output == 25


async def test_what_is_no_iterable_is_refused() -> None:
    """A TypeError names what was given."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        with pytest.raises(TypeError, match="got int"):
            orch.map(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["map", "submit", "run"])
async def test_other_tasks_get_turns_between_steps_that_never_wait(way: str) -> None:
    """On a device that is always done at once, each way to submit still lets the loop run at least every 32 steps."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with Orchestrator(Square(), "sim:instant") as orch, anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        if way == "map":
            async for _ in orch.map(range(640)):
                pass
        else:
            for i in range(640):
                await (orch.submit(i) if way == "submit" else orch.run(i))
        tasks.cancel_scope.cancel()
    assert turns >= 20
