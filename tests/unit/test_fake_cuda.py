"""The fake ``cuda.core`` itself: it has the interface of the real one, and fails what a driver would let pass."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import fake_cuda
from tests.fakes.fake_cuda import Device, EventOptions, LegacyPinnedMemoryResource
from tests.fakes.fake_cuda_device import CudaMisuse, CUresult, FakeGpu

BLOCKING = EventOptions(timing_enabled=True, blocking_sync=True)
METHODS = {
    "Device": ("create_stream", "allocate", "set_current"),
    "Stream": ("record", "wait", "sync", "close", "__cuda_stream__"),
    "Event": ("sync", "close"),
    "Buffer": ("close", "fill", "__dlpack__", "__dlpack_device__"),
    "LegacyPinnedMemoryResource": ("allocate",),
}
PROPERTIES = {
    "Device": ("device_id", "name"),
    "Stream": ("handle", "is_closed"),
    "Event": ("is_done", "is_closed"),
    "Buffer": ("handle", "size", "is_closed"),
}


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]


class TestTheInterface:
    """Compared with cuda-core where it is installed: names, parameters with kinds and defaults, options, codes."""

    @pytest.fixture
    def core(self) -> Any:
        """The real module. Its import needs no driver."""
        return pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'async-orch[cuda13]'")

    @pytest.mark.parametrize(("name", "method"), [(name, method) for name in METHODS for method in METHODS[name]])
    def test_methods_have_the_parameters_of_the_real_ones(self, core: Any, name: str, method: str) -> None:
        """What the backend passes here, it may pass there."""
        assert _parameters(getattr(getattr(fake_cuda, name), method)) == _parameters(
            getattr(getattr(core, name), method)
        )

    @pytest.mark.parametrize("name", list(PROPERTIES))
    def test_attributes_exist_in_the_real_ones(self, core: Any, name: str) -> None:
        """The fake has no attribute that cuda-core lacks."""
        assert all(hasattr(getattr(core, name), attribute) for attribute in PROPERTIES[name])

    def test_launch_graphs_options_and_codes_are_the_real_ones(self, core: Any) -> None:
        """The function that launches, the method of a graph, the fields of options, and the driver's numbers."""
        graph = pytest.importorskip("cuda.core.graph", reason="cuda-core has no graphs")
        driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
        assert _parameters(fake_cuda.FakeCuda()._launch) == _parameters(core.launch)
        assert _parameters(fake_cuda.Graph.launch) == _parameters(graph.Graph.launch)
        assert list(core.EventOptions.__dataclass_fields__) == list(EventOptions.__dataclass_fields__)
        assert {code.name: int(getattr(driver.CUresult, code.name)) for code in CUresult} == {
            code.name: int(code) for code in CUresult
        }
        for name in ("cuMemGetInfo", "cuDriverGetVersion", "cuMemcpyAsync"):
            assert callable(getattr(driver, name))

    def test_errors_of_the_driver_are_no_runtime_errors(self) -> None:
        """That is why the backend catches more than those."""
        utils = pytest.importorskip("cuda.core._utils.cuda_utils", reason="cuda-core is not installed")
        assert utils.CUDAError.__bases__ == (Exception,)


class TestMisuse:
    """The fake fails what a driver would let pass."""

    @pytest.fixture
    def gpu(self) -> FakeGpu:
        """A device."""
        return FakeGpu()

    @pytest.fixture
    def device(self, gpu: FakeGpu) -> Device:
        """Its context is current on this thread."""
        device = Device(gpu, 0)
        device.set_current()
        return device

    def test_a_thread_without_a_context(self, gpu: FakeGpu, device: Device) -> None:
        """A call on a thread that never made one current is remembered, also if its exception is swallowed."""

        def swallow() -> None:
            with pytest.raises(CudaMisuse):
                device.create_stream()

        thread = threading.Thread(target=swallow)
        thread.start()
        thread.join()
        with pytest.raises(AssertionError, match=r"without Device\.set_current"):
            gpu.check_clean()

    def test_use_after_close(self, device: Device) -> None:
        """A closed stream would be the default stream, a closed buffer the address 0."""
        stream = device.create_stream()
        buffer = device.allocate(64, stream=stream)
        event = stream.record(options=BLOCKING)
        buffer.close(stream)
        buffer.close()
        event.close()
        with pytest.raises(CudaMisuse, match="address would be 0"):
            buffer.fill(0, stream=stream)
        with pytest.raises(CudaMisuse, match="event is used after close"):
            _ = event.is_done
        stream.close()
        with pytest.raises(CudaMisuse, match="default stream"):
            stream.record()

    def test_memory_that_is_not_page_locked(self, gpu: FakeGpu, device: Device) -> None:
        """A copy from it."""
        stream = device.create_stream()
        buffer = device.allocate(64, stream=stream)
        copy = fake_cuda.FakeCuda()
        copy.gpu = gpu
        with pytest.raises(CudaMisuse, match=r"source: 64 B at .* in no allocation of this driver"):
            copy._memcpy_async(buffer.handle, 4096, 64, int(stream.handle))
        stream.close()

    def test_memory_freed_under_work(self, gpu: FakeGpu, device: Device) -> None:
        """Work that is enqueued still uses it."""
        stream, gate = device.create_stream(), threading.Event()
        buffer = LegacyPinnedMemoryResource(gpu).allocate(64)
        gpu.queue(int(stream.handle)).put(gate.wait)
        buffer.fill(1, stream=stream)
        with pytest.raises(CudaMisuse, match="freed while enqueued work uses it"):
            buffer.close()
        gate.set()
        stream.close()

    def test_events_made_for_something_else(self, device: Device) -> None:
        """A wait that would spin, and a time of an event without timing."""
        stream = device.create_stream()
        plain, timed = stream.record(), stream.record(options=BLOCKING)
        timed.sync()
        with pytest.raises(CudaMisuse, match="would spin"):
            plain.sync()
        with pytest.raises(CudaMisuse, match="without timing is asked for a time"):
            _ = timed - plain
        stream.close()

    def test_what_is_left_over(self, gpu: FakeGpu, device: Device) -> None:
        """Streams and memory."""
        stream = device.create_stream()
        device.allocate(64, stream=stream)
        with pytest.raises(AssertionError, match=r"'streams': 1, 'allocations': 1"):
            gpu.check_clean()
        stream.close()
