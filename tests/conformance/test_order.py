"""What is enqueued on a stream runs in order; what waits for a fence runs after it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import numpy as np
import pytest
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.host import HostBackend

from async_orch.testing import ManualFence
from tests.conformance.kit import PATIENCE_S, Gate, add_one


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
    fence.finish()
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
