"""A failure reaches every fence behind it, and stops at the next isolation."""

from __future__ import annotations

import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch.exceptions import DeviceError, DeviceLost, ImageCorrupt
from tests.conformance.kit import PATIENCE_S, TIMED, Gate, ManualFence, ReadOnlyBuffer, add_one
from tests.virtual_clock import VirtualClockLoop


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


def test_a_failed_copy_fails_its_fence(backend: SoftwareBackend) -> None:
    """A copy that raises when it runs is a failure like a kernel's."""
    stream = backend.create_stream("copy")
    stream.copy(ReadOnlyBuffer(8), backend.alloc(8), 8)
    with pytest.raises(DeviceError, match="copy") as caught:
        stream.record().synchronize(PATIENCE_S)
    assert isinstance(caught.value.__cause__, ValueError)
    assert backend.create_stream("compute").idle()


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


def test_each_wait_raises_an_exception_of_its_own(backend: SoftwareBackend) -> None:
    """Two waiters get equal messages and the same cause, but not one shared object."""
    stream = backend.create_stream("compute")
    stream.launch(_raise, KeyError("x"))
    fence = stream.record()
    caught = []
    for _ in range(2):
        with pytest.raises(DeviceError) as info:
            fence.synchronize(PATIENCE_S)
        caught.append(info.value)
    assert caught[0] is not caught[1]
    assert str(caught[0]) == str(caught[1])
    assert caught[0].__cause__ is caught[1].__cause__


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
    fence.settle(original)
    with pytest.raises(DeviceError, match="theirs"):
        marker.synchronize(PATIENCE_S)
    assert marker.error is not None
    assert marker.error.__cause__ is original


def test_a_failed_stream_still_waits(threaded: SoftwareBackend) -> None:
    """A fence behind a failure and a wait is done only when what it waits for is, as memory may depend on it."""
    gate = Gate()
    first, second = threaded.create_stream("copy"), threaded.create_stream("compute")
    first.launch(gate, cost_ns=1)
    second.launch(_raise, OSError("early"), cost_ns=1)
    second.wait(first.record())
    fence = second.record()
    gate.wait_entered()
    assert not fence.query()
    gate.open()
    with pytest.raises(DeviceError, match="early"):
        fence.synchronize(PATIENCE_S)


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
