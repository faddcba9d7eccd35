"""A fence is done once, in order, and tells everyone who asked exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends._software_fence import PendingFence

from async_orch.abc import Fence
from tests.conformance.kit import PATIENCE_S, Gate


def test_a_fence_is_pending_until_its_work_is_over(threaded: SoftwareBackend) -> None:
    """Before, a fence has neither error nor time; after, it has a time."""
    gate = Gate()
    stream = threaded.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    fence = stream.record()
    gate.wait_entered()
    assert not fence.query()
    assert fence.error is None
    assert fence.time_ns() is None
    gate.open()
    fence.synchronize(PATIENCE_S)
    assert fence.query()
    assert fence.error is None
    assert fence.time_ns() is not None


def test_fences_settle_in_the_order_of_recording(
    backend: SoftwareBackend, let_callbacks_run: Callable[[], None]
) -> None:
    """Notifications of one stream come in order, and times never go back."""
    stream = backend.create_stream("compute")
    order: list[int] = []
    fences: list[Fence] = []
    for index in range(10):
        stream.launch(lambda: None, cost_ns=1000)
        fence = stream.record()
        fence.notify(partial(order.append, index))
        fences.append(fence)
    stream.synchronize(PATIENCE_S)
    let_callbacks_run()
    times = [fence.time_ns() or 0 for fence in fences]
    assert order == list(range(10))
    assert times == sorted(times)
    assert fences[-1].elapsed_ns(fences[0]) == times[-1] - times[0]


def test_a_done_fence_notifies_at_once(backend: SoftwareBackend) -> None:
    """Whoever asks after the fact is called on the spot, each time."""
    stream = backend.create_stream("compute")
    stream.launch(lambda: None)
    stream.synchronize(PATIENCE_S)
    fence = stream.record()
    calls: list[int] = []
    fence.notify(lambda: calls.append(1))
    fence.notify(lambda: calls.append(2))
    assert calls == [1, 2]


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


def test_synchronize_gives_up_after_its_time(threaded: SoftwareBackend) -> None:
    """A time-out names itself, leaves the fence as it was, and a later wait succeeds."""
    gate = Gate()
    stream = threaded.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    fence = stream.record()
    with pytest.raises(TimeoutError, match=r"0\.01 s"):
        fence.synchronize(0.01)
    with pytest.raises(TimeoutError):
        stream.synchronize(0)
    gate.open()
    fence.synchronize(PATIENCE_S)
    stream.synchronize()


def test_many_threads_may_block_on_one_fence(threaded: SoftwareBackend) -> None:
    """Each of them is let go."""
    gate, released = Gate(), list[int]()
    stream = threaded.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    fence = stream.record()

    def block(who: int) -> None:
        fence.synchronize(PATIENCE_S)
        released.append(who)

    waiters = [threading.Thread(target=block, args=(who,)) for who in range(4)]
    for waiter in waiters:
        waiter.start()
    gate.open()
    for waiter in waiters:
        waiter.join(PATIENCE_S)
    assert sorted(released) == [0, 1, 2, 3]
