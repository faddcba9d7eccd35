"""OpenCL commands: asked for nothing twice, alive until they are over with what they use, and forgotten then."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import DeviceError, OutOfDeviceMemory

cl: Any = pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from async_orch_backends import opencl as opencl_module  # noqa: E402 - after the check for its extra
from async_orch_backends._opencl_event import Command, EventReader, OpenCLEvent  # noqa: E402
from async_orch_backends._opencl_memory import shares_memory  # noqa: E402
from async_orch_backends.opencl import NDRange, OpenCLBackend  # noqa: E402
from async_orch_backends.opencl import open_backend as open_opencl  # noqa: E402

PATIENCE_S = 30.0
SOURCE = "kernel void add(global uchar *bytes, int n) { bytes[get_global_id(0)] += n; }"


@pytest.fixture
def backend() -> Iterator[OpenCLBackend]:
    """The first device."""
    opened = open_opencl()
    yield opened
    opened.close()


def _add(backend: OpenCLBackend, nbytes: int) -> NDRange:
    kernel = cl.Kernel(cl.Program(backend.context, SOURCE).build(), "add")
    kernel.set_scalar_arg_dtypes([None, np.int32])
    return NDRange(kernel, (nbytes,))


def _gate(backend: OpenCLBackend, stream: Any) -> tuple[Any, Any]:
    """An event that holds up what is enqueued from now on, and what waits for it (kept: PoCL 3.0 needs that)."""
    gate = cl.UserEvent(backend.context)
    return gate, cl.enqueue_barrier(stream._queue._native, wait_for=[gate])


def _behind_a_failed_wait(backend: OpenCLBackend) -> tuple[Stream, Buffer, Buffer, Any]:
    """A stream that waits for a command of another, which has failed since; memory and a host buffer; the barrier."""
    first, second = backend.create_stream("copy"), backend.create_stream("compute")
    memory, host = backend.alloc(16), backend.alloc_host(16)
    gate, barrier = _gate(backend, first)
    first.copy(memory, host, 16)
    waited = first.record()
    second.wait(waited)
    gate.set_status(cl.status_code.OUT_OF_RESOURCES)
    with pytest.raises(cl.Error):
        waited.native.wait()  # the driver's event: our own knowledge of the command stays what it was
    return second, memory, host, barrier


def _begins_well(stream: Stream, memory: Buffer, host: Buffer) -> None:
    """The next step's copy on the stream is done without an error."""
    stream.begin()
    stream.copy(memory, host, 16)
    fence = stream.record()
    fence.synchronize(PATIENCE_S)
    assert fence.error is None


class _Told:
    """An event that says what it is told to, and how often it was asked."""

    def __init__(self, *statuses: int, end: int = 0) -> None:
        self.statuses = list(statuses)
        self.end = end
        self.asked: list[str] = []

    def get_info(self, what: Any) -> int:
        self.asked.append("status")
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def get_profiling_info(self, what: Any) -> int:
        self.asked.append("end")
        return self.end


def _place(*events: _Told, marked_ns: int = 0, commands: list[Command] | None = None) -> OpenCLEvent:
    reader = EventReader(cl, SimpleNamespace(offset_ns=0, renew=lambda: None), "compute")  # type: ignore[arg-type]
    commands = [Command(event) for event in events] if commands is None else commands
    return OpenCLEvent(reader, commands, None, None, marked_ns, not commands)


def test_a_command_tells_its_status_until_it_is_over_and_its_end_once() -> None:
    """Two places that stand on it ask the driver once for each, however often they are looked at."""
    event = _Told(1, 0, end=500)
    first = _place(event)
    second = _place(commands=list(first.commands))
    assert [first.query(), first.query(), first.query(), second.query(), second.query()] == [False, *[True] * 4]
    assert [first.time_ns(), second.time_ns(), first.time_ns(), second.time_ns()] == [500] * 4
    assert event.asked == ["status", "status", "end"]


