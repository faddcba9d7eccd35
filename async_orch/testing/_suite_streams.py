"""What is enqueued on a stream runs in order; what waits for a fence runs after it."""

from __future__ import annotations

import pytest

from async_orch.exceptions import DeviceError
from async_orch.testing._suite_kit import PATIENCE_S, OpenDevice, Suite

__all__ = ["StreamTests"]


class StreamTests(Suite):
    """Order within a stream, and across streams through fences."""

    def test_copies_and_kernels_run_in_the_order_of_enqueueing(self, device: OpenDevice) -> None:
        """Each copy brings what the kernel before it left, and nothing of the kernel after it."""
        unit = self.settings.copy_alignment_nbytes
        counter, back = device.upload(b"\0"), device.backend.alloc_host(20 * unit)
        stream = device.backend.create_stream("compute")
        for index in range(20):
            device.kernels.add_one(stream, counter)
            stream.copy(back, counter, 1, dst_offset=index * unit)
        stream.synchronize(PATIENCE_S)
        assert back.array[::unit].tolist() == list(range(1, 21))

    def test_a_copy_moves_the_given_range_and_nothing_else(self, device: OpenDevice) -> None:
        """Offsets and length are honoured on both sides: host to device, device to device, device to host."""
        backend, unit = device.backend, self.settings.copy_alignment_nbytes
        size = 16 * unit
        data = bytes(index % 251 for index in range(size))
        host, back = device.host(data), backend.alloc_host(size)
        first, second = device.upload(bytes(size)), device.upload(bytes([99] * size))
        stream = backend.create_stream("copy")
        stream.copy(first, host, 4 * unit, dst_offset=8 * unit, src_offset=2 * unit)
        stream.copy(second, first, 6 * unit, src_offset=7 * unit)
        stream.copy(back, second, 15 * unit - 1, dst_offset=unit)
        stream.copy(back, second, 0, dst_offset=size)
        stream.synchronize(PATIENCE_S)
        moved = data[2 * unit : 6 * unit]
        assert device.download(first) == bytes(8 * unit) + moved + bytes(4 * unit)
        expected = bytes(unit) + moved + bytes(unit) + bytes([99] * 9 * unit)
        assert back.array.tobytes() == bytes(unit) + expected[: 15 * unit - 1] + b"\0"

    def test_a_copy_between_addresses_that_are_not_aligned_is_refused(self, device: OpenDevice) -> None:
        """Where the driver cannot do it, it is refused when it is enqueued, and the stream stays usable."""
        unit = self.settings.copy_alignment_nbytes
        if unit == 1:
            pytest.skip("this device copies between any addresses")
        buffer, host = device.upload(bytes(2 * unit)), device.host(bytes([7] * 2 * unit))
        stream = device.backend.create_stream("copy")
        for offsets in ((unit - 1, 0), (0, unit // 2)):
            with pytest.raises(DeviceError):
                stream.copy(buffer, host, 1, dst_offset=offsets[0], src_offset=offsets[1])
        stream.synchronize(PATIENCE_S)
        assert device.download(buffer) == bytes(2 * unit)

    def test_a_copy_of_nothing_is_fine(self, device: OpenDevice) -> None:
        """Zero bytes may be copied anywhere within the buffers, also to their very ends."""
        first, second = device.upload(b"ab"), device.host(b"cd")
        stream = device.backend.create_stream("copy")
        stream.copy(first, second, 0, dst_offset=2, src_offset=2)
        stream.synchronize(PATIENCE_S)
        assert device.download(first) == b"ab"

    @pytest.mark.parametrize(
        ("nbytes", "dst_offset", "src_offset"), [(-1, 0, 0), (11, 0, 0), (5, 6, 0), (5, 0, 12), (1, -1, 0), (1, 0, -1)]
    )
    def test_a_copy_outside_a_buffer_is_refused(
        self, device: OpenDevice, nbytes: int, dst_offset: int, src_offset: int
    ) -> None:
        """Bounds are checked when the copy is enqueued, and the stream stays usable."""
        dst, src = device.backend.alloc(10), device.backend.alloc_host(16)
        stream = device.backend.create_stream("copy")
        with pytest.raises(DeviceError):
            stream.copy(dst, src, nbytes, dst_offset=dst_offset, src_offset=src_offset)
        stream.synchronize(PATIENCE_S)

    def test_work_flows_between_streams_through_fences(self, device: OpenDevice) -> None:
        """A chain of copies and kernels over two streams loses no update and sees no stale byte."""
        backend = device.backend
        host, buffer = device.host(bytes(256)), backend.alloc(256)
        copy, compute = backend.create_stream("copy"), backend.create_stream("compute")
        for _ in range(25):
            copy.copy(buffer, host, 256)
            compute.wait(copy.record())
            device.kernels.add_one(compute, buffer)
            copy.wait(compute.record())
            copy.copy(host, buffer, 256)
        copy.synchronize(PATIENCE_S)
        assert (host.array == 25).all()

    def test_a_wait_holds_the_stream_but_not_the_caller(self, device: OpenDevice) -> None:
        """Work behind a wait starts only after the other stream's fence; enqueueing it returns at once."""
        device.need("hold")
        counter, back = device.upload(b"\0"), device.host(b"\7")
        first, second = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        go_on = device.kernels.hold(first)
        device.kernels.add_one(first, counter)
        second.wait(first.record())
        second.copy(back, counter, 1)
        fence = second.record()
        assert not fence.query()
        assert back.array[0] == 7
        go_on()
        fence.synchronize(PATIENCE_S)
        assert back.array[0] == 1

    def test_the_calls_of_every_step_mean_their_single_calls(self, device: OpenDevice) -> None:
        """`begin`, `begin_copy` and `record_copy` are in order with the rest; each copy lies between two fences."""
        host, back, buffer = device.host(bytes(range(64))), device.host(bytes(64)), device.backend.alloc(64)
        copy, compute = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        start, copied = copy.begin_copy(buffer, host, 64)
        begun = compute.begin(copied)
        device.kernels.add_one(compute, buffer)
        reached, arrived = compute.record_copy(back, buffer, 64)
        arrived.synchronize(PATIENCE_S)
        assert all(fence.query() for fence in (start, copied, begun, reached))
        assert back.array.tolist() == list(range(1, 65))
        for call in (copy.begin_copy, copy.record_copy):
            with pytest.raises(DeviceError):
                call(buffer, host, 65)
            for fence in call(buffer, host, 0):
                fence.synchronize(PATIENCE_S)
        copy.synchronize(PATIENCE_S)
        assert device.download(buffer) == back.array.tobytes()

    def test_a_step_that_begins_after_a_fence_waits_for_it(self, device: OpenDevice) -> None:
        """The fence of `begin` is done only then, and so is what is enqueued behind it; nobody blocks meanwhile."""
        device.need("hold")
        counter, back = device.upload(b"\0"), device.host(b"\7")
        first, second = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        go_on = device.kernels.hold(first)
        device.kernels.add_one(first, counter)
        begun = second.begin(first.record())
        reached, arrived = second.record_copy(back, counter, 1)
        assert not any(fence.query() for fence in (begun, reached, arrived))
        go_on()
        arrived.synchronize(PATIENCE_S)
        assert begun.query()
        assert back.array[0] == 1

    def test_streams_run_side_by_side(self, device: OpenDevice) -> None:
        """A stream that is held does not hold another."""
        device.need("hold")
        counter = device.upload(b"\0")
        first, second = device.backend.create_stream("copy"), device.backend.create_stream("compute")
        go_on = device.kernels.hold(first)
        held = first.record()
        device.kernels.add_one(second, counter)
        second.synchronize(PATIENCE_S)
        assert not held.query()
        assert not first.idle()
        go_on()
        first.synchronize(PATIENCE_S)
        assert first.idle()
        assert device.download(counter) == b"\1"

    def test_a_fresh_stream_is_idle(self, device: OpenDevice) -> None:
        """Markers, waits for done fences and isolation leave a stream without work idle."""
        stream = device.backend.create_stream("compute")
        stream.isolate()
        fence = stream.record()
        fence.synchronize(PATIENCE_S)
        stream.wait(fence)
        stream.synchronize(PATIENCE_S)
        assert stream.idle()
        assert fence.error is None

    def test_a_closed_stream_leaves_its_sisters_alone(self, device: OpenDevice) -> None:
        """Closing one stream does not disturb another of the same name."""
        counter = device.upload(b"\0")
        first, second = device.backend.create_stream("compute"), device.backend.create_stream("compute")
        first.close()
        device.kernels.add_one(second, counter)
        second.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\1"
