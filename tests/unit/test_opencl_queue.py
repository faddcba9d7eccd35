"""OpenCL queues where the driver refuses or fails something: waits are kept, and failures stay with their step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from async_orch.exceptions import DeviceError

cl: Any = pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from async_orch_backends.opencl import NDRange, OpenCLBackend  # noqa: E402 - after the check for its extra
from async_orch_backends.opencl import open_backend as open_opencl  # noqa: E402

PATIENCE_S = 30.0
SOURCE = "kernel void add(global uchar *bytes, int n) { bytes[get_global_id(0)] += n; }"


@pytest.fixture
def backend() -> Iterator[OpenCLBackend]:
    """The first device."""
    opened = open_opencl()
    yield opened
    opened.close()


def _kernel(backend: OpenCLBackend) -> Any:
    return cl.Kernel(cl.Program(backend.context, SOURCE).build(), "add")


def _raw(stream: Any) -> Any:
    """The queue, without `native`, from which on every fence would be a marker of the driver."""
    return stream._queue._native


@pytest.mark.parametrize("what", ["launch", "copy"])
def test_what_is_refused_takes_no_wait_with_it(
    backend: OpenCLBackend, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fence behind a wait and a refused command is done only when what was waited for is."""
    first, second = backend.create_stream("copy"), backend.create_stream("compute")
    memory, host = backend.alloc(16), backend.alloc_host(16)
    gate = cl.UserEvent(backend.context)
    barrier = cl.enqueue_barrier(_raw(first), wait_for=[gate])
    first.copy(memory, host, 16)
    waited_for = first.record()
    second.wait(waited_for)
    with pytest.raises(DeviceError):
        if what == "launch":
            second.launch(NDRange(_kernel(backend), (16,)), memory)  # an argument is missing
        else:
            with monkeypatch.context() as patch:
                patch.setattr(cl, "enqueue_copy", _refuse)
                second.copy(memory, host, 16)
    fence = second.record()
    assert not fence.query()
    second.launch(NDRange(_kernel(backend), (16,)), memory, np.int32(3))
    last = second.record()
    gate.set_status(cl.command_execution_status.COMPLETE)
    last.synchronize(PATIENCE_S)
    assert waited_for.query()
    assert fence.query()
    barrier.wait()


def _refuse(*args: Any, **options: Any) -> None:
    raise cl.LogicError("clEnqueueWriteBuffer failed: INVALID_VALUE")


@pytest.mark.parametrize("number", [2**40, "x", 1.5, None, np.float32(2.5)])
def test_a_number_that_does_not_fit_is_a_device_error(backend: OpenCLBackend, number: Any) -> None:
    """A kernel that was told its types refuses others by an exception of C++, which names kernel and stream here."""
    kernel, stream = _kernel(backend), backend.create_stream("compute")
    kernel.set_scalar_arg_dtypes([None, np.int32])
    memory = backend.alloc(16)
    with pytest.raises(DeviceError, match=r"launching kernel 'add' on stream 'compute' failed: .*arg#2"):
        stream.launch(NDRange(kernel, (16,)), memory, number)
    with pytest.raises(DeviceError, match="launching kernel 'add' on stream 'compute' failed"):
        stream.launch(NDRange(kernel, (-1,)), memory, 1)
    stream.synchronize(PATIENCE_S)


@pytest.mark.parametrize(
    ("global_size", "local_size", "told", "arguments", "said"),
    [
        (16, None, True, 2, r"global_size=16 must be a tuple of 1 to 3 ints, such as \(64,\)"),
        ((16,), 4, True, 2, r"local_size=4 must be a tuple of 1 to 3 ints"),
        ((1.5,), None, True, 2, r"global_size=\(1\.5,\) must be a tuple of 1 to 3 ints"),
        ((), None, True, 2, r"global_size=\(\) must be 1 to 3 ints of at least 1"),
        ((0,), None, True, 2, r"global_size=\(0,\) must be 1 to 3 ints of at least 1"),
        ((4, 0), None, False, 2, r"global_size=\(4, 0\) must be 1 to 3 ints of at least 1"),
        ((16,), None, True, 3, r"it declares 2 arguments, and launch\(\) was given 3"),
        ((16,), None, False, 1, r"it declares 2 arguments, and launch\(\) was given 1"),
        ((16,), (4, 4), False, 2, r"global_size=\(16,\) and local_size=\(4, 4\) must have as many dimensions"),
        ((16,), (5,), False, 2, r"local_size=\(5,\) must divide global_size=\(16,\)"),
        ((1 << 16,), (1 << 16,), False, 2, r"local_size=\(65536,\) is 65536 work-items, the device takes \d+"),
        (
            (16,),
            None,
            False,
            -2,
            r"argument 1 is a plain int: pass a numpy scalar.* or .*kernel\.set_scalar_arg_dtypes",
        ),
    ],
)
def test_a_launch_that_cannot_be_says_what_to_change(
    backend: OpenCLBackend, global_size: Any, local_size: Any, told: bool, arguments: int, said: str
) -> None:
    """Sizes, arguments and plain numbers, in the caller's words; also what a driver takes, and then runs nowhere."""
    kernel, stream = _kernel(backend), backend.create_stream("compute")
    if told:
        kernel.set_scalar_arg_dtypes([None, np.int32])
    given = [backend.alloc(1 << 16), *[np.int32(1)] * (arguments - 1)] if arguments > 0 else [backend.alloc(16), 1]
    with pytest.raises(DeviceError, match=f"launching kernel 'add' on stream 'compute' failed: {said}"):
        stream.launch(NDRange(kernel, global_size, local_size), *given)
    stream.launch(NDRange(kernel, (16,)), given[0], np.int32(1))
    stream.synchronize(PATIENCE_S)


