"""What the suite's tests share: an opened backend with its loop, and ways to move bytes. Needs pytest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

from async_orch.abc import Backend, Buffer
from async_orch.testing._suite import Kernels, SuiteSettings

__all__ = ["PATIENCE_S", "OpenDevice", "Suite"]

PATIENCE_S = 30.0
"""Long enough for a busy machine; a backend that works never makes a test wait for it."""


class OpenDevice:
    """An opened backend, the loop of the test, and the kernels."""

    def __init__(self, backend: Backend, loop: asyncio.AbstractEventLoop, kernels: Kernels) -> None:
        self.backend = backend
        self.loop = loop
        self.kernels = kernels

    def upload(self, data: bytes) -> Buffer:
        """Device memory that holds ``data``."""
        buffer, host, stream = self.backend.alloc(len(data)), self.host(data), self.backend.create_stream("copy")
        stream.copy(buffer, host, len(data))
        stream.synchronize(PATIENCE_S)
        stream.close()
        return buffer

    def host(self, data: bytes) -> Buffer:
        """Host memory that holds ``data``."""
        buffer = self.backend.alloc_host(len(data))
        buffer.array[:] = np.frombuffer(data, np.uint8)
        return buffer

    def download(self, buffer: Buffer) -> bytes:
        """What device memory holds, by way of a stream of its own: nothing pending may still write to it."""
        host, stream = self.backend.alloc_host(buffer.nbytes), self.backend.create_stream("copy")
        stream.copy(host, buffer, buffer.nbytes)
        stream.synchronize(PATIENCE_S)
        stream.close()
        return host.array.tobytes()

    def need(self, *kernels: str) -> None:
        """Skip the test if one of these kernels is not there."""
        for name in kernels:
            if getattr(type(self.kernels), name) is getattr(Kernels, name):
                pytest.skip(f"{type(self.kernels).__name__} does not define {name}()")

    def let_callbacks_run(self) -> None:
        """Run what a backend in virtual time handed to the loop."""
        self.loop.run_until_complete(asyncio.sleep(0))


class Suite:
    """Base of the test classes; `conformance_suite` fills in its settings."""

    settings: ClassVar[SuiteSettings]

    @pytest.fixture
    def device(self) -> Iterator[OpenDevice]:
        """A backend opened for one test."""
        loop = self.settings.loop_factory()
        try:
            backend = loop.run_until_complete(self._open())
            try:
                yield OpenDevice(backend, loop, self.settings.kernels)
            finally:
                backend.close()
        finally:
            loop.close()

    async def _open(self) -> Backend:
        backend = self.settings.open_backend()
        backend.clock_ns()  # a backend in virtual time follows the loop that runs at first use
        return backend
