"""What the conformance tests share: the backends under test, and hand-shakes instead of sleeps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import numpy as np
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.host import HostBackend
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch.abc import Buffer, ByteArray, Fence
from tests.virtual_clock import VirtualClockLoop

__all__ = ["PATIENCE_S", "TIMED", "Gate", "ManualFence", "ReadOnlyBuffer", "add_one", "open_kind", "reached"]

PATIENCE_S = 20.0  # long enough for a busy machine; a test that works never waits for it

TIMED = SimProfile(name="timed", copy_fixed_ns=200_000, launch_ns=50_000, kernel_ns=300_000)


def open_kind(kind: str, loop: VirtualClockLoop) -> SoftwareBackend:
    """Open one of the kinds that the fixtures are parametrised over."""
    if kind == "host":
        return HostBackend()
    if kind == "sim:instant":
        return SimBackend(SimProfile(name="instant"))
    if kind == "sim:timed":
        return SimBackend(TIMED)
    return SimBackend(TIMED, clock="virtual", loop=loop)


class Gate:
    """A kernel that holds its stream's thread until it is opened. Launch it with a cost: a free one runs inline."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._opened = threading.Event()

    def __call__(self, *arrays: ByteArray) -> None:
        self.entered.set()
        if not self._opened.wait(PATIENCE_S):
            raise TimeoutError("the test never opened its gate")

    def wait_entered(self) -> None:
        assert self.entered.wait(PATIENCE_S)

    def open(self) -> None:
        self._opened.set()


class ManualFence(Fence):
    """A fence of no stream, done when the test says so; with or without `notify`."""

    def __init__(self, *, notifies: bool = True) -> None:
        self.notifies = notifies  # type: ignore[misc]
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def settle(self, error: BaseException | None = None) -> None:
        with self._lock:
            self._error = error
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def query(self) -> bool:
        return self._event.is_set()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self._event.wait(timeout_s):
            raise TimeoutError

    def notify(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def time_ns(self) -> int | None:
        return None


class ReadOnlyBuffer(Buffer):
    """Memory that a copy cannot write, so that the copy fails when it runs."""

    __slots__ = ()

    @property
    def is_host(self) -> bool:
        return True

    @property
    def array(self) -> ByteArray:
        array = np.zeros(self.nbytes, np.uint8)
        array.flags.writeable = False
        return array

    @property
    def handle(self) -> int:
        return 0

    def free(self) -> None:
        """Nothing to give back."""


def add_one(array: ByteArray) -> None:
    """A kernel."""
    array += 1


async def reached(fence: Fence) -> int | None:
    """Await a fence and give the time it was reached at."""
    done = asyncio.Event()
    fence.notify(done.set)
    await done.wait()
    return fence.time_ns()
