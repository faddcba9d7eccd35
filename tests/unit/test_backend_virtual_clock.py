"""The event loop of the tests: jumps to timers, and says when it is stuck."""

from __future__ import annotations

import asyncio

import pytest

from async_orch.testing import LoopStuck, run_virtual
from tests.virtual_time import pass_time


def test_time_jumps_to_the_next_timer() -> None:
    """Hours of sleeping pass at once, and the clock shows them exactly."""

    async def main() -> list[float]:
        loop, seen = asyncio.get_running_loop(), list[float]()
        loop.call_later(7200, lambda: seen.append(loop.time()))
        loop.call_later(0.5, lambda: seen.append(loop.time()))
        await pass_time(100 * 3600)
        return [*seen, loop.time()]

    assert run_virtual(main(), start_s=10.0) == [10.5, 7210.0, 360_010.0]


def test_time_stands_still_while_something_is_ready() -> None:
    """Callbacks that are ready run before the clock moves."""

    async def main() -> float:
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 0.0


def test_a_stuck_loop_says_who_waits_where() -> None:
    """With nothing ready and no timer the run ends with an error that names the waiting task and its line."""

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(LoopStuck, match=r"stuck at 0\.0.*Task-\d+ at .*test_backend_virtual_clock\.py:\d+"):
        run_virtual(main())


def test_wake_ups_from_other_threads_are_seen() -> None:
    """A callback that another thread posted before the loop looks is run, not jumped over."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        posted = asyncio.Event()
        loop.call_soon_threadsafe(posted.set)
        await posted.wait()
        return loop.time()

    assert run_virtual(main()) == 0.0
