"""Every software backend goes through the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from async_orch_backends._software_backend import SoftwareBackend

from async_orch.testing import VirtualClockLoop
from tests.conformance.kit import open_kind

THREADED = ("host", "sim:instant", "sim:timed")


@pytest.fixture
def loop() -> Iterator[VirtualClockLoop]:
    """The loop that a backend in virtual time follows. It does not run while a test does."""
    loop = VirtualClockLoop()
    yield loop
    loop.close()


@pytest.fixture(params=[*THREADED, "sim:virtual"])
def backend(request: pytest.FixtureRequest, loop: VirtualClockLoop) -> Iterator[SoftwareBackend]:
    """Each backend in turn, also in virtual time, where a blocking call moves the clock."""
    opened = open_kind(request.param, loop)
    yield opened
    opened.close()


@pytest.fixture(params=THREADED)
def threaded(request: pytest.FixtureRequest, loop: VirtualClockLoop) -> Iterator[SoftwareBackend]:
    """Each backend whose streams are threads, so that a kernel can be held at a gate."""
    opened = open_kind(request.param, loop)
    yield opened
    opened.close()


@pytest.fixture
def let_callbacks_run(loop: VirtualClockLoop) -> Callable[[], None]:
    """Run what virtual time handed to its loop."""

    def run() -> None:
        loop.run_until_complete(asyncio.sleep(0))

    return run
