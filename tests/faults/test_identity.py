"""Names of steps: in flight exactly as long as the step is."""

from __future__ import annotations

import asyncio

import pytest

from async_orch import Orchestrator
from async_orch.exceptions import ConfigurationError
from async_orch.testing import ManualBackend
from tests.programs import Square, settle


async def test_a_step_id_that_equals_its_seq_is_free_again_when_the_step_has_settled() -> None:
    """A caller who numbers steps as the engine does may use each number again, and no name is kept."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        for i in range(3):
            await orch.run(i, step_id=i)
        for i in range(3):
            await orch.run(i, step_id=i)


async def test_an_unnamed_step_does_not_release_the_name_of_another() -> None:
    """A step known by its seq may end while a step that the caller named with the same number is in flight."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        named = await orch.submit(1, step_id=1)
        unnamed = await orch.submit(2)
        unnamed.cancel()
        with pytest.raises(ConfigurationError, match="step_id=1 is in flight already"):
            await orch.submit(3, step_id=1)
        backend.copy.run()
        backend.compute.run()
        await named


async def test_two_steps_of_one_name_cannot_both_wait_for_admission() -> None:
    """A name is taken from the call of submit on, not only from acceptance; a waiter that gives up frees it."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, max_inflight=1) as orch:
        first = await orch.submit(0)
        waiting = asyncio.ensure_future(orch.submit(1, step_id="twin"))
        await settle()
        with pytest.raises(ConfigurationError, match="step_id='twin' is in flight already"):
            await orch.submit(2, step_id="twin")
        waiting.cancel()
        await settle()
        again = asyncio.ensure_future(orch.submit(3, step_id="twin"))
        await settle()
        first.cancel()
        backend.copy.run()
        backend.compute.run()
        handle = await again
        backend.copy.run()
        backend.compute.run()
        assert (await handle).output == 9
