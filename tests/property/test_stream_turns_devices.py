"""The same as `test_stream_turns`, on real queues: outcomes of random programs while another thread settles fences."""

from __future__ import annotations

import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_orch import open_backend
from async_orch.abc import Backend, Buffer, Fence, Stream
from async_orch.testing import ManualFence
from tests.fakes.fake_acl import FakeAcl
from tests.fakes.fake_cuda import FakeCuda

PATIENCE_S = 30.0
EXAMPLES = 300 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 25
NBYTES = 64  # the unit of copies on `ascend`
Program: TypeAlias = list[tuple[Any, ...]]

STREAM, FENCE = st.integers(0, 1), st.integers(0, 30)
OPERATION = st.one_of(
    st.tuples(st.just("begin"), STREAM, st.none() | FENCE),
    st.tuples(st.just("begin_copy"), STREAM, st.sampled_from((NBYTES, NBYTES, 0))),
    st.tuples(st.just("record_copy"), STREAM, st.sampled_from((NBYTES, NBYTES, 0))),
    st.tuples(st.just("wait"), STREAM, FENCE),
    st.tuples(st.sampled_from(("record", "isolate")), STREAM),
    st.tuples(st.just("settle"), st.integers(0, 2), st.none() | st.just(RuntimeError("failed elsewhere"))),
)


class Outcome(NamedTuple):
    """What is left of a program: bytes that arrived at the host, and how each fence ended."""

    outputs: list[bytes]
    errors: list[tuple[str, str] | None]
    timed: list[bool]


class Run:
    """A program on two fresh streams of a backend, each with device memory of its own."""

    def __init__(self, backend: Backend, *, composed: bool, native: bool) -> None:
        self.backend = backend
        self.streams = [backend.create_stream(name) for name in ("copy", "compute")]
        self.memory = [backend.alloc(NBYTES) for _ in self.streams]
        self.buffers: list[Buffer] = [*self.memory]
        self.outputs: list[Buffer] = []
        self.manual = [ManualFence(), ManualFence(), ManualFence(notifies=False)]
        self.fences: list[Fence] = [*self.manual]
        self.by_stream: list[list[Fence]] = [[], []]
        for stream, memory in zip(self.streams, self.memory, strict=True):
            stream.copy(memory, self._host(0), NBYTES)
            stream.synchronize(PATIENCE_S)
            if native:
                assert stream.native is not None  # on `opencl` fences are markers of the driver from here on
            if composed:
                own = {name: getattr(Stream, name) for name in ("begin", "begin_copy", "record_copy")}
                stream.__class__ = type("Composed", (type(stream),), own)

    def play(self, program: Program) -> Outcome:
        work: queue.SimpleQueue[tuple[int, BaseException | None] | None] = queue.SimpleQueue()
        settler = threading.Thread(target=self._settle, args=(work,))
        settler.start()
        for number, (operation, *args) in enumerate(program):
            if operation == "settle":
                work.put((args[0], args[1]))
                continue
            stream, rest = args[0], args[1:]
            found = getattr(self, f"_{operation}")(self.streams[stream], self.memory[stream], number % 255 + 1, *rest)
            given = [] if found is None else [found] if isinstance(found, Fence) else [*found]
            self.fences += given
            self.by_stream[stream] += given
        for manual in range(3):
            work.put((manual, None))
        work.put(None)
        last = [stream.record() for stream in self.streams]
        settler.join(PATIENCE_S)
        for fence in last:
            ended(fence)
        outcome = Outcome(
            [output.array.tobytes() for output in self.outputs],
            [ended(fence) for fences in self.by_stream for fence in fences],
            [fence.time_ns() is not None for fences in self.by_stream for fence in fences],
        )
        for fences in self.by_stream:
            times = [time_ns for fence in fences if (time_ns := fence.time_ns()) is not None]
            assert times == sorted(times)
        for stream in self.streams:
            self.backend.close_stream(stream)
        for buffer in self.buffers:
            buffer.free()
        return outcome

    def _settle(self, work: queue.SimpleQueue[tuple[int, BaseException | None] | None]) -> None:
        while (item := work.get()) is not None:
            manual, error = item
            self.manual[manual].finish(error)

    def _host(self, value: int) -> Buffer:
        buffer = self.backend.alloc_host(NBYTES)
        buffer.array[:] = np.uint8(value)
        self.buffers.append(buffer)
        return buffer

    def _begin(self, stream: Stream, memory: Buffer, value: int, after: int | None) -> Fence:
        return stream.begin(None if after is None else self.fences[after % len(self.fences)])

    def _begin_copy(self, stream: Stream, memory: Buffer, value: int, nbytes: int) -> tuple[Fence, Fence]:
        return stream.begin_copy(memory, self._host(value), nbytes)

    def _record_copy(self, stream: Stream, memory: Buffer, value: int, nbytes: int) -> tuple[Fence, Fence]:
        self.outputs.append(self._host(0))
        return stream.record_copy(self.outputs[-1], memory, nbytes)

    def _wait(self, stream: Stream, memory: Buffer, value: int, fence: int) -> None:
        stream.wait(self.fences[fence % len(self.fences)])

    def _record(self, stream: Stream, memory: Buffer, value: int) -> Fence:
        return stream.record()

    def _isolate(self, stream: Stream, memory: Buffer, value: int) -> None:
        stream.isolate()


def ended(fence: Fence) -> tuple[str, str] | None:
    """The error of a fence that must come to its end."""
    try:
        fence.synchronize(PATIENCE_S)
    except TimeoutError:
        raise
    except Exception:  # noqa: BLE001, S110 - it is read below
        pass
    assert fence.query()
    return None if fence.error is None else (type(fence.error).__name__, str(fence.error))


@contextmanager
def opened(kind: str) -> Iterator[Backend]:
    """The backend; `ascend` and `cuda` on their fakes, which must be clean in the end."""
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        if kind == "ascend":
            acl = FakeAcl()
            patch.setitem(sys.modules, "acl", acl.module)
            stack.callback(acl.check_clean)
        if kind == "cuda":
            cuda = FakeCuda()
            cuda.install(patch)
            stack.callback(cuda.gpu.check_clean)
        backend = open_backend(kind)
        stack.callback(backend.close)
        yield backend


@pytest.mark.parametrize("kind", ["host", "sim:instant", "ascend", "cuda", "opencl", "opencl natively"])
def test_one_turn_comes_out_as_single_calls_do(kind: str) -> None:
    """The same bytes, errors and times in order, whoever settles the fences that were waited for, and when."""
    name, _, way = kind.partition(" ")
    if name == "opencl" and importlib.util.find_spec("pyopencl") is None:
        pytest.skip("pyopencl is not installed: pip install 'async-orch[pocl]'")
    with opened(name) as backend:

        @settings(max_examples=EXAMPLES, deadline=None)
        @given(program=st.lists(OPERATION, max_size=25))
        def check(program: Program) -> None:
            turns = Run(backend, composed=False, native=bool(way)).play(program)
            assert turns == Run(backend, composed=True, native=bool(way)).play(program)

        check()
