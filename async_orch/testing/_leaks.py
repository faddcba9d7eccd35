"""What a test left behind: leases, tasks, threads, device memory, file descriptors."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from async_orch.abc import Backend
from async_orch.exceptions import OrchestratorClosed

__all__ = ["LeakError", "Leaks", "leak_check", "leak_fixture"]

THREAD_PREFIX = "async_orch"
_FD_FOLDERS = ("/proc/self/fd", "/dev/fd")


class Watched(Protocol):
    """An orchestrator, for the purpose of counting."""

    def statistics(self) -> Any: ...


WatchedT = TypeVar("WatchedT", bound="Backend | Watched")


class LeakError(AssertionError):
    """Something was left behind; the message lists it."""


class Leaks:
    """What is watched between the beginning of a `leak_check` and its end."""

    def __init__(self) -> None:
        self._threads = set(threading.enumerate())
        self._files = _open_files()
        self._tasks = _live_tasks()
        self._backends: list[tuple[Backend, int]] = []
        self._orchestrators: list[Watched] = []

    def watch(self, thing: WatchedT) -> WatchedT:
        """Watch an orchestrator's leases or a backend's memory too; returns what it was given."""
        if isinstance(thing, Backend):
            self._backends.append((thing, thing.allocated_nbytes or 0))
        else:
            self._orchestrators.append(thing)
        return thing

    def find(self, *, grace_s: float = 0.0) -> list[str]:
        """What is there now and was not at the beginning, one line each.

        Threads get ``grace_s`` seconds in all to end: a stream's thread ends a moment after its backend closed.
        """
        left = [line for orchestrator in self._orchestrators for line in _counts_left(orchestrator)]
        for backend, before in self._backends:
            nbytes = (backend.allocated_nbytes or 0) - before
            if nbytes > 0:
                left.append(f"{nbytes} B of device memory on backend {backend.info.backend!r}")
        current = asyncio.current_task() if _loop_runs() else None
        tasks = _live_tasks() - self._tasks - {current}
        left.extend(f"task {task.get_name()}: {task.get_coro()!r}" for task in tasks)
        deadline = time.monotonic() + grace_s
        for thread in set(threading.enumerate()) - self._threads:
            if thread.name.startswith(THREAD_PREFIX) and thread is not threading.current_thread():
                thread.join(max(deadline - time.monotonic(), 0.0))
                if thread.is_alive():
                    left.append(f"thread {thread.name}")
        for number, target in sorted(_open_files().items()):
            if self._files.get(number) != target:
                left.append(f"file descriptor {number}: {target}")
        return left


@contextmanager
def leak_check(*watched: Backend | Watched, grace_s: float = 2.0) -> Iterator[Leaks]:
    """Raise `LeakError` if the body leaves something behind that was not there before.

    Always looked at: threads named ``async_orch...``, open file descriptors (Linux, macOS), and, inside a coroutine,
    tasks. Of each orchestrator in ``watched`` or given to `Leaks.watch`: leases, unsettled steps, resident memory. Of
    each backend: device memory. Leases of quarantined buffers count as given back (`Statistics` reports them); their
    device memory is kept until the backend closes, and shows if the backend is watched.

    Close what you opened inside the body. If the body raises, its exception passes unchanged, with what is left as a
    note. ``grace_s`` bounds the wait for threads that are ending.
    """
    leaks = Leaks()
    for thing in watched:
        leaks.watch(thing)
    try:
        yield leaks
    except BaseException as exc:
        for line in leaks.find():
            exc.add_note(f"left behind: {line}")
        raise
    left = leaks.find(grace_s=grace_s)
    if left:
        raise LeakError("left behind:\n  " + "\n  ".join(left))


def leak_fixture(*, autouse: bool = False) -> Any:
    """A pytest fixture around each test: ``leaks = leak_fixture()`` in a test module or ``conftest.py``.

    Its value is the `Leaks`, whose `Leaks.watch` takes orchestrators and backends. Tasks are the business of the
    test's event loop, which a fixture does not see: use `leak_check` in the test for those.
    """
    import pytest  # noqa: PLC0415 - needed by those only who use it as a fixture

    @pytest.fixture(autouse=autouse)
    def leaks() -> Iterator[Leaks]:
        """What the test leaves behind fails it."""
        with leak_check() as watching:
            yield watching

    return leaks


def _counts_left(orchestrator: Watched) -> list[str]:
    try:
        statistics = orchestrator.statistics()
    except OrchestratorClosed:  # never opened
        return []
    counts = {
        "leased slots": statistics.slots_leased,
        "leased staging buffers": statistics.staging_leased,
        "unsettled steps": statistics.pending,
        "B of resident memory": statistics.resident_nbytes,
    }
    return [f"{count} {what} of {orchestrator!r}" for what, count in counts.items() if count]


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _live_tasks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if not task.done()} if _loop_runs() else set()


def _open_files() -> dict[int, str]:
    """Open descriptors and what they lead to; empty where the system does not tell."""
    for folder in _FD_FOLDERS:
        try:
            names = [entry.name for entry in Path(folder).iterdir()]
        except OSError:
            continue
        found: dict[int, str] = {}
        for name in names:
            try:
                found[int(name)] = str(Path(folder, name).readlink())
            except OSError:
                # The descriptor that listed the folder, closed by now; or, on macOS, one that is no link.
                if Path(folder, name).exists():
                    found[int(name)] = "open"
        return found
    return {}
