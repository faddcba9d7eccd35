"""An iterator of `map` that is dropped where no loop runs."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

from async_orch import Orchestrator
from async_orch.testing import ManualBackend
from tests.faults.support import assert_balanced, eventually
from tests.programs import Square


def test_an_iterator_dropped_between_two_runs_of_its_loop_stops_when_it_turns_again() -> None:
    """Nothing is printed or raised from the collector; the source is ended and the steps are cancelled."""
    loop = asyncio.new_event_loop()
    backend = ManualBackend()
    orch = Orchestrator(Square(), backend, drain_timeout_s=0.05)
    ended: list[bool] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    leave = asyncio.Event()

    async def body() -> None:
        async with orch:
            await leave.wait()

    async def first(iterator: Any) -> None:
        waiting = asyncio.ensure_future(anext(iterator))
        await eventually(lambda: orch.statistics().on_device == 1)
        waiting.cancel()
        await asyncio.wait((waiting,))

    async def rest() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        assert orch.statistics().cancelled == 1
        assert ended == [True]
        backend.copy.run()
        backend.compute.run()
        leave.set()
        await task

    task = loop.create_task(body())
    loop.run_until_complete(asyncio.sleep(0))
    iterator: Any = None

    async def start() -> Any:
        return orch.map(source())

    iterator = loop.run_until_complete(start())
    loop.run_until_complete(first(iterator))
    del iterator
    gc.collect()
    loop.run_until_complete(rest())
    loop.close()
    assert_balanced(orch)
