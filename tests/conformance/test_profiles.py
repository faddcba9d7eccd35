"""What a profile says is what the simulated device does."""

from __future__ import annotations

from itertools import pairwise

import pytest
from async_orch_backends.sim import SimBackend, open_backend
from async_orch_backends.sim_profile import SimProfile, load_profile

from async_orch.exceptions import ConfigurationError, DeviceError
from async_orch.testing import VirtualClockLoop, run_virtual
from tests.conformance.kit import reached

MS = 1_000_000


def test_jitter_is_bounded_and_the_same_for_the_same_seed() -> None:
    """Costs vary within the stated fraction, and two runs agree to the nanosecond."""
    profile = SimProfile(name="jittery", kernel_ns=1000 * MS, jitter=0.1, seed=7)

    async def main(profile: SimProfile) -> list[int]:
        backend = SimBackend(profile, clock="virtual")
        stream = backend.create_stream("compute")
        times = [0]
        for _ in range(200):
            stream.launch(lambda: None)
            times.append(await reached(stream.record()) or 0)
        backend.close()
        return [later - earlier for earlier, later in pairwise(times)]

    costs = run_virtual(main(profile))
    assert all(900 * MS <= cost <= 1100 * MS for cost in costs)
    assert max(costs) - min(costs) > 100 * MS
    assert run_virtual(main(profile)) == costs
    assert run_virtual(main(SimProfile(name="other", kernel_ns=1000 * MS, jitter=0.1, seed=8))) != costs


def test_the_a5_profile_reproduces_the_report() -> None:
    """Allocating and copying what the report's line says takes the graph and sm times that it says, within 1 %."""
    profile = load_profile("a5-report")

    async def main() -> tuple[int, int, int]:
        backend = SimBackend(profile, clock="virtual")
        host, image = backend.alloc_host(5_543_943), backend.alloc_host(5_543_943)
        stream = backend.create_stream("copy")
        for _ in range(40):
            backend.alloc(1_662_224)
        for _ in range(40):
            stream.copy(image, host, 132_752)
        graph_ns = await reached(stream.record()) or 0
        stream.copy(image, host, 233_863)
        sm_ns = (await reached(stream.record()) or 0) - graph_ns
        compute = backend.create_stream("compute")
        compute.launch(lambda: None)
        device_ns = (await reached(compute.record()) or 0) - graph_ns - sm_ns
        backend.close()
        return graph_ns, sm_ns, device_ns

    graph_ns, sm_ns, device_ns = run_virtual(main())
    assert graph_ns == pytest.approx(105_716_560, rel=0.01)
    assert sm_ns == pytest.approx(1_359_100, rel=0.01)
    assert device_ns == 36_800_000
    assert profile.alloc_ns(66_488_960) + profile.copy_ns(5_310_080) == pytest.approx(105_716_560, rel=0.0001)
    assert profile.support == "calibrated to the a5 report (simpler #1841)"
    assert profile.assumed == ("alloc_fixed_ns", "copy_fixed_ns", "launch_ns", "kernel_ns", "jitter")


def test_a_negative_cost_is_refused() -> None:
    """The error repeats the number."""
    backend = SimBackend(SimProfile(name="instant"))
    with pytest.raises(DeviceError, match="-5"):
        backend.create_stream("compute").launch(lambda: None, cost_ns=-5)
    backend.close()


def test_a_loop_belongs_to_virtual_time() -> None:
    """A loop given to a backend in real time is an error, not ignored."""
    loop = VirtualClockLoop()
    with pytest.raises(ConfigurationError, match="loop="):
        SimBackend(load_profile(None), loop=loop)
    loop.close()


def test_the_virtual_clock_is_an_option_of_opening() -> None:
    """open_backend passes the clock on."""

    async def main() -> int:
        backend = open_backend("a5-report", clock="virtual")
        now_ns = backend.clock_ns()
        backend.close()
        return now_ns

    assert run_virtual(main()) == 0