def test_the_time_of_a_place_is_neither_before_it_was_marked_nor_in_the_future() -> None:
    """A device's clock is as good as its anchor: a time that cannot be is the nearest that can."""
    now_ns = time.monotonic_ns()
    assert _place(_Told(0, end=7), marked_ns=now_ns).time_ns() == now_ns
    found = _place(_Told(0, end=now_ns + 10**15), marked_ns=now_ns).time_ns()
    assert found is not None
    assert now_ns <= found <= time.monotonic_ns()


def test_the_first_of_two_failures_is_the_one_that_is_told() -> None:
    """What fails behind it fails because of it."""
    place = _place(_Told(cl.status_code.OUT_OF_RESOURCES), _Told(cl.status_code.INVALID_VALUE))
    assert place.query()
    assert "OUT_OF_RESOURCES" in str(place.error)


@pytest.mark.parametrize("act", ["nothing", "native"])
async def test_waits_are_forgotten_where_no_command_of_ours_takes_them(backend: OpenCLBackend, act: str) -> None:
    """A program that enqueues nothing, or on the driver's queue itself, leaves no wait a step behind."""
    kept: list[int] = []

    class Own(StepProgram[int, None]):
        slot = SlotSpec(image_nbytes=4096, output_nbytes=64)

        def open(self, device: Any) -> None:
            self.add = _add(backend, 64)

        def build(self, step: int, image: ByteArray) -> None:
            image[0] = step

        def launch(self, step: int, slot: Slot, stream: Any) -> None:
            if act == "native":
                self.add.kernel(stream.native, (64,), None, slot.output.native, 1)
            kept.append(len(stream._queue._waits))

        def collect(self, step: int, output: ByteArray) -> None:
            """Nothing is asked of it."""

    async with Orchestrator(Own(), backend, slots=2) as orch:
        assert len([result async for result in orch.map(range(100))]) == 100
    assert max(kept) <= 4


@pytest.mark.parametrize("native", [True, False])
def test_a_wait_for_a_command_that_failed_unseen_ends(backend: OpenCLBackend, native: bool) -> None:
    """It failed after it was waited for and before anything came behind: PoCL would never end what waits for it."""
    stream, memory, host, barrier = _behind_a_failed_wait(backend)
    if native:
        assert stream.native is not None
    else:
        stream.copy(memory, host, 16)
    with pytest.raises(DeviceError):
        stream.record().synchronize(PATIENCE_S)
    _begins_well(stream, memory, host)
    assert barrier.command_execution_status < 0


def test_a_wait_that_failed_before_the_next_step_is_not_the_next_steps(backend: OpenCLBackend) -> None:
    """Nothing was enqueued behind it, so nobody has looked at it by the time of the isolation."""
    stream, memory, host, barrier = _behind_a_failed_wait(backend)
    _begins_well(stream, memory, host)
    assert barrier.command_execution_status < 0


def test_a_stream_waits_for_one_of_another_context(backend: OpenCLBackend) -> None:
    """Its driver cannot: what comes behind is kept until the fence is done."""
    other = open_opencl()
    first, second = backend.create_stream("copy"), other.create_stream("compute")
    gate, barrier = _gate(backend, first)
    first.copy(backend.alloc(16), backend.alloc_host(16), 16)
    second.begin(first.record())
    memory, back = other.alloc(16), other.alloc_host(16)
    second.copy(back, memory, 16)
    fence = second.record()
    assert not fence.query()
    gate.set_status(cl.command_execution_status.COMPLETE)
    fence.synchronize(PATIENCE_S)
    assert fence.error is None
    barrier.wait()
    other.close()


