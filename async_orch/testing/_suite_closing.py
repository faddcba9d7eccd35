"""Closing is bounded and leaves nobody waiting; what is adopted survives; a fork is refused."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable

import pytest

from async_orch.abc import Stream
from async_orch.exceptions import DeviceError
from async_orch.testing._suite_kit import PATIENCE_S, OpenDevice, Suite

__all__ = ["ClosingTests"]


class ClosingTests(Suite):
    """Close with work in flight, use after close, reset, fork, and adopted streams."""

    def test_a_closed_stream_refuses_everything(self, device: OpenDevice) -> None:
        """Every use after close raises a DeviceError; closing again does nothing."""
        buffer, stream = device.upload(b"1234"), device.backend.create_stream("copy")
        done = stream.record()
        done.synchronize(PATIENCE_S)
        for _ in range(2):
            device.backend.close_stream(stream)
        uses: list[Callable[[Stream], object]] = [
            lambda stream: stream.copy(buffer, buffer, 4),
            lambda stream: device.kernels.add_one(stream, buffer),
            lambda stream: stream.record(),
            lambda stream: stream.wait(done),
            lambda stream: stream.isolate(),
            lambda stream: stream.begin(),
            lambda stream: stream.begin_copy(buffer, buffer, 4),
            lambda stream: stream.record_copy(buffer, buffer, 4),
            lambda stream: stream.idle(),
            lambda stream: stream.synchronize(PATIENCE_S),
        ]
        for use in uses:
            with pytest.raises(DeviceError):
                use(stream)
        stream.close()
        assert device.download(buffer) == b"1234"

    @pytest.mark.parametrize("what", ["stream", "backend"])
    def test_closing_settles_the_fences_of_queued_work(self, device: OpenDevice, what: str) -> None:
        """Whoever waits is told: behind a closed stream or backend no fence stays pending."""
        device.need("hold")
        backend = device.backend
        stream = backend.create_stream("compute")
        device.kernels.hold(stream)
        fence, notified = stream.record(), threading.Event()
        if fence.notifies:
            fence.notify(notified.set)
        if what == "stream":
            backend.close_stream(stream)
        else:
            backend.close()
        assert fence.query()
        with pytest.raises(DeviceError):
            fence.synchronize(PATIENCE_S)
        if fence.notifies:
            device.let_callbacks_run()
            assert notified.wait(PATIENCE_S)
        assert backend.threads_abandoned() == 0

    def test_closing_with_much_work_in_flight_leaves_no_fence_pending(self, device: OpenDevice) -> None:
        """Each fence is done after close, as a success or as a failure, and successes come first."""
        backend = device.backend
        counter = device.upload(bytes(4096))
        stream = backend.create_stream("compute")
        fences = []
        for _ in range(50):
            device.kernels.add_one(stream, counter)
            fences.append(stream.record())
        backend.close()
        assert all(fence.query() for fence in fences)
        failed = [fence.error is not None for fence in fences]
        assert failed == sorted(failed)

    def test_closing_twice_is_fine_and_a_closed_backend_cannot_be_reset(self, device: OpenDevice) -> None:
        """Reset says no rather than reviving a closed backend."""
        device.backend.close()
        device.backend.close()
        assert not device.backend.reset()

    def test_after_a_reset_the_device_works(self, device: OpenDevice) -> None:
        """Where a device can be reset at all, fresh streams and memory work on it, also after work was given up."""
        backend, kernels = device.backend, device.kernels
        old = backend.create_stream("compute")
        kernels.add_one(old, device.upload(b"\0"))
        if not backend.reset():
            pytest.skip("this device needs a new process")
        counter, stream = device.upload(b"\0"), backend.create_stream("compute")
        kernels.add_one(stream, counter)
        stream.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\1"

    def test_closing_leaves_no_thread(self, device: OpenDevice) -> None:
        """Threads that streams had are gone, and none is counted as abandoned."""
        before = set(threading.enumerate())
        counter = device.upload(b"\0")
        streams = [device.backend.create_stream(name) for name in ("copy", "compute")]
        for stream in streams:
            device.kernels.add_one(stream, counter)
            stream.synchronize(PATIENCE_S)
        device.backend.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert device.backend.threads_abandoned() == 0

    def test_adopted_streams_survive_close(self, device: OpenDevice) -> None:
        """A backend opened with the caller's streams gives those, and closing it leaves them and their work alone."""
        compute, copy = device.backend.create_stream("compute"), device.backend.create_stream("copy")
        if self.settings.open_adopting is None:
            pytest.skip("no open_adopting= was given")
        adopting = self.settings.open_adopting(compute, copy)
        own = [adopting.create_stream(name) for name in ("compute", "copy")]
        assert [stream.native for stream in own] == [compute.native, copy.native]
        counter = device.upload(b"\0")
        device.kernels.add_one(compute, counter)
        copy.wait(compute.record())
        for stream in own:
            adopting.close_stream(stream)
        adopting.close()
        device.kernels.add_one(copy, counter)
        compute.synchronize(PATIENCE_S)
        copy.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\2"

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
    def test_a_forked_child_is_refused(self, device: OpenDevice) -> None:
        """Streams and allocations of the parent raise in the child instead of hanging; the parent goes on."""
        if not self.settings.refuses_fork:
            pytest.skip("refuses_fork=False")
        counter, stream = device.upload(b"\0"), device.backend.create_stream("compute")
        device.kernels.add_one(stream, counter)
        stream.synchronize(PATIENCE_S)
        uses = (stream.record, lambda: device.kernels.add_one(stream, counter), lambda: device.backend.alloc(1))
        read_end, write_end = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what is tested
            child = os.fork()
        if child == 0:
            _report_refusals(uses, write_end)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as report:
            assert report.read() == b"refused" * len(uses)
        os.waitpid(child, 0)
        device.kernels.add_one(stream, counter)
        stream.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\2"


def _report_refusals(uses: tuple[Callable[[], object], ...], write_end: int) -> None:
    """In the child: never returns, as the child's copy of the test run must end here."""
    try:
        for use in uses:
            try:
                use()
                os.write(write_end, b"worked ")
            except DeviceError:
                os.write(write_end, b"refused")
    finally:
        os._exit(0)
