"""The conformance suite: what every backend must do, as a class of tests to be had in one line."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_orch.abc import Backend, Buffer, ByteArray, Stream
from async_orch.testing._manual_fence import ManualFence

__all__ = ["Kernels", "PythonKernels", "SuiteSettings", "conformance_suite"]


@dataclass(frozen=True, slots=True)
class SuiteSettings:
    """What `conformance_suite` was given, for the tests."""

    open_backend: Callable[[], Backend]
    kernels: Kernels
    open_adopting: Callable[[Stream, Stream], Backend] | None
    isolates: bool
    refuses_fork: bool
    addresses: bool
    copy_alignment_nbytes: int
    loop_factory: Callable[[], asyncio.AbstractEventLoop]


class Kernels(ABC):
    """Kernels in the form that a backend takes, for the tests to launch.

    Only `add_one` is required. A test that needs one of the others is skipped where that is not overridden.
    """

    @abstractmethod
    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        """Enqueue a kernel that adds 1, modulo 256, to every byte of a device buffer."""

    def fail(self, stream: Stream) -> None:
        """Enqueue a kernel that fails when it runs."""
        raise RuntimeError(f"{type(self).__name__} has no kernel that fails")

    def fail_copy(self, stream: Stream, source: Buffer) -> None:
        """Enqueue a copy from ``source`` that fails when it runs."""
        raise RuntimeError(f"{type(self).__name__} has no copy that fails")

    def hold(self, stream: Stream) -> Callable[[], object]:
        """Make the stream stop here until the returned function is called."""
        raise RuntimeError(f"{type(self).__name__} cannot hold a stream")


class PythonKernels(Kernels):
    """For backends whose kernels are Python callables, and whose streams wait for any `Fence`: host and sim."""

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        stream.launch(_add_one, buffer)

    def fail(self, stream: Stream) -> None:
        stream.launch(_fail)

    def fail_copy(self, stream: Stream, source: Buffer) -> None:
        stream.copy(_ReadOnlyBuffer(source.nbytes), source, source.nbytes)

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish


def _add_one(array: ByteArray) -> None:
    array += 1


def _fail() -> None:
    raise ZeroDivisionError("a kernel of the conformance suite that fails on purpose")


class _ReadOnlyBuffer(Buffer):
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


def conformance_suite(
    open_backend: Callable[[], Backend],
    *,
    kernels: Kernels | None = None,
    open_adopting: Callable[[Stream, Stream], Backend] | None = None,
    isolates: bool = True,
    refuses_fork: bool = True,
    addresses: bool = True,
    copy_alignment_nbytes: int = 1,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
) -> type[Any]:
    """A class of pytest tests for a backend; one line in a test module runs them all::

        TestMyBackend = conformance_suite(lambda: open_backend("mine"), kernels=MyKernels())

    Parameters
    ----------
    open_backend:
        Opens a fresh backend; called for each test, within a coroutine. The test closes it.
    kernels:
        Kernels to launch; those of Python callables by default.
    open_adopting:
        Opens a backend that adopts the caller's compute and copy stream, in this order; pass on their ``native``
        where it takes the driver's own. Without it those tests are skipped.
    isolates:
        Whether `Stream.isolate` clears a failure. False where the driver's errors are sticky.
    refuses_fork:
        Whether use in a child that was forked while the device was open is refused. False skips that test.
    addresses:
        False where `Buffer.handle` of device memory is a driver's handle, because the driver gives no address.
    copy_alignment_nbytes:
        Multiple that the offsets of a copy must have, where the driver copies between aligned addresses only.
    loop_factory:
        Makes the event loop of a test; `VirtualClockLoop` for a backend in virtual time.

    Covered: order within a stream and across streams, the calls of every step (`Stream.begin` and its like), fences,
    failures and their limits, memory and its limits, closing with work in flight, use after close, reset, fork,
    adopted streams, and orchestrators that drive the device.
    Needs pytest.
    """
    import pytest  # noqa: PLC0415 - needed by those only who run the suite

    parts = ("streams", "fences", "failures", "memory", "closing", "engine")
    pytest.register_assert_rewrite(*(f"{__package__}._suite_{part}" for part in ("kit", *parts)))
    from async_orch.testing import (  # noqa: PLC0415 - they need pytest
        _suite_closing,
        _suite_engine,
        _suite_failures,
        _suite_fences,
        _suite_memory,
        _suite_streams,
    )

    bases = (
        _suite_streams.StreamTests,
        _suite_fences.FenceTests,
        _suite_failures.FailureTests,
        _suite_memory.MemoryTests,
        _suite_closing.ClosingTests,
        _suite_engine.EngineTests,
    )
    settings = SuiteSettings(
        open_backend,
        PythonKernels() if kernels is None else kernels,
        open_adopting,
        isolates,
        refuses_fork,
        addresses,
        copy_alignment_nbytes,
        loop_factory,
    )
    return type("ConformanceSuite", bases, {"settings": settings, "__doc__": "The conformance suite of async_orch."})
