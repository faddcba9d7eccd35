"""The software backends through the public conformance suite, in real and in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_orch_backends.sim import AdversaryBackend, SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import open_backend
from async_orch.abc import Backend, Stream
from async_orch.testing import VirtualClockLoop, conformance_suite
from tests.conformance.kit import TIMED

LATE = SimProfile(name="late", copy_fixed_ns=300_000, kernel_ns=100_000, adversary=True)


def adopting(target: str, **options: Any) -> Callable[[Stream, Stream], Backend]:
    """Opens a backend on streams of the test's."""
    return lambda compute, copy: open_backend(target, compute_stream=compute, copy_stream=copy, **options)


TestHost = conformance_suite(lambda: open_backend("host"), open_adopting=adopting("host"))
TestInstant = conformance_suite(lambda: open_backend("sim:instant"), open_adopting=adopting("sim:instant"))
TestTimed = conformance_suite(lambda: SimBackend(TIMED), open_adopting=adopting("sim:instant"))
TestVirtual = conformance_suite(
    lambda: SimBackend(TIMED, clock="virtual"),
    open_adopting=adopting("sim:instant", clock="virtual"),
    loop_factory=VirtualClockLoop,
)
TestInstantVirtual = conformance_suite(
    lambda: open_backend("sim:instant", clock="virtual"),
    open_adopting=adopting("sim:a5-report", clock="virtual"),
    loop_factory=VirtualClockLoop,
)
TestAdversary = conformance_suite(lambda: AdversaryBackend(LATE), open_adopting=adopting("host"))
TestAdversaryVirtual = conformance_suite(
    lambda: open_backend("sim:adversary", clock="virtual"),
    open_adopting=adopting("sim:adversary", clock="virtual"),
    loop_factory=VirtualClockLoop,
)
