"""What must hold after anything went wrong, and the small things that the fault tests share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio.to_thread
import pytest

from async_orch import Orchestrator, StepHandle, _opening
from async_orch._record import RecordMaker
from async_orch._records import RecordTarget
from async_orch._step import Step
from async_orch.logs import StepRecord

__all__ = [
    "Records",
    "assert_balanced",
    "assert_no_tasks",
    "assert_no_threads",
    "eventually",
    "no_log_thread",
    "outcomes",
    "threads_of_ours",
]


class Records(list[StepRecord]):
    """A ``step_log`` callable that keeps what it gets."""

    def __call__(self, record: StepRecord) -> None:
        self.append(record)

    def assert_one_a_step(self, submitted: int) -> None:
        """Each accepted step wrote exactly one record."""
        assert sorted(record.seq for record in self) == list(range(submitted))


class SyncWriter:
    """Stands in for the log's thread where that would disturb: in virtual time, and in thousands of short runs."""

    dropped = 0
    behind = False

    def __init__(self, maker: RecordMaker, targets: Sequence[RecordTarget], *_: Any) -> None:
        self._maker, self._targets = maker, targets

    def put(self, step: Step) -> None:
        """Write at once."""
        for target in self._targets:
            target.write([self._maker(step)])

    async def flush(self) -> None:
        """Nothing is ever behind."""

    def close(self, timeout_s: float) -> bool:
        """There is no thread."""
        return True


@contextmanager
def no_log_thread() -> Iterator[None]:
    """Orchestrators opened inside write their records on the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_opening, "RecordWriter", SyncWriter)
        yield


def assert_balanced(orch: Orchestrator[Any, Any], *, quarantined: int = 0) -> None:
    """Every lease is back and every step counted once."""
    statistics = orch.statistics()
    assert statistics.submitted == (
        statistics.completed + statistics.failed + statistics.cancelled + statistics.pending
    ), statistics
    assert (statistics.pending, statistics.on_device) == (0, 0), statistics
    assert (statistics.slots_leased, statistics.staging_leased) == (0, 0), statistics
    assert statistics.slots_quarantined + statistics.staging_quarantined <= quarantined, statistics


def threads_of_ours() -> list[str]:
    """Names of the threads alive of the engine, host and sim.

    A driver's waiter thread is left out: tests of hung devices abandon one on purpose.
    """
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("async_orch") and not name.startswith("async_orch-opencl")]


def assert_no_threads(patience_s: float = 5.0) -> None:
    """No thread of ours is left; one that is on its way out is waited for."""
    deadline = time.monotonic() + patience_s
    ours = threads_of_ours()
    for thread in threading.enumerate():
        if thread.name in ours:
            thread.join(max(0.0, deadline - time.monotonic()))
    assert threads_of_ours() == []


def assert_no_tasks() -> None:
    """Nothing but the present task runs on the loop."""
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not others, others


def _nothing() -> None:
    pass


async def eventually(condition: Callable[[], object], ticks: int = 10_000) -> None:
    """Let the loop turn until ``condition()`` holds; for things that happen on threads."""
    for _ in range(ticks):
        if condition():
            return
        # The loop waits for a thread, so that the one that the condition waits for gets the GIL as well.
        await anyio.to_thread.run_sync(_nothing)
    raise AssertionError("it never came true")


def outcomes(handles: list[StepHandle[Any]]) -> list[str]:
    """How each step ended."""
    return [handle.status for handle in handles]
