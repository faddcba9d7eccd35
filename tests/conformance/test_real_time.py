"""The simulated device in real time: never early, and free operations cost no thread."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from tests.conformance.kit import PATIENCE_S, TIMED, Gate

MS = 1_000_000


def test_a_fence_is_never_seen_before_its_scheduled_end() -> None:
    """When synchronize returns, the time that the fence states has passed, and no cost was cut short."""
    backend = SimBackend(TIMED)
    stream = backend.create_stream("compute")
    for _ in range(20):
        start = time.monotonic_ns()
        stream.launch(lambda: None)
        fence = stream.record()
        fence.synchronize(PATIENCE_S)
        now, end = time.monotonic_ns(), fence.time_ns()
        assert end is not None
        assert start + TIMED.launch_ns + TIMED.kernel_ns <= end <= now
    backend.close()


def test_late_wake_ups_do_not_add_up() -> None:
    """Operations enqueued together end exactly a cost apart, however late the thread was."""
    backend = SimBackend(TIMED)
    gate, stream = Gate(), backend.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    fences = []
    for _ in range(5):
        stream.launch(lambda: None, cost_ns=10 * MS)
        fences.append(stream.record())
    gate.open()
    fences[-1].synchronize(PATIENCE_S)
    cost_ns = TIMED.launch_ns + 10 * MS
    distances = [later.elapsed_ns(earlier) or 0 for earlier, later in pairwise(fences)]
    assert min(distances) == cost_ns  # a busy machine may stretch an effect beyond its cost, but hardly all four
    backend.close()


def test_an_effect_longer_than_its_cost_moves_the_end() -> None:
    """A kernel that takes 3 ms where the profile says 0.35 ms ends after 3 ms."""

    def busy() -> None:
        end_ns = time.monotonic_ns() + 3 * MS
        while time.monotonic_ns() < end_ns:
            pass

    backend = SimBackend(TIMED)
    stream = backend.create_stream("compute")
    start = time.monotonic_ns()
    stream.launch(busy)
    fence = stream.record()
    fence.synchronize(PATIENCE_S)
    end = fence.time_ns()
    assert end is not None
    assert end >= start + 3 * MS
    backend.close()


def test_an_allocation_takes_its_cost() -> None:
    """The caller gets the buffer when the cost has passed, not before."""
    backend = SimBackend(SimProfile(name="slow", alloc_fixed_ns=2 * MS, alloc_bytes_per_s=1e9))
    start = time.monotonic_ns()
    backend.alloc(1_000_000)
    assert time.monotonic_ns() - start >= 3 * MS
    backend.close()


def test_free_operations_complete_at_enqueue_on_the_calling_thread() -> None:
    """On the instant profile everything is done when the call returns, and no thread is started."""
    backend = SimBackend(SimProfile(name="instant"))
    before = threading.active_count()
    host, device = backend.alloc_host(8), backend.alloc(8)
    host.array[:] = 3
    stream = backend.create_stream("compute")
    ran_on: list[threading.Thread] = []
    stream.copy(device, host, 8)
    stream.launch(lambda array: ran_on.append(threading.current_thread()), device)
    fence = stream.record()
    assert fence.query()
    assert (device.array == 3).all()
    assert ran_on == [threading.current_thread()]
    assert threading.active_count() == before
    backend.close()


def test_free_operations_wait_behind_pending_ones() -> None:
    """A launch with a cost of its own is pending, and what follows it keeps the order."""
    backend = SimBackend(SimProfile(name="instant"))
    stream, gate, order = backend.create_stream("compute"), Gate(), list[str]()
    stream.launch(gate, cost_ns=1)
    stream.launch(order.append, "second")
    fence = stream.record()
    assert not fence.query()
    assert order == []
    gate.open()
    fence.synchronize(PATIENCE_S)
    assert order == ["second"]
    backend.close()
