"""A fence is done once, in order, and tells everyone who asked exactly once."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from async_orch.abc import Fence
from async_orch.testing._suite_kit import PATIENCE_S, OpenDevice, Suite

__all__ = ["FenceTests"]


def _need_notify(fence: Fence) -> None:
    if not fence.notifies:
        pytest.skip(f"{type(fence).__name__} does not notify")


class FenceTests(Suite):
    """Fences settle once, in order, and tell everyone."""

    def test_a_fence_is_pending_until_its_work_is_over(self, device: OpenDevice) -> None:
        """Before, a fence has neither error nor time, however often it is asked; after, it stays done."""
        device.need("hold")
        stream = device.backend.create_stream("compute")
        go_on = device.kernels.hold(stream)
        fence = stream.record()
        for _ in range(3):
            assert not fence.query()
            assert fence.error is None
            assert fence.time_ns() is None
        go_on()
        fence.synchronize(PATIENCE_S)
        for _ in range(3):
            assert fence.query()
            assert fence.error is None
            fence.synchronize(0)

    def test_fences_are_done_in_the_order_of_recording(self, device: OpenDevice) -> None:
        """Notifications of one stream come in order, each once, and times never go back."""
        buffer = device.upload(bytes(64))
        stream = device.backend.create_stream("compute")
        _need_notify(stream.record())
        order: list[int] = []
        fences: list[Fence] = []
        for index in range(10):
            device.kernels.add_one(stream, buffer)
            fence = stream.record()
            fence.notify(partial(order.append, index))
            fences.append(fence)
        called = threading.Event()
        last = stream.record()
        last.notify(called.set)
        last.synchronize(PATIENCE_S)
        device.let_callbacks_run()
        assert called.wait(PATIENCE_S)
        assert order == list(range(10))
        times = [time_ns for fence in fences if (time_ns := fence.time_ns()) is not None]
        assert len(times) in (0, 10)
        assert times == sorted(times)
        if times:
            assert fences[-1].elapsed_ns(fences[0]) == times[-1] - times[0]

    def test_a_later_fence_that_is_done_means_that_earlier_ones_are(self, device: OpenDevice) -> None:
        """Waiting for the last fence of a stream is enough."""
        buffer = device.upload(bytes(64))
        stream = device.backend.create_stream("compute")
        fences = []
        for _ in range(10):
            device.kernels.add_one(stream, buffer)
            fences.append(stream.record())
        fences[-1].synchronize(PATIENCE_S)
        assert all(fence.query() for fence in fences)

    def test_a_done_fence_notifies_at_once(self, device: OpenDevice) -> None:
        """Whoever asks after the fact is called on the spot, each time."""
        stream = device.backend.create_stream("compute")
        fence = stream.record()
        _need_notify(fence)
        fence.synchronize(PATIENCE_S)
        calls: list[int] = []
        fence.notify(lambda: calls.append(1))
        fence.notify(lambda: calls.append(2))
        assert calls == [1, 2]

    def test_many_callbacks_of_one_fence_are_each_called_once(self, device: OpenDevice) -> None:
        """All who asked before the fence was done are told, in the order of asking."""
        device.need("hold")
        stream = device.backend.create_stream("compute")
        go_on = device.kernels.hold(stream)
        fence = stream.record()
        _need_notify(fence)
        calls: list[int] = []
        called = threading.Event()
        for index in range(5):
            fence.notify(partial(calls.append, index))
        fence.notify(called.set)
        assert calls == []
        go_on()
        stream.synchronize(PATIENCE_S)
        device.let_callbacks_run()
        assert called.wait(PATIENCE_S)
        assert calls == list(range(5))

    def test_synchronize_gives_up_after_its_time(self, device: OpenDevice) -> None:
        """A time-out leaves the fence as it was, and a later wait succeeds; the same for a stream."""
        device.need("hold")
        stream = device.backend.create_stream("compute")
        go_on = device.kernels.hold(stream)
        fence = stream.record()
        for timeout_s in (0.01, 0, -1):
            with pytest.raises(TimeoutError):
                fence.synchronize(timeout_s)
            with pytest.raises(TimeoutError):
                stream.synchronize(timeout_s)
        assert not fence.query()
        go_on()
        fence.synchronize(PATIENCE_S)
        stream.synchronize(PATIENCE_S)

    def test_many_threads_may_block_on_one_fence(self, device: OpenDevice) -> None:
        """A fence may be waited for and asked from any thread; each of them is let go."""
        device.need("hold")
        stream = device.backend.create_stream("compute")
        go_on = device.kernels.hold(stream)
        fence, released = stream.record(), list[int]()

        def block(who: int) -> None:
            fence.synchronize(PATIENCE_S)
            if fence.query():
                released.append(who)

        waiters = [threading.Thread(target=block, args=(who,)) for who in range(4)]
        for waiter in waiters:
            waiter.start()
        go_on()
        stream.synchronize(PATIENCE_S)
        for waiter in waiters:
            waiter.join(PATIENCE_S)
        assert sorted(released) == [0, 1, 2, 3]
