"""What the tests of the engine examples share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from async_orch import Orchestrator

BATCHES = [[10 * i + row for row in range(1 + i % 8)] for i in range(30)]


def following(batch: list[int]) -> list[int]:
    """What the model gives for a batch."""
    return [3 * token + 1 for token in batch]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Each test ends with the threads that it began with; one that was abandoned in a hang ends after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)
        assert not thread.is_alive()


def assert_all_back(orch: Orchestrator[Any, Any]) -> None:
    """Every step is accounted for, and nothing is leased, out of use or abandoned."""
    counts = orch.statistics()
    assert counts.pending == counts.slots_leased == counts.slots_quarantined == counts.threads_abandoned == 0
    assert counts.submitted == counts.completed + counts.failed + counts.cancelled