@pytest.mark.parametrize("when", ["it was over", "it was pending"])
def test_a_step_that_begins_behind_a_failed_command_begins_well(backend: OpenCLBackend, when: str) -> None:
    """The failed command is the last one of the queue, and so marks the place; its failure is not that of the place."""
    stream, memory, host = backend.create_stream("compute"), backend.alloc(16), backend.alloc_host(16)
    gate = cl.UserEvent(backend.context)
    barrier = cl.enqueue_barrier(_raw(stream), wait_for=[gate])  # kept: PoCL 3.0 aborts if it is dropped before
    stream.copy(memory, host, 16)
    failed = stream.record()
    started = stream.begin() if when == "it was pending" else None
    assert not failed.query()
    gate.set_status(cl.status_code.OUT_OF_RESOURCES)
    with pytest.raises(DeviceError):
        failed.synchronize(PATIENCE_S)
    if started is None:
        started = stream.begin()
    started.synchronize(PATIENCE_S)
    assert started.error is None
    assert stream.record().error is None
    assert barrier.command_execution_status < 0


class _Flushing:
    """A queue in front of the driver's own that does something else at a flush."""

    def __init__(self, native: Any, flush: Callable[[], None]) -> None:
        self._native = native
        self.flush = flush

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class _Forwarding:
    """pyopencl, whose functions take the queue that is behind."""

    Error, Kernel = cl.Error, cl.Kernel

    def __init__(self, native: Any) -> None:
        self._native = native

    def enqueue_copy(self, queue: Any, *args: Any, **options: Any) -> Any:
        return cl.enqueue_copy(self._native, *args, **options)

    def enqueue_marker(self, queue: Any, **options: Any) -> Any:
        return cl.enqueue_marker(self._native, **options)


def test_a_flush_that_fails_is_a_device_error(backend: OpenCLBackend) -> None:
    """What the driver says then is an error of ours too, with the stream's name."""
    stream, memory, host = backend.create_stream("copy"), backend.alloc(16), backend.alloc_host(16)
    queue: Any = stream
    native = _raw(stream)

    def refuse() -> None:
        raise cl.RuntimeError("clFlush failed: OUT_OF_HOST_MEMORY")

    inner = queue._queue
    inner._native, inner._cl = _Flushing(native, refuse), _Forwarding(native)
    with pytest.raises(DeviceError, match="flushing stream 'copy' failed: clFlush failed: OUT_OF_HOST_MEMORY"):
        stream.copy(memory, host, 16)
    inner._native, inner._cl = native, cl
    stream.synchronize(PATIENCE_S)


def test_every_command_is_flushed(backend: OpenCLBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy, a kernel and a marker each reach the device without waiting for what comes behind them."""
    stream, memory, host = backend.create_stream("copy"), backend.alloc(16), backend.alloc_host(16)
    kernel = _kernel(backend)
    queue: Any = stream
    native, flushed = _raw(stream), list[str]()

    def flush() -> None:
        flushed.append("flush")
        native.flush()

    inner = queue._queue
    inner._native, inner._cl = _Flushing(native, flush), _Forwarding(native)
    monkeypatch.setattr(cl.Kernel, "__call__", lambda self, queue, *args, **options: _run(self, native, *args))
    stream.copy(memory, host, 16)
    assert len(flushed) == 1
    stream.launch(NDRange(kernel, (16,)), memory, np.int32(1))
    assert len(flushed) == 2
    inner._shared = True  # as if the caller had the queue: now a fence is a marker
    fence = stream.record()
    assert len(flushed) == 3
    inner._native, inner._cl = native, cl
    fence.synchronize(PATIENCE_S)


def _run(kernel: Any, queue: Any, global_size: Any, local_size: Any, *args: Any) -> Any:
    kernel.set_args(*args)
    return cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)


def test_staging_is_memory_that_the_driver_allocated_for_the_host(
    backend: OpenCLBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices with memory of their own copy fastest from there (ALLOC_HOST_PTR); device memory is not of that kind."""
    flags: list[int] = []
    buffer = cl.Buffer

    def noting(context: Any, wanted: int, size: int) -> Any:
        flags.append(wanted)
        return buffer(context, wanted, size)

    monkeypatch.setattr(cl, "Buffer", noting)
    host, device = backend.alloc_host(64), backend.alloc(64)
    assert [bool(wanted & cl.mem_flags.ALLOC_HOST_PTR) for wanted in flags] == [True, False]
    host.array[:] = 7  # it is mapped for good
    device.free()
    host.free()
