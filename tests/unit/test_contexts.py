"""Calls from where they cannot work: other threads, loops, tasks, processes."""

from __future__ import annotations

import asyncio
import os
import threading

import anyio
import anyio.from_thread
import pytest

from async_orch import Orchestrator
from async_orch.exceptions import MisuseError, OrchError
from tests.programs import Square


async def test_submit_from_another_thread_goes_through_a_portal() -> None:
    """anyio's BlockingPortal of the loop takes submit and run from a worker thread."""
    async with Orchestrator(Square(), "host") as orch, anyio.from_thread.BlockingPortal() as portal:

        def worker() -> list[int]:
            return [portal.call(orch.run, i).output for i in range(4)]

        assert await asyncio.to_thread(worker) == [0, 1, 4, 9]


async def test_submit_nowait_from_another_thread_says_what_to_use() -> None:
    """Without a portal it is an error that names one, and nothing is submitted."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        with pytest.raises(MisuseError, match="BlockingPortal"):
            await asyncio.to_thread(orch.submit_nowait, 1)
        assert orch.statistics().submitted == 0


async def test_use_from_a_second_event_loop_says_so() -> None:
    """Another loop in another thread cannot submit."""
    caught: list[BaseException] = []

    async def other(orch: Orchestrator[int, int]) -> None:
        try:
            await orch.submit(1)
        except OrchError as exc:
            caught.append(exc)

    async with Orchestrator(Square(), "sim:instant") as orch:
        await asyncio.to_thread(lambda: asyncio.run(other(orch)))
    assert isinstance(caught[0], MisuseError)
    assert "another event loop or thread" in str(caught[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
async def test_use_after_fork_says_so() -> None:
    """A child process cannot drive its parent's device."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                orch.submit_nowait(1)
                answer = b"submitted"
            except MisuseError as exc:
                answer = str(exc).encode()
            except BaseException as exc:  # noqa: BLE001 - the child only reports
                answer = repr(exc).encode()
            os.write(write_end, answer)
            os._exit(0)
        assert b"opened before a fork" in os.read(read_end, 4096)
        await asyncio.to_thread(os.waitpid, pid, 0)
        os.close(read_end)
        os.close(write_end)


async def test_leaving_in_another_task_than_entering_raises() -> None:
    """Enter and exit belong to one task; the right task can still leave."""
    orch = Orchestrator(Square(), "sim:instant")
    async with orch:
        failed: list[BaseException] = []

        async def leave() -> None:
            try:
                await orch.__aexit__(None, None, None)
            except MisuseError as exc:
                failed.append(exc)

        await asyncio.create_task(leave())
        assert "in the task that entered it" in str(failed[0])
        assert (await orch.run(3)).output == 9


async def test_launch_hooks_run_on_one_thread_with_open_and_close() -> None:
    """With launch_in='thread' open, launch, feed and close share the device thread."""
    threads: list[str] = []

    class Notes(Square):
        def open(self, device: object) -> None:
            threads.append(threading.current_thread().name)

        def launch(self, step: int, slot: object, stream: object) -> int | None:
            threads.append(threading.current_thread().name)
            return super().launch(step, slot, stream)  # type: ignore[arg-type]

        def close(self) -> None:
            threads.append(threading.current_thread().name)

    async with Orchestrator(Notes(), "host", launch_in="thread", collect_in="thread") as orch:
        assert [r.output async for r in orch.map(range(5))] == [0, 1, 4, 9, 16]
    assert threads == ["async_orch-device-0"] * 7


async def test_a_million_handles_dropped_unawaited_leave_nothing() -> None:
    """Handles that nobody keeps cost nothing after their step; a thousandth of the million runs here."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        for i in range(1000):
            await orch.submit(i)
        await orch.drain()
        assert orch.statistics().completed == 1000
        assert orch.statistics().in_flight == 0
