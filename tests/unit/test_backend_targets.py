"""Opening the software backends by name."""

from __future__ import annotations

import pytest
from async_orch_backends import host, sim

from async_orch.exceptions import BackendUnavailable, ConfigurationError


def test_host_has_one_device() -> None:
    """No target and ``cpu`` open it, anything else and any option is refused."""
    for target in (None, "", "cpu"):
        backend = host.open_backend(target)
        assert (backend.info.backend, backend.info.device) == ("host", "cpu")
        assert backend.info.support == "measured on CPU"
        backend.close()
    with pytest.raises(BackendUnavailable, match="not 'gpu'"):
        host.open_backend("gpu")
    with pytest.raises(ConfigurationError, match="got clock"):
        host.open_backend(None, clock="virtual")


def test_sim_says_what_it_stands_for() -> None:
    """Device name and support come from the profile."""
    instant, report = sim.open_backend(), sim.open_backend("a5-report")
    assert (instant.info.device, instant.info.support) == ("instant", "tested against a fake")
    assert (report.info.device, report.info.support) == ("a5-report", "calibrated to the a5 report (simpler #1841)")
    assert report.info.device_clock == "device"
    instant.close()
    report.close()


def test_sim_refuses_unknown_options() -> None:
    """The error names the option or the clock."""
    with pytest.raises(ConfigurationError, match="got speed"):
        sim.open_backend("instant", speed=2)
    with pytest.raises(ConfigurationError, match="not 'wall'"):
        sim.open_backend("instant", clock="wall")


def test_memory_is_reported() -> None:
    """Total and free memory are known numbers where the system tells them."""
    backend = host.open_backend()
    free, total = backend.free_nbytes(), backend.info.memory_nbytes
    if free is not None and total is not None:
        assert 0 < free <= total
    backend.close()
