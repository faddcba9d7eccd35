"""Closing is bounded and leaves nobody waiting; a reset makes streams usable again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends._software_stream import SoftwareStream

from async_orch.abc import ByteArray
from async_orch.exceptions import DeviceError
from async_orch.testing import ManualFence
from tests.conformance.kit import PATIENCE_S, Gate


def test_closing_fails_the_fences_of_queued_work(threaded: SoftwareBackend) -> None:
    """Running work ends, queued work does not start, and its fences fail and notify."""
    gate, ran, notified = Gate(), list[str](), threading.Event()
    stream = threaded.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    stream.launch(ran.append, "queued")
    fence = stream.record()
    fence.notify(notified.set)
    gate.wait_entered()
    assert isinstance(stream, SoftwareStream)
    stream.begin_close()  # the first half of close, so that the kernel certainly ends after it
    gate.open()
    stream.close()
    assert notified.is_set()
    assert ran == []
    assert isinstance(fence.error, DeviceError)
    assert "closed" in str(fence.error)
    assert threaded.threads_abandoned() == 0


def test_closing_interrupts_a_wait_for_a_fence_that_never_comes(threaded: SoftwareBackend) -> None:
    """A stream blocked on another's fence is closed without being abandoned."""
    stream, blocked = threaded.create_stream("compute"), threading.Event()

    class Never(ManualFence):
        def notify(self, callback: Callable[[], None]) -> None:
            super().notify(callback)
            blocked.set()

    never = Never()
    stream.wait(never)
    fence = stream.record()
    assert blocked.wait(PATIENCE_S)
    threaded.close()
    assert "closed" in str(fence.error)
    assert threaded.threads_abandoned() == 0
    never.finish()  # a notification that comes too late finds nobody


def test_closing_interrupts_a_simulated_cost(backend: SoftwareBackend) -> None:
    """An hour that a kernel is said to take does not delay closing."""
    stream, entered = backend.create_stream("compute"), threading.Event()
    stream.launch(entered.set, cost_ns=3600 * 10**9)
    fence = stream.record()
    if backend.info.backend == "host":
        fence.synchronize(PATIENCE_S)
    backend.close()
    assert fence.query()
    assert backend.threads_abandoned() == 0


def test_a_stuck_kernel_is_abandoned_counted_and_keeps_its_memory(threaded: SoftwareBackend) -> None:
    """Close returns although a kernel does not, and memory that the kernel holds stays mapped."""
    threaded.close_timeout_s = 0.05
    gate, wrote = Gate(), threading.Event()
    buffer, stream = threaded.alloc(2**20), threaded.create_stream("compute")
    views: list[ByteArray] = []

    def stuck(array: object) -> None:
        gate()
        views[0][:] = 5
        wrote.set()

    views.append(buffer.array)
    stream.launch(stuck, buffer, cost_ns=1)
    fence = stream.record()
    gate.wait_entered()
    threaded.close()
    assert threaded.threads_abandoned() == 1
    assert "closed" in str(fence.error)
    with pytest.raises(DeviceError):
        _ = buffer.array
    gate.open()
    assert wrote.wait(PATIENCE_S)
    assert (views[0] == 5).all()


def test_closing_from_the_streams_own_thread_does_not_deadlock(threaded: SoftwareBackend) -> None:
    """A callback may close its backend; nothing is abandoned, and what was queued fails."""
    gate, closed = Gate(), threading.Event()
    stream = threaded.create_stream("compute")

    def close() -> None:
        threaded.close()
        closed.set()

    stream.launch(gate, cost_ns=1)
    stream.record().notify(close)
    behind = stream.record()
    gate.open()
    assert closed.wait(PATIENCE_S)
    with pytest.raises(DeviceError, match="closed"):
        behind.synchronize(PATIENCE_S)
    assert threaded.threads_abandoned() == 0


def test_reset_drops_what_is_queued_and_goes_on(threaded: SoftwareBackend) -> None:
    """Queued fences fail, a stuck kernel is abandoned, and the same stream runs new work."""
    threaded.close_timeout_s = 0.05
    gate, ran = Gate(), list[str]()
    stream = threaded.create_stream("compute")
    stream.launch(gate, cost_ns=1)
    stream.launch(ran.append, "dropped")
    fence = stream.record()
    gate.wait_entered()
    assert threaded.reset()
    assert "was reset" in str(fence.error)
    assert threaded.threads_abandoned() == 1
    threaded.close_timeout_s = PATIENCE_S
    stream.launch(ran.append, "new")
    stream.synchronize(PATIENCE_S)
    gate.open()
    assert ran == ["new"]


_FORK = """
import os, sys
from async_orch.exceptions import DeviceError
from async_orch_backends.host import open_backend as open_host
from async_orch_backends.sim import open_backend as open_sim

backend = open_host() if sys.argv[1] == "host" else open_sim(sys.argv[1])
buffer, stream = backend.alloc(8), backend.create_stream("copy")
stream.launch(lambda array: array.fill(1), buffer)
stream.synchronize(20)
read, write = os.pipe()
if os.fork() == 0:
    report = []
    for use in (stream.record, lambda: stream.copy(buffer, buffer, 8), lambda: backend.alloc(1)):
        try:
            use()
            report.append("no error")
        except DeviceError as exc:
            report.append(str(exc))
    backend.close()
    fresh = open_sim()
    fresh.create_stream("copy").synchronize(20)
    fresh.close()
    os.write(write, "|".join(report).encode())
    os._exit(0)
os.wait()
print(os.read(read, 10000).decode())
stream.synchronize(20)
backend.close()
"""


@pytest.mark.parametrize("target", ["host", "instant"])
def test_a_forked_child_is_told_to_open_its_own(target: str) -> None:
    """Streams and allocations of the parent raise in the child, which may open a backend of its own."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORK, target]
    report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    messages = report.strip().split("|")
    assert len(messages) == 3
    assert all("before os.fork()" in message for message in messages)
