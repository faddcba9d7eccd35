"""Waking the loop from threads: nothing is lost, and what comes together is merged."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from async_orch import SlotRing
from async_orch._waker import Waker
from async_orch.testing import ManualBackend
from tests.waking import PATIENCE_S, AsleepLoop, needs_eventfd, on_thread


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    found: Any = pytest.importorskip("uvloop", reason="uvloop is not installed")
    factory: Callable[[], asyncio.AbstractEventLoop] = found.new_event_loop
    return factory


async def _count_events(listen: bool, threads: int = 4, each: int = 200) -> tuple[int, int]:
    """Events of several threads, each followed by a wake-up: how many the callback found, in how many calls."""
    loop = asyncio.get_running_loop()
    happened, seen, calls, over = 0, 0, 0, asyncio.Event()
    lock = threading.Lock()

    def look() -> None:
        nonlocal seen, calls
        calls += 1
        seen = happened
        if seen == threads * each:
            over.set()

    waker = Waker(loop, look)
    if listen:
        waker.listen()

    def work() -> None:
        nonlocal happened
        for _ in range(each):
            with lock:
                happened += 1
            waker.wake()

    started = [threading.Thread(target=work) for _ in range(threads)]
    for thread in started:
        thread.start()
    await asyncio.wait_for(over.wait(), PATIENCE_S)
    for thread in started:
        thread.join(PATIENCE_S)
    waker.close()
    return seen, calls


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_no_event_is_lost_and_wake_ups_are_merged(loop: str, listen: bool) -> None:
    """Whatever four threads do at once, the callback sees all of it, in at most as many calls as there were events."""
    factory = _uvloop() if loop == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        seen, calls = runner.run(_count_events(listen))
    assert seen == 800
    assert 1 <= calls <= 800


@pytest.mark.parametrize("listen", [True, False])
def test_a_loop_that_sleeps_is_woken(listen: bool) -> None:
    """A thread wakes a loop that has nothing to do and no timer."""
    loop = AsleepLoop()

    async def main() -> None:
        called = asyncio.Event()
        waker = Waker(loop, called.set)
        if listen:
            waker.listen()

        def work() -> None:
            assert loop.asleep.acquire(timeout=PATIENCE_S)
            waker.wake()

        thread = threading.Thread(target=work)
        thread.start()
        await called.wait()
        waker.close()
        thread.join(PATIENCE_S)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


async def test_an_event_while_the_callback_looks_gets_a_call_of_its_own() -> None:
    """What happens after the callback's look, and before it returns, is seen by another call."""
    loop, happened, seen = asyncio.get_running_loop(), [1], list[int]()
    over = asyncio.Event()

    def look() -> None:
        seen.append(len(happened))
        if len(seen) == 1:
            happened.append(2)
            on_thread(waker.wake)
        else:
            over.set()

    waker = Waker(loop, look)
    waker.listen()
    on_thread(waker.wake)
    await asyncio.wait_for(over.wait(), PATIENCE_S)
    waker.close()
    assert seen == [1, 2]


async def test_wake_ups_before_the_loop_looks_are_one() -> None:
    """Ten wake-ups of a thread and ten of the loop's own, while the loop is busy, make one call."""
    calls: list[int] = []
    waker = Waker(asyncio.get_running_loop(), lambda: calls.append(1))
    waker.listen()

    def ten_times() -> None:
        for _ in range(10):
            waker.wake()

    on_thread(ten_times)
    ten_times()
    for _ in range(4):
        await asyncio.sleep(0)
    waker.close()
    assert calls == [1]


@needs_eventfd
async def test_a_thread_does_not_go_through_the_loops_own_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it listens, a thread writes to the waker's file, and the loop's own thread makes no system call."""
    loop, called = asyncio.get_running_loop(), asyncio.Event()
    waker = Waker(loop, called.set)
    waker.listen()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "call_soon_threadsafe", None)  # calling it would raise
        on_thread(waker.wake)
        await asyncio.wait_for(called.wait(), PATIENCE_S)
    called.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "eventfd_write", None)
        waker.wake()
    await asyncio.wait_for(called.wait(), PATIENCE_S)
    waker.close()


@needs_eventfd
async def test_a_wake_up_that_a_forked_child_took_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is shared with a child: what it reads there is not lost for us."""
    called = asyncio.Event()
    waker = Waker(asyncio.get_running_loop(), called.set)
    waker.listen()
    read = os.eventfd_read

    def twice(fd: int) -> int:
        read(fd)
        return read(fd)  # raises: nothing is left

    monkeypatch.setattr(os, "eventfd_read", twice)
    on_thread(waker.wake)
    await asyncio.wait_for(called.wait(), PATIENCE_S)
    waker.close()


async def test_the_callback_sees_no_context_of_whoever_opened_it() -> None:
    """A variable of the task that opened the orchestrator is not one of the hooks that a thread's event sets off."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen, called = list[str](), asyncio.Event()

    def look() -> None:
        seen.append(variable.get())
        called.set()

    variable.set("opener's")
    waker = Waker(asyncio.get_running_loop(), look)
    waker.listen()
    on_thread(waker.wake)
    await asyncio.wait_for(called.wait(), PATIENCE_S)
    waker.close()
    assert seen == ["none"]


def test_a_ring_whose_loop_moves_to_another_thread_is_served() -> None:
    """A fence that the loop's former thread finishes wakes a loop that sleeps on another one."""
    backend = ManualBackend()
    backend.create_stream("compute")
    stream = backend.compute
    ring: SlotRing[str] = SlotRing.adopt(["only"])
    loop = AsleepLoop()

    async def first() -> None:
        (await ring.acquire()).release(stream.record())
        again = asyncio.ensure_future(ring.acquire())
        await asyncio.sleep(0)
        stream.run()
        (await again).release(stream.record())

    async def second() -> Any:
        waiting = asyncio.ensure_future(ring.acquire())
        await asyncio.sleep(0)
        while loop.asleep.acquire(blocking=False):
            pass  # of sleeps before this one
        begun.set()
        return await waiting

    begun = threading.Event()
    loop.run_until_complete(first())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        lease = asyncio.run_coroutine_threadsafe(second(), loop)
        assert begun.wait(PATIENCE_S)
        assert loop.asleep.acquire(timeout=PATIENCE_S)
        stream.run()
        assert lease.result(PATIENCE_S).index == 0
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()