# -- shared memory ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["kernel", "copy"])
@pytest.mark.parametrize("how", ["freed", "closed by another backend"])
def test_shared_memory_lives_as_long_as_commands_that_use_it(backend: OpenCLBackend, use: str, how: str) -> None:
    """It is freed with its last reference, whatever still writes there: the stream keeps one until that is over."""
    stream: Any = backend.create_stream("compute")
    owner = backend if how == "freed" else open_opencl(compute_stream=stream)
    pair = owner.alloc_mapped(4096, name="slot.output")
    if pair is None:
        pytest.skip("this device shares no memory with the host")
    memory, host = pair
    back = backend.alloc_host(4096)
    memory_of_pair = weakref.ref(host.array.base)
    gate, barrier = _gate(backend, stream)
    if use == "kernel":
        stream.launch(_add(backend, 4096), memory, 1)
    else:
        stream.copy(back, memory, 4096)
    fence = stream.record()
    if how == "freed":
        memory.free()
        host.free()
    else:
        owner.close()
    del pair, memory, host
    gc.collect()
    assert memory_of_pair() is not None
    gate.set_status(cl.command_execution_status.COMPLETE)
    fence.synchronize(PATIENCE_S)
    del fence
    stream.begin()
    stream.launch(_add(backend, 16), backend.alloc(16), 1)
    stream.synchronize(PATIENCE_S)
    gc.collect()
    assert memory_of_pair() is None
    barrier.wait()


def test_closing_ends_both_halves_of_shared_memory(backend: OpenCLBackend) -> None:
    """And the smallest piece is none at all."""
    pair, empty = backend.alloc_mapped(64), backend.alloc_mapped(0)
    if pair is None or empty is None:
        pytest.skip("this device shares no memory with the host")
    assert [buffer.nbytes for buffer in empty] == [0, 0]
    backend.close()
    assert backend.allocated_nbytes == 0
    with pytest.raises(DeviceError):
        _ = pair[1].array
    with pytest.raises(DeviceError):
        _ = pair[0].native


async def test_without_shared_memory_outputs_are_copied(
    backend: OpenCLBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may have none left, or refuse: the same program runs as on any other device."""

    def refuse(*args: Any, **options: Any) -> None:
        raise cl.MemoryError("clSVMAlloc failed: OUT_OF_RESOURCES")

    class Adds(StepProgram[int, int]):
        slot = SlotSpec(image_nbytes=64, output_nbytes=64)

        def open(self, device: Any) -> None:
            self.add = _add(backend, 64)

        def build(self, step: int, image: ByteArray) -> None:
            image[:] = step

        def launch(self, step: int, slot: Slot, stream: Stream) -> None:
            stream.copy(slot.output, slot.image, 64)
            stream.launch(self.add, slot.output, 1)

        def collect(self, step: int, output: ByteArray) -> int:
            return int(output[63])

    async with Orchestrator(Adds(), backend) as orch:
        results = [result async for result in orch.map(range(5))]
        shared = [result.timings.d2h_ns for result in results]
    monkeypatch.setattr(cl, "fsvm_empty", refuse)
    assert backend.alloc_mapped(64) is None
    async with Orchestrator(Adds(), backend) as orch:
        copied = [result async for result in orch.map(range(5))]
    assert [result.output for result in results] == [result.output for result in copied] == [1, 2, 3, 4, 5]
    assert shared == [None] * 5
    assert all(result.timings.d2h_ns is not None for result in copied)


def test_more_shared_memory_than_is_free_is_refused(backend: OpenCLBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is touched at once, and the system would end the process."""
    monkeypatch.setattr(opencl_module, "available_nbytes", lambda: 1 << 20)
    with pytest.raises(OutOfDeviceMemory, match=r"needed 67108864 B.*"):
        backend.alloc_mapped(64 << 20)


@pytest.mark.parametrize(
    ("device", "shares"),
    [
        (SimpleNamespace(svm_capabilities=3, host_unified_memory=1), True),
        (SimpleNamespace(svm_capabilities=3, host_unified_memory=0), False),
        (SimpleNamespace(svm_capabilities=1, host_unified_memory=1), False),
        (SimpleNamespace(host_unified_memory=1), False),
    ],
    ids=["fine-grained", "memory of its own", "coarse-grained only", "before OpenCL 2.0"],
)
def test_memory_is_shared_where_the_device_works_in_the_hosts_and_keeps_it_coherent(device: Any, shares: bool) -> None:
    """Elsewhere a copy of the output is needed, or reading it in place takes longer."""
    assert shares_memory(cl, device) is shares
