"""A fence is done once, in order, and tells everyone who asked exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import cast

import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends._software_fence import PendingFence

from async_orch.abc import Fence
from tests.conformance.kit import PATIENCE_S, Gate


def test_notifications_come_on_the_streams_thread(threaded: SoftwareBackend) -> None:
    """A callback of a pending fence runs on the thread of its stream."""
    gate, names, called = Gate(), list[str](), threading.Event()
    stream = threaded.create_stream("copy")
    stream.launch(gate, cost_ns=1)
    fence = stream.record()
    fence.notify(lambda: names.append(threading.current_thread().name))
    fence.notify(called.set)
    gate.open()
    assert called.wait(PATIENCE_S)
    assert names == [f"async_orch-{threaded.info.backend}-copy"]


def test_notify_calls_exactly_once_in_a_race_with_the_end(threaded: SoftwareBackend) -> None:
    """Threads that ask while the fence settles are all called, none of them twice."""
    stream = threaded.create_stream("compute")
    lock, calls = threading.Lock(), Counter[tuple[int, int]]()

    def count(key: tuple[int, int]) -> None:
        with lock:
            calls[key] += 1

    for attempt in range(50):
        gate = Gate()
        stream.launch(gate, cost_ns=1)
        fence = stream.record()
        start = threading.Barrier(4)

        def ask(who: int, fence: Fence = fence, start: threading.Barrier = start, attempt: int = attempt) -> None:
            start.wait(PATIENCE_S)
            for _ in range(5):
                fence.notify(lambda: count((attempt, who)))

        askers = [threading.Thread(target=ask, args=(who,)) for who in range(3)]
        for asker in askers:
            asker.start()
        start.wait(PATIENCE_S)
        gate.open()
        for asker in askers:
            asker.join(PATIENCE_S)
        fence.synchronize(PATIENCE_S)
    stream.close()  # the last fence's callbacks have run when the thread is gone
    assert calls == {(attempt, who): 5 for attempt in range(50) for who in range(3)}


def test_a_notify_that_loses_the_race_by_a_hair_still_calls() -> None:
    """A fence that settles between notify's look and its lock has not forgotten the callback."""
    calls: list[str] = []

    class SettlesFirst:
        """A lock whose first taker finds that the fence was settled while it waited."""

        entered = False

        def __enter__(self) -> None:
            if not self.entered:
                self.entered = True
                fence.settle(None, 5)

        def __exit__(self, *exc: object) -> None:
            """Nothing to let go."""

    class Owner:
        lock = cast("threading.Lock", SettlesFirst())

        def check_process(self) -> None:
            """Not forked."""

    fence = PendingFence(Owner(), 0)
    fence.notify(lambda: calls.append("called"))
    assert calls == ["called"]
    assert fence.time_ns() == 5


def test_a_callback_that_raises_is_reported_and_harms_nobody(
    threaded: SoftwareBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception goes to threading.excepthook; later callbacks and work go on."""
    reported: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: reported.append(args.exc_value))

    def raise_key_error() -> None:
        raise KeyError

    gate, called = Gate(), threading.Event()
    stream = threaded.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    fence = stream.record()
    fence.notify(raise_key_error)
    fence.notify(called.set)
    gate.open()
    stream.launch(lambda: None)
    stream.synchronize(PATIENCE_S)
    assert called.is_set()
    assert [type(exc) for exc in reported] == [KeyError]
