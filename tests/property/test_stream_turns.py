"""What a driver's stream does in one turn under its lock is what the seam composes of single calls, in any situation.

Random programs run twice on a driver in which nothing happens by itself: on the stream as it is, and on one whose
`begin`, `begin_copy` and `record_copy` are those of `async_orch.abc.Stream`. Every call that reaches the driver, every
error, and every fence after every operation must be the same.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias

from async_orch_backends._device_state import DeviceState
from async_orch_backends._driver_stream import DriverStream
from hypothesis import given, settings
from hypothesis import strategies as st

from async_orch.abc import Fence, Stream
from async_orch.exceptions import DeviceError, DeviceLost
from async_orch.testing import ManualFence
from tests.fakes.scripted_driver import ScriptedBuffer, ScriptedDriver, ScriptedQueue

EXAMPLES = 5_000 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 500
NBYTES = 16
Program: TypeAlias = list[tuple[Any, ...]]


class ComposedStream(DriverStream):
    """The same with the seam's own compositions."""

    begin = Stream.begin
    begin_copy = Stream.begin_copy
    record_copy = Stream.record_copy


STREAM = st.integers(0, 1)
FENCE = st.integers(0, 30)
COPY = st.tuples(st.sampled_from((0, 1, NBYTES, NBYTES, NBYTES + 1, -1)), st.sampled_from((True, True, True, False)))
FAILURE = st.sampled_from((DeviceError("refused"), DeviceLost("gone")))
OUTCOME = st.sampled_from((None, None, DeviceError("failed"), DeviceLost("gone")))
OPERATION = st.one_of(
    st.tuples(st.just("begin"), STREAM, st.none() | FENCE),
    st.tuples(st.sampled_from(("begin_copy", "record_copy")), STREAM, COPY),
    st.tuples(st.sampled_from(("launch", "record", "isolate", "idle")), STREAM),
    st.tuples(st.just("copy"), STREAM, COPY),
    st.tuples(st.just("wait"), STREAM, FENCE),
    st.tuples(st.just("reach"), STREAM, OUTCOME),
    st.tuples(st.just("settle"), st.integers(0, 2), st.none() | st.just(RuntimeError("failed elsewhere"))),
    st.tuples(st.just("fail_next"), FAILURE),
    st.tuples(st.just("close"), STREAM),
    st.tuples(st.sampled_from(("lose", "fork"))),
)
# Ends of the world come late and seldom, or most programs would say nothing.
PROGRAM = st.lists(OPERATION.filter(lambda op: op[0] not in ("close", "lose", "fork")), max_size=30).flatmap(
    lambda start: st.lists(OPERATION, max_size=6).map(lambda end: [*start, *end])
)


class Run:
    """A program on fresh streams, and what there was to see after each operation."""

    def __init__(self, stream_type: type[DriverStream]) -> None:
        self.driver = ScriptedDriver()
        self.device = DeviceState("scripted")
        self.queues = [ScriptedQueue(self.driver, name) for name in ("copy", "compute")]
        self.streams = [stream_type(queue.native, self.device, queue) for queue in self.queues]
        self.manual = [ManualFence() for _ in range(3)]
        self.fences: list[Fence] = [*self.manual]
        self.seen: list[object] = []

    def play(self, program: Program) -> list[object]:
        for operation, *args in program:
            given: object = None
            error: BaseException | None = None
            try:
                given = getattr(self, f"_{operation}")(*args)
            except DeviceError as exc:
                error = exc
            if isinstance(given, Fence | tuple):
                self.fences += (given,) if isinstance(given, Fence) else given
                given = None
            fences = [self._look(fence) for fence in self.fences]
            self.seen.append((operation, given, said(error), list(self.driver.calls), fences))
        return self.seen

    @staticmethod
    def _look(fence: Fence) -> tuple[object, ...]:
        native = None if isinstance(fence, ManualFence) else fence.native
        time_ns = None if isinstance(fence, ManualFence) else fence.time_ns()
        return fence.query(), said(fence.error), time_ns, native

    def _fence(self, index: int) -> Fence:
        return self.fences[index % len(self.fences)]

    def _begin(self, stream: int, after: int | None) -> Fence:
        return self.streams[stream].begin(None if after is None else self._fence(after))

    def _begin_copy(self, stream: int, copy: tuple[int, bool]) -> tuple[Fence, Fence]:
        nbytes, good = copy
        return self.streams[stream].begin_copy(ScriptedBuffer(NBYTES, good=good), ScriptedBuffer(NBYTES), nbytes)

    def _record_copy(self, stream: int, copy: tuple[int, bool]) -> tuple[Fence, Fence]:
        nbytes, good = copy
        return self.streams[stream].record_copy(ScriptedBuffer(NBYTES, good=good), ScriptedBuffer(NBYTES), nbytes)

    def _copy(self, stream: int, copy: tuple[int, bool]) -> None:
        nbytes, good = copy
        self.streams[stream].copy(ScriptedBuffer(NBYTES, good=good), ScriptedBuffer(NBYTES), nbytes)

    def _launch(self, stream: int) -> None:
        self.streams[stream].launch("kernel", 1)

    def _record(self, stream: int) -> Fence:
        return self.streams[stream].record()

    def _wait(self, stream: int, fence: int) -> None:
        self.streams[stream].wait(self._fence(fence))

    def _isolate(self, stream: int) -> None:
        self.streams[stream].isolate()

    def _idle(self, stream: int) -> bool:
        return self.streams[stream].idle()

    def _reach(self, stream: int, error: DeviceError | None) -> None:
        self.queues[stream].reach(error)

    def _settle(self, manual: int, error: BaseException | None) -> None:
        self.manual[manual].finish(error)

    def _fail_next(self, error: DeviceError) -> None:
        self.driver.next_error = error

    def _close(self, stream: int) -> None:
        self.queues[stream].reach_all()
        self.driver.next_error = None
        self.streams[stream].close()

    def _lose(self) -> None:
        self.device.lose(DeviceLost("gone"))

    def _fork(self) -> None:
        self.device.mark_forked()


def said(error: BaseException | None) -> tuple[str, str] | None:
    """An error in a form that compares."""
    return None if error is None else (type(error).__name__, str(error))


@settings(max_examples=EXAMPLES, deadline=None)
@given(program=PROGRAM)
def test_one_turn_is_the_same_as_single_calls(program: Program) -> None:
    """Deferred work, failures, wrong copies, a lost device at any call, closed streams and a fork included."""
    turns, composed = Run(DriverStream).play(program), Run(ComposedStream).play(program)
    for number, (one, other) in enumerate(zip(turns, composed, strict=True)):
        assert one == other, f"operation {number}"
