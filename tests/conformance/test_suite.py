"""The software backends through the public conformance suite, in real and in virtual time."""

from __future__ import annotations

from async_orch_backends.sim import AdversaryBackend, SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import open_backend
from async_orch.testing import VirtualClockLoop, conformance_suite
from tests.conformance.kit import TIMED

LATE = SimProfile(name="late", copy_fixed_ns=300_000, kernel_ns=100_000, adversary=True)

TestHost = conformance_suite(
    lambda: open_backend("host"),
    open_adopting=lambda compute, copy: open_backend("host", compute_stream=compute, copy_stream=copy),
)
TestInstant = conformance_suite(
    lambda: open_backend("sim:instant"),
    open_adopting=lambda compute, copy: open_backend("sim:instant", compute_stream=compute, copy_stream=copy),
)
TestTimed = conformance_suite(lambda: SimBackend(TIMED))
TestVirtual = conformance_suite(
    lambda: SimBackend(TIMED, clock="virtual"),
    open_adopting=lambda compute, copy: SimBackend(TIMED, clock="virtual", compute_stream=compute, copy_stream=copy),
    loop_factory=VirtualClockLoop,
)
TestInstantVirtual = conformance_suite(
    lambda: open_backend("sim:instant", clock="virtual"), loop_factory=VirtualClockLoop
)
TestAdversary = conformance_suite(lambda: AdversaryBackend(LATE))
TestAdversaryVirtual = conformance_suite(
    lambda: open_backend("sim:adversary", clock="virtual"), loop_factory=VirtualClockLoop
)
