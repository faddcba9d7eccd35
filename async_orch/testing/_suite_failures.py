"""A failure reaches every fence behind it, and stops at the next isolation."""

from __future__ import annotations

import pytest

from async_orch.abc import Stream
from async_orch.exceptions import DeviceError, OutOfDeviceMemory
from async_orch.testing._suite_kit import PATIENCE_S, OpenDevice, Suite

__all__ = ["FailureTests"]


class FailureTests(Suite):
    """Failed kernels, copies and allocations."""

    def _fresh(self, device: OpenDevice, stream: Stream) -> Stream:
        """A stream without a failure: the same one after `isolate`, unless the driver's errors are sticky."""
        if not self.settings.isolates:
            pytest.skip("the driver's errors are sticky")
        stream.isolate()
        return stream

    def test_a_failed_kernel_fails_the_fences_behind_it(self, device: OpenDevice) -> None:
        """The fence before it is fine; the one behind is done, has an error, and raises it as a DeviceError."""
        device.need("fail")
        stream = device.backend.create_stream("compute")
        before = stream.record()
        device.kernels.fail(stream)
        failed = stream.record()
        for _ in range(2):
            with pytest.raises(DeviceError):
                failed.synchronize(PATIENCE_S)
        assert failed.query()
        assert isinstance(failed.error, DeviceError)
        assert before.query()
        assert before.error is None

    def test_each_wait_raises_an_exception_of_its_own(self, device: OpenDevice) -> None:
        """Two waiters get the same message, but not one shared object whose traceback grows."""
        device.need("fail")
        stream = device.backend.create_stream("compute")
        device.kernels.fail(stream)
        fence = stream.record()
        caught = []
        for _ in range(2):
            with pytest.raises(DeviceError) as info:
                fence.synchronize(PATIENCE_S)
            caught.append(info.value)
        assert caught[0] is not caught[1]
        assert str(caught[0]) == str(caught[1])

    def test_work_behind_a_failure_is_skipped_until_isolation(self, device: OpenDevice) -> None:
        """A copy behind a failed kernel changes nothing; after isolation the same stream works."""
        device.need("fail")
        counter = device.upload(b"\0")
        stream = device.backend.create_stream("compute")
        device.kernels.fail(stream)
        device.kernels.add_one(stream, counter)
        skipped = stream.record()
        stream = self._fresh(device, stream)
        after_isolation = stream.record()
        device.kernels.add_one(stream, counter)
        stream.synchronize(PATIENCE_S)
        assert skipped.error is not None
        assert after_isolation.error is None
        assert device.download(counter) == b"\1"

    def test_a_step_begins_anew_behind_a_failure(self, device: OpenDevice) -> None:
        """`record_copy` behind a failed kernel fails and copies nothing; `begin` and `begin_copy` leave it behind."""
        device.need("fail")
        host, back, buffer = device.host(b"1234"), device.host(b"...."), device.upload(b"5678")
        stream = device.backend.create_stream("compute")
        device.kernels.fail(stream)
        failed = stream.record_copy(back, buffer, 4)
        for fence in failed:
            with pytest.raises(DeviceError):
                fence.synchronize(PATIENCE_S)
        if not self.settings.isolates:
            pytest.skip("the driver's errors are sticky")
        assert back.array.tobytes() == b"...."
        fences = [stream.begin()]
        device.kernels.fail(stream)
        fences += stream.begin_copy(buffer, host, 4)
        fences += stream.record_copy(back, buffer, 4)
        for fence in fences:
            fence.synchronize(PATIENCE_S)
        assert back.array.tobytes() == b"1234"

    def test_a_failed_copy_fails_the_fences_behind_it(self, device: OpenDevice) -> None:
        """A copy that fails when it runs is a failure like a kernel's, and isolation clears it."""
        device.need("fail_copy")
        source, target = device.host(b"12345678"), device.backend.alloc(8)
        stream = device.backend.create_stream("copy")
        device.kernels.fail_copy(stream, source)
        failed = stream.record()
        with pytest.raises(DeviceError):
            failed.synchronize(PATIENCE_S)
        stream = self._fresh(device, stream)
        stream.copy(target, source, 8)
        stream.synchronize(PATIENCE_S)
        assert device.download(target) == b"12345678"

    def test_a_stream_that_waits_for_a_failed_fence_fails_too(self, device: OpenDevice) -> None:
        """The failure passes on, whether the fence failed before the wait or after it, up to an isolation."""
        device.need("fail", "hold")
        counter = device.upload(b"\0")
        first, second = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        go_on = device.kernels.hold(first)
        device.kernels.fail(first)
        failed = first.record()
        for when in ("before it failed", "after it failed"):
            second.wait(failed)
            device.kernels.add_one(second, counter)
            dependent = second.record()
            if when == "before it failed":
                assert not dependent.query()
                go_on()
            with pytest.raises(DeviceError):
                dependent.synchronize(PATIENCE_S)
            second = self._fresh(device, second)
        device.kernels.add_one(second, counter)
        second.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\1"

    def test_a_failed_stream_still_waits(self, device: OpenDevice) -> None:
        """A fence behind a failure and a wait is done only when what it waits for is, as memory may depend on it."""
        device.need("fail", "hold")
        first, second = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        go_on = device.kernels.hold(first)
        device.kernels.fail(second)
        failed = second.record()
        second.wait(first.record())
        fence = second.record()
        with pytest.raises(DeviceError):
            failed.synchronize(PATIENCE_S)
        assert not fence.query()
        go_on()
        with pytest.raises(DeviceError):
            fence.synchronize(PATIENCE_S)

    def test_a_failure_stays_on_its_stream(self, device: OpenDevice) -> None:
        """A stream that does not wait for the failed one goes on."""
        device.need("fail")
        if not self.settings.isolates:
            pytest.skip("the driver's errors are sticky")
        counter = device.upload(b"\0")
        first, second = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        device.kernels.fail(first)
        with pytest.raises(DeviceError):
            first.synchronize(PATIENCE_S)
        device.kernels.add_one(second, counter)
        second.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\1"

    @pytest.mark.parametrize("nbytes", [2**46, 2**62])
    def test_an_absurd_size_is_out_of_memory_and_takes_none(self, device: OpenDevice, nbytes: int) -> None:
        """The message gives the number of bytes, nothing stays allocated, and smaller requests still succeed."""
        backend = device.backend
        before = backend.allocated_nbytes
        for alloc in (backend.alloc, backend.alloc_host):
            with pytest.raises(OutOfDeviceMemory, match=str(nbytes)):
                alloc(nbytes, name="activations")
        assert backend.allocated_nbytes == before
        backend.alloc(64).free()
        assert backend.allocated_nbytes == before
