"""A failure reaches every fence behind it, and stops at the next isolation."""

from __future__ import annotations

import threading

import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch.exceptions import DeviceError, DeviceLost, ImageCorrupt
from async_orch.testing import ManualFence, VirtualClockLoop
from tests.conformance.kit import PATIENCE_S, TIMED, add_one


def _raise(exc: BaseException) -> None:
    raise exc


def test_a_failed_kernel_fails_the_fences_behind_it_until_isolation(backend: SoftwareBackend) -> None:
    """Later work is skipped, fences carry the kernel's exception as cause, and isolation clears that."""
    stream = backend.create_stream("compute")
    original, ran = ZeroDivisionError("no"), list[str]()
    before = stream.record()
    stream.launch(_raise, original)
    stream.launch(ran.append, "skipped")
    failed = stream.record()
    stream.isolate()
    stream.launch(ran.append, "isolated")
    after = stream.record()
    after.synchronize(PATIENCE_S)
    assert ran == ["isolated"]
    assert before.error is None
    assert type(failed.error) is DeviceError
    assert failed.error.__cause__ is original
    assert "_raise on stream 'compute' failed: ZeroDivisionError: no" in str(failed.error)


@pytest.mark.parametrize("exc", [SystemExit(3), ImageCorrupt("task 7"), DeviceError("mine"), GeneratorExit()])
def test_whatever_a_kernel_raises_is_the_cause_of_a_device_error(backend: SoftwareBackend, exc: BaseException) -> None:
    """Exits and this library's own exceptions are wrapped too, and the stream lives on."""
    stream = backend.create_stream("compute")
    stream.launch(_raise, exc)
    fence = stream.record()
    with pytest.raises(DeviceError):
        fence.synchronize(PATIENCE_S)
    assert type(fence.error) is DeviceError
    assert fence.error.__cause__ is exc
    stream.isolate()
    stream.synchronize(PATIENCE_S)


def test_a_stream_that_waits_for_a_failed_fence_fails_too(backend: SoftwareBackend) -> None:
    """The same error passes on, whether the fence failed before the wait or after it, up to an isolation."""
    first, second = backend.create_stream("copy"), backend.create_stream("compute")
    ran: list[str] = []
    for _ in range(2):  # the second time around, the failed fence is done before it is waited for
        first.launch(_raise, OSError("link down"))
        failed = first.record()
        second.wait(failed)
        second.launch(ran.append, "dependent")
        dependent = second.record()
        second.isolate()
        second.launch(ran.append, "independent")
        second.synchronize(PATIENCE_S)
        assert dependent.error is failed.error
        second.wait(failed)
        assert second.record() is not None
        with pytest.raises(DeviceError, match="link down"):
            second.synchronize(PATIENCE_S)
        first.isolate()
        second.isolate()
    assert ran == ["independent", "independent"]


def test_a_foreign_fences_failure_is_wrapped(threaded: SoftwareBackend) -> None:
    """A failed fence of another kind fails the stream with a DeviceError that names it as cause."""
    stream, fence, original = threaded.create_stream("compute"), ManualFence(), OSError("theirs")
    stream.wait(fence)
    marker = stream.record()
    fence.finish(original)
    with pytest.raises(DeviceError, match="theirs"):
        marker.synchronize(PATIENCE_S)
    assert marker.error is not None
    assert marker.error.__cause__ is original


def test_a_kernel_that_loses_the_device_fails_everything_until_reset(backend: SoftwareBackend) -> None:
    """DeviceLost reaches every stream, isolation does not help, and reset makes the same streams usable."""
    first, second = backend.create_stream("copy"), backend.create_stream("compute")
    buffer = backend.alloc(4)
    buffer.array[:] = 0
    first.launch(_raise, DeviceLost("fell off the bus"))
    with pytest.raises(DeviceLost, match="fell off the bus"):
        first.synchronize(PATIENCE_S)
    second.isolate()
    second.launch(add_one, buffer)
    with pytest.raises(DeviceLost):
        second.synchronize(PATIENCE_S)
    assert backend.reset()
    for stream in (first, second):
        stream.launch(add_one, buffer)
        stream.synchronize(PATIENCE_S)
    assert buffer.array.tolist() == [2, 2, 2, 2]


def test_an_interrupt_in_a_borrowed_thread_reaches_its_owner(loop: VirtualClockLoop) -> None:
    """Where a kernel runs on the caller's thread, Ctrl-C fails the stream and goes on to the caller."""
    instant = SimBackend(SimProfile(name="instant"))
    stream = instant.create_stream("compute")
    with pytest.raises(KeyboardInterrupt):
        stream.launch(_raise, KeyboardInterrupt())
    assert isinstance(stream.record().error, DeviceError)
    instant.close()

    virtual = SimBackend(TIMED, clock="virtual", loop=loop)
    stream = virtual.create_stream("compute")
    stream.launch(_raise, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        stream.synchronize()
    with pytest.raises(DeviceError):
        stream.synchronize()
    stream.isolate()
    stream.synchronize()
    virtual.close()


class WatchedFence(ManualFence):
    """Cannot notify, and tells when somebody blocks on it."""

    def __init__(self) -> None:
        super().__init__(notifies=False)
        self.entered = threading.Event()

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.entered.set()
        super().synchronize(timeout_s)


def test_a_fence_from_elsewhere_fails_in_the_same_words_whenever_it_does(threaded: SoftwareBackend) -> None:
    """Whether the stream's thread was blocked on it, which raises, or saw it done: the error says what it was."""
    for is_blocked_on in (True, False):
        stream, fence = threaded.create_stream("compute"), WatchedFence()
        if is_blocked_on:
            stream.wait(fence)
            assert fence.entered.wait(PATIENCE_S)
            fence.finish(RuntimeError("elsewhere"))
        else:
            fence.finish(RuntimeError("elsewhere"))
            stream.wait(fence)
        with pytest.raises(DeviceError, match=r"^the fence waited for failed: RuntimeError: elsewhere$"):
            stream.synchronize(PATIENCE_S)
