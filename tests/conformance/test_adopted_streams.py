"""What may be adopted, and whose business its failures are."""

from __future__ import annotations

import pytest
from async_orch_backends.host import HostBackend

from async_orch import open_backend
from async_orch.exceptions import ConfigurationError, DeviceError, DeviceLost
from async_orch.testing import ManualBackend
from tests.conformance.kit import PATIENCE_S


@pytest.mark.parametrize("target", ["host", "sim:instant"])
def test_only_an_open_stream_of_a_software_device_can_be_adopted(target: str) -> None:
    """Anything else is refused when the backend is opened, naming the argument."""
    with pytest.raises(ConfigurationError, match=r"copy_stream must be a stream of .* not ManualStream"):
        open_backend(target, copy_stream=ManualBackend().create_stream("copy"))
    owner = HostBackend()
    stream = owner.create_stream("mine")
    stream.close()
    with pytest.raises(ConfigurationError, match="compute_stream is closed: 'mine'"):
        open_backend(target, compute_stream=stream)
    owner.close()


def test_streams_of_other_names_are_the_backends_own() -> None:
    """Only the two that the engine asks for are adopted; others are created and closed as ever."""
    owner = HostBackend()
    compute = owner.create_stream("compute")
    backend = open_backend("host", compute_stream=compute)
    own = backend.create_stream("copy")
    assert own is not compute
    backend.close()
    with pytest.raises(DeviceError, match="closed"):
        own.record()
    compute.synchronize(PATIENCE_S)
    owner.close()


def test_a_lost_adopted_stream_is_its_owners_to_reset() -> None:
    """The adopting backend cannot; after the owner has, both go on."""

    def lose() -> None:
        raise DeviceLost("gone")

    owner = HostBackend()
    compute = owner.create_stream("compute")
    backend = open_backend("host", compute_stream=compute)
    compute.launch(lose)
    with pytest.raises(DeviceLost):
        compute.synchronize(PATIENCE_S)
    assert not backend.reset()
    assert owner.reset()
    assert backend.reset()
    compute.synchronize(PATIENCE_S)
    backend.close()
    owner.close()
