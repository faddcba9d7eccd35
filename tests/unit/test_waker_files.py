"""The waker's file: none is left behind, none is written to by mistake, and without one it works all the same."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from async_orch import Orchestrator, _waker
from async_orch._waker import Waker
from async_orch.testing import ManualBackend
from tests.programs import Square
from tests.waking import PATIENCE_S, needs_eventfd, on_thread, open_files, wake_from


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("who", ["thread", "loop"])
async def test_after_close_nothing_is_called_and_no_file_is_open(who: str, listen: bool) -> None:
    """Neither for a wake-up that came just before, nor for one that comes too late; closing twice is closing once."""
    before, calls = open_files(), list[int]()
    for early in (True, False):
        waker = Waker(asyncio.get_running_loop(), lambda: calls.append(1))
        if listen:
            waker.listen()
            waker.listen()
        if early:
            wake_from(who, waker)
        waker.close()
        waker.close()
        wake_from(who, waker)
        for _ in range(3):
            await asyncio.sleep(0)
        assert calls == []
    assert open_files() == before


@needs_eventfd
async def test_a_thread_that_is_late_writes_to_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that has begun to wake when the waker is closed still has the waker's file, and no other one gets it."""
    begun, closed = threading.Event(), threading.Event()
    write, results = os.eventfd_write, list[Any]()
    waker = Waker(asyncio.get_running_loop(), lambda: results.append("called"))
    waker.listen()

    def late(fd: int, value: int) -> None:
        begun.set()
        assert closed.wait(PATIENCE_S)
        results.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        write(fd, value)

    monkeypatch.setattr(os, "eventfd_write", late)
    before = open_files()
    thread = threading.Thread(target=waker.wake)
    thread.start()
    assert begun.wait(PATIENCE_S)
    waker.close()
    closed.set()
    thread.join(PATIENCE_S)
    await asyncio.sleep(0)
    assert results == ["anon_inode:[eventfd]"]
    assert open_files() == before - 1


@needs_eventfd
@pytest.mark.parametrize("why", ["no file left", "too large a number", "loop without readers", "no eventfd"])
async def test_without_a_file_it_wakes_as_asyncio_does(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file left, one too many for ``select``, a loop that watches none, another system: it works all the same."""
    loop, called, before = asyncio.get_running_loop(), asyncio.Event(), open_files()

    def refuse(*args: Any) -> Any:
        raise NotImplementedError if why == "loop without readers" else OSError(errno.EMFILE, "Too many open files")

    if why == "no eventfd":
        monkeypatch.delattr(os, "eventfd")
    elif why == "no file left":
        monkeypatch.setattr(os, "eventfd", refuse)
    elif why == "too large a number":
        monkeypatch.setattr(_waker, "_FD_LIMIT", 0)
    else:
        monkeypatch.setattr(loop, "add_reader", refuse)
    waker = Waker(loop, called.set)
    waker.listen()
    assert open_files() == before
    on_thread(waker.wake)
    await asyncio.wait_for(called.wait(), PATIENCE_S)
    waker.close()


@pytest.mark.parametrize("listen", [True, False])
@pytest.mark.parametrize("who", ["thread", "loop"])
def test_a_loop_closed_under_it_leaves_no_file(who: str, listen: bool) -> None:
    """Where nobody left the orchestrator, wake-ups do nothing any more, and the file goes with the waker."""
    before = open_files()
    loop = asyncio.new_event_loop()
    waker = Waker(loop, lambda: None)
    if listen:
        waker.listen()
    loop.close()
    wake_from(who, waker)
    wake_from(who, waker)
    del waker
    gc.collect()
    assert open_files() == before


@needs_eventfd
async def test_the_loop_keeps_no_waker() -> None:
    """One that nobody closed is collected with what it would call, on a loop that goes on, and its file is closed."""
    before = open_files()
    found: list[weakref.ref[Waker]] = []
    for _ in range(3):
        waker = Waker(asyncio.get_running_loop(), lambda: None)
        waker.listen()
        found.append(weakref.ref(waker))
        del waker
    gc.collect()
    assert [one() for one in found] == [None] * 3
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert open_files() == before


@needs_eventfd
@pytest.mark.parametrize("end", ["closed", "dropped"])
async def test_the_next_waker_gets_a_file_too(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop forgets the file of one that ended before its number is given to the next."""
    loop = asyncio.get_running_loop()
    for _ in range(3):
        called = asyncio.Event()
        waker = Waker(loop, called.set)
        waker.listen()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", None)  # calling it would raise
            on_thread(waker.wake)
            await called.wait()
        if end == "closed":
            waker.close()
        del waker
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@needs_eventfd
async def test_an_orchestrator_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file while it is open, none after it, also when opening fails halfway."""

    class Refusing(Square):
        def open(self, device: Any) -> None:
            raise RuntimeError("no")

    before = open_files()
    async with Orchestrator(Square(), ManualBackend()):
        assert open_files() == before + 1
    assert open_files() == before
    with pytest.raises(RuntimeError, match="no"):
        async with Orchestrator(Refusing(), ManualBackend()):
            pass
    assert open_files() == before
