"""What the conformance tests share: the backends under test, and hand-shakes instead of sleeps."""

from __future__ import annotations

import asyncio
import threading

from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.host import HostBackend
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch.abc import ByteArray, Fence
from async_orch.testing import VirtualClockLoop

__all__ = ["PATIENCE_S", "TIMED", "Gate", "add_one", "open_kind", "reached"]

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


def add_one(array: ByteArray) -> None:
    """A kernel."""
    array += 1


async def reached(fence: Fence) -> int | None:
    """Await a fence and give the time it was reached at."""
    done = asyncio.Event()
    fence.notify(done.set)
    await done.wait()
    return fence.time_ns()
