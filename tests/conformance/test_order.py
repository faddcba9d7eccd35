"""What is enqueued on a stream runs in order; what waits for a fence runs after it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.host import HostBackend

from tests.conformance.kit import PATIENCE_S, Gate, ManualFence, add_one


def test_copies_and_kernels_run_in_the_order_of_enqueueing(backend: SoftwareBackend) -> None:
    """Each kernel sees exactly what the copy before it brought."""
    host, device = backend.alloc_host(64), backend.alloc(64)
    stream = backend.create_stream("compute")
    seen: list[int] = []
    for value in range(20):
        stream.launch(lambda array, value=value: array.fill(value), host)
        stream.copy(device, host, 64)
        stream.launch(lambda array: seen.append(int(array[63])), device)
    stream.synchronize(PATIENCE_S)
    assert seen == list(range(20))


def test_a_copy_moves_the_given_range_and_nothing_else(backend: SoftwareBackend) -> None:
    """Offsets and length of a copy are honoured on both sides, in every direction."""
    host, first, second, back = (
        backend.alloc_host(16),
        backend.alloc(16),
        backend.alloc(16),
        backend.alloc_host(16),
    )
    host.array[:] = np.arange(16)
    first.array[:] = 0
    second.array[:] = 99
    stream = backend.create_stream("copy")
    stream.copy(first, host, 4, dst_offset=8, src_offset=2)
    stream.copy(second, first, 6, dst_offset=0, src_offset=7)
    stream.copy(back, second, 16)
    stream.copy(back, second, 0, dst_offset=16)
    stream.synchronize(PATIENCE_S)
    assert first.array.tolist() == [0] * 8 + [2, 3, 4, 5] + [0] * 4
    assert back.array.tolist() == [0, 2, 3, 4, 5, 0] + [99] * 10


def test_a_kernel_gets_buffers_as_arrays_and_the_rest_as_it_is(backend: SoftwareBackend) -> None:
    """Buffer arguments arrive as uint8 arrays over the buffer's memory, others unchanged."""
    device = backend.alloc(8)
    got: list[object] = []
    stream = backend.create_stream("compute")
    stream.launch(lambda *args: got.extend(args), device, 7, "seven", None)
    stream.synchronize(PATIENCE_S)
    array, *rest = got
    assert isinstance(array, np.ndarray)
    assert array.dtype == np.uint8
    assert np.shares_memory(array, device.array)
    assert rest == [7, "seven", None]


def test_work_flows_between_streams_through_fences(backend: SoftwareBackend) -> None:
    """A chain of copies and kernels over two streams loses no update and sees no stale byte."""
    host, device = backend.alloc_host(256), backend.alloc(256)
    copy, compute = backend.create_stream("copy"), backend.create_stream("compute")
    for _ in range(25):
        copy.copy(device, host, 256)
        compute.wait(copy.record())
        compute.launch(add_one, device)
        copy.wait(compute.record())
        copy.copy(host, device, 256)
    copy.synchronize(PATIENCE_S)
    assert (host.array == 25).all()


def test_a_wait_holds_the_stream_but_not_the_caller(threaded: SoftwareBackend) -> None:
    """Work behind a wait starts only after the other stream's fence; enqueueing it returns at once."""
    gate, order = Gate(), list[str]()
    first, second = threaded.create_stream("copy"), threaded.create_stream("compute")
    first.launch(gate, cost_ns=1)
    first.launch(lambda: order.append("before"))
    second.wait(first.record())
    second.launch(lambda: order.append("after"))
    fence = second.record()
    gate.wait_entered()
    assert not fence.query()
    assert order == []
    gate.open()
    fence.synchronize(PATIENCE_S)
    assert order == ["before", "after"]


def test_streams_run_side_by_side(threaded: SoftwareBackend) -> None:
    """A kernel held on one stream does not hold the other."""
    gate = Gate()
    first, second = threaded.create_stream("copy"), threaded.create_stream("compute")
    first.launch(gate, cost_ns=1)
    gate.wait_entered()
    second.launch(lambda: None, cost_ns=1)
    second.synchronize(PATIENCE_S)
    assert not first.idle()
    gate.open()
    first.synchronize(PATIENCE_S)
    assert first.idle()


@pytest.mark.parametrize("notifies", [True, False])
def test_a_stream_waits_for_a_fence_from_elsewhere(threaded: SoftwareBackend, notifies: bool) -> None:
    """A fence of another kind holds the stream, whether or not it can notify."""
    fence, ran = ManualFence(notifies=notifies), threading.Event()
    stream = threaded.create_stream("compute")
    stream.wait(fence)
    stream.launch(ran.set)
    marker = stream.record()
    assert not marker.query()
    assert not ran.is_set()
    fence.settle()
    marker.synchronize(PATIENCE_S)
    assert ran.is_set()


def test_two_backends_at_once_wait_for_each_other(threaded: SoftwareBackend) -> None:
    """Fences cross between backends, and each keeps its own memory."""
    other = HostBackend()
    mine, theirs = threaded.alloc(16), other.alloc(16)
    mine.array[:] = 1
    theirs.array[:] = 0
    here, there = threaded.create_stream("copy"), other.create_stream("copy")
    gate = Gate()
    here.launch(gate, cost_ns=1)
    here.launch(add_one, mine)
    there.wait(here.record())
    there.copy(theirs, mine, 16)
    here.wait(there.record())
    here.launch(add_one, mine)
    gate.open()
    here.synchronize(PATIENCE_S)
    other.close()
    assert (mine.array == 3).all()


def test_a_fresh_stream_is_idle_and_starts_no_thread(threaded: SoftwareBackend) -> None:
    """Markers, waits for done fences and isolation on a stream without work need no thread."""
    before = set(threading.enumerate())
    stream = threaded.create_stream("compute")
    stream.isolate()
    stream.wait(stream.record())
    fence = stream.record()
    assert stream.idle()
    assert fence.query()
    assert fence.error is None
    assert set(threading.enumerate()) == before


def test_the_thread_carries_the_names_of_backend_and_stream(threaded: SoftwareBackend) -> None:
    """A stream's thread can be told from others in a profiler."""
    names: list[str] = []
    stream = threaded.create_stream("compute")
    stream.launch(lambda: names.append(threading.current_thread().name), cost_ns=1)
    stream.synchronize(PATIENCE_S)
    assert names == [f"async_orch-{threaded.info.backend}-compute"]


def test_a_kernel_that_is_no_callable_is_refused_at_once(backend: SoftwareBackend) -> None:
    """The error names what was passed."""
    kernel: Callable[..., None] | int = 3
    with pytest.raises(Exception, match="not int"):
        backend.create_stream("compute").launch(kernel)


def test_an_idle_stream_keeps_nothing_of_its_last_operation(threaded: SoftwareBackend) -> None:
    """What a kernel was given is let go when it has run, not when the next one comes."""

    class Token:
        pass

    token, gone = Token(), threading.Event()
    weakref.finalize(token, gone.set)
    threaded.create_stream("compute").launch(lambda _: None, token, cost_ns=1)
    del token
    assert gone.wait(PATIENCE_S)
