"""Streams of drivers where the conformance suite does not reach: a fork at the worst moment."""

from __future__ import annotations

import os
import select
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from async_orch_backends._device_state import DeviceState
from async_orch_backends._driver_stream import DriverStream
from async_orch_backends.host import HostBackend

from async_orch.abc import Stream
from async_orch.exceptions import DeviceError
from tests.fakes.scripted_driver import ScriptedBuffer, ScriptedDriver, ScriptedQueue

PATIENCE_S = 20.0


class HeldQueue(ScriptedQueue):
    """Stays in the call that launches until it is let go."""

    def __init__(self) -> None:
        super().__init__(ScriptedDriver(), "compute")
        self.entered, self.go_on = threading.Event(), threading.Event()

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        self.entered.set()
        assert self.go_on.wait(PATIENCE_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_child_forked_while_a_thread_is_in_the_driver_is_refused() -> None:
    """The stream's lock is held for ever there; every call raises all the same, and closing returns."""
    queue = HeldQueue()
    stream = DriverStream("compute", DeviceState("scripted"), queue)
    fence = stream.record()
    buffer = ScriptedBuffer(4)
    launching = threading.Thread(target=stream.launch, args=("kernel",))
    launching.start()
    assert queue.entered.wait(PATIENCE_S)
    uses: list[Callable[[], object]] = [
        stream.record,
        stream.begin,
        stream.isolate,
        stream.idle,
        lambda: stream.wait(fence),
        lambda: stream.launch("kernel"),
        lambda: stream.copy(buffer, buffer, 4),
        lambda: stream.begin_copy(buffer, buffer, 4),
        lambda: stream.record_copy(buffer, buffer, 4),
        lambda: fence.notify(lambda: None),
        lambda: fence.synchronize(PATIENCE_S),
    ]
    assert _in_child(uses, stream) == b"refused" * len(uses) + b"closed"
    queue.go_on.set()
    launching.join(PATIENCE_S)
    queue.reach_all()
    stream.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_stream_on_the_host_closes_in_such_a_child_too() -> None:
    """Its lock is held by the thread that is about to take the next operation, which does not exist there."""
    backend = HostBackend()
    stream: Any = backend.create_stream("compute")
    stream.launch(lambda: None)
    stream.synchronize(PATIENCE_S)
    with stream._worker.lock:
        assert _in_child([stream.record], stream) == b"refusedclosed"
    backend.close()


def _in_child(uses: list[Callable[[], object]], stream: Stream) -> bytes:
    """What a forked child says of each use, and of closing; it is killed if it says nothing any more."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
        child = os.fork()
    if child == 0:
        try:
            for use in uses:
                try:
                    use()
                    os.write(write_end, b"worked ")
                except DeviceError:
                    os.write(write_end, b"refused")
            stream.close()
            os.write(write_end, b"closed")
        finally:
            os._exit(0)
    os.close(write_end)
    said = b""
    with os.fdopen(read_end, "rb", buffering=0) as report:
        while select.select([report], [], [], PATIENCE_S)[0] and (piece := report.read(4096)):
            said += piece
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said
