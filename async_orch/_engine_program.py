"""The seam for engines that already prepare, dispatch and reclaim: their memory and streams stay their own.

The adapter makes such an engine look like a program on a device whose one stream is a thread that reclaims. So order,
window, cancel, time limits, poison and records are the same code as for every other program.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from async_orch._layout import SlotSpec
from async_orch._program import StepProgram
from async_orch._slot import Slot
from async_orch.abc import Backend, Buffer, DeviceInfo, Fence, Stream
from async_orch.exceptions import ConfigurationError, DeviceError, DeviceLost

__all__ = ["EngineAdapter", "EngineBackend", "EngineProgram", "unwrap"]

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")

JOIN_TIMEOUT_S = 1.0


class EngineProgram(ABC, Generic[StepT, ResultT]):
    """An engine with its own prepare / dispatch / reclaim, its own buffers and its own streams.

    The orchestrator gives each step a slot index (0 to ``slots - 1``), held from before `prepare` until after
    `reclaim`: index the engine's own buffers with it. ``prepare`` runs where ``build_in`` says and ``dispatch``
    where ``launch_in`` says, both in order of submission if they run on one thread; ``reclaim`` runs on a thread of
    its own, in order of dispatch. Fields of the record that cannot be seen from here are null.
    """

    repeatable: bool = True
    """Whether ``prepare`` may be called again for a step whose ``prepare`` raised; retries are refused otherwise."""

    def open(self) -> None:
        """Once, before the first step."""

    @abstractmethod
    def prepare(self, step: StepT, slot_index: int) -> Any:
        """Host work ahead of the device; the return value goes to `dispatch`."""

    @abstractmethod
    def dispatch(self, prepared: Any) -> Any:
        """Start the step without waiting; the return value goes to `reclaim`."""

    @abstractmethod
    def reclaim(self, pending: Any, timeout_s: float) -> ResultT:
        """Block, without the GIL, until the step is over; gives its result.

        A `TimeoutError` after ``timeout_s`` means that the device hangs: it is lost for every step. Any other
        exception fails this step alone. It is called for every dispatched step, also for one that was cancelled,
        since only its return says that the slot may be reused.
        """

    def close(self) -> None:
        """Last; runs also after a failed `open`."""


class ReclaimFence(Fence):
    """Done when the step's ``reclaim`` has returned."""

    __slots__ = ("_callbacks", "_done", "_error", "_event", "_lock", "result")

    notifies = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: list[Callable[[], None]] = []
        self._done = False
        self._error: BaseException | None = None
        self.result: Any = None

    def query(self) -> bool:
        return self._done

    @property
    def error(self) -> BaseException | None:
        return self._error

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self._event.wait(timeout_s):
            raise TimeoutError(f"reclaim did not return within {timeout_s} s")
        if self._error is not None:
            raise DeviceError(str(self._error)) from self._error

    def notify(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        callback()

    def time_ns(self) -> int | None:
        return None

    def settle(self, result: Any, error: BaseException | None) -> None:
        """Called once, by the lane."""
        self.result, self._error = result, error
        with self._lock:
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        self._event.set()
        for callback in callbacks:
            callback()


class ReclaimLane(Stream):
    """A thread that calls ``reclaim`` for one dispatched step after the other."""

    def __init__(self, name: str, timeout_s: Callable[[], float]) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._queue: queue.SimpleQueue[tuple[Callable[[Any, float], Any], Any, ReclaimFence] | None] = (
            queue.SimpleQueue()
        )
        self._last = ReclaimFence()
        self._last.settle(None, None)
        self._thread: threading.Thread | None = None
        self._ended: DeviceError | None = None

    def reclaim(self, function: Callable[[Any, float], Any], pending: Any) -> None:
        """Enqueue the reclaim of one step."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="async_orch-reclaim", daemon=True)
            self._thread.start()
        self._last = ReclaimFence()
        self._queue.put((function, pending, self._last))

    def stop(self) -> None:
        """Call ``reclaim`` no more: the engine is about to be closed. What is still queued fails."""
        self._ended = DeviceError("the engine was closed before the step was reclaimed")

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            function, pending, fence = job
            result: Any = None
            error: BaseException | None = self._ended
            if error is not None:
                # One that hangs would make every later one wait its whole time-out as well.
                fence.settle(None, error)
                continue
            try:
                result = function(pending, self._timeout_s())
            except TimeoutError as exc:
                error = self._ended = DeviceLost(f"reclaim timed out: {exc}")
                error.__cause__ = exc
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                error = exc
            fence.settle(result, error)

    def record(self) -> Fence:
        return self._last

    def wait(self, fence: Fence) -> None:
        raise ConfigurationError("an EngineProgram cannot wait for fences: its streams are its own")

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        raise DeviceError("an EngineProgram's memory is its own: there is nothing to copy here")

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        raise DeviceError("an EngineProgram dispatches its own work")

    def synchronize(self, timeout_s: float | None = None) -> None:
        self._last.synchronize(timeout_s)

    def close(self) -> None:
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S if self._last.query() else 0.0)

    def stuck(self) -> bool:
        """Whether the thread is still inside a reclaim."""
        return self._thread is not None and self._thread.is_alive()


class EngineBackend(Backend):
    """Stands for the engine's device, of which nothing can be seen."""

    def __init__(self, timeout_s: Callable[[], float]) -> None:
        self.info = DeviceInfo("engine", "own", "tested against a fake", alloc_visibility="none", device_clock="none")
        self._timeout_s = timeout_s
        self._lanes: list[ReclaimLane] = []

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        raise DeviceError("an EngineProgram's memory is its own: allocate it in the engine")

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        raise DeviceError("an EngineProgram's memory is its own: allocate it in the engine")

    def touch(self, buffer: Buffer) -> None:
        raise DeviceError("an EngineProgram's memory is its own")

    def create_stream(self, name: str) -> Stream:
        lane = ReclaimLane(name, self._timeout_s)
        self._lanes.append(lane)
        return lane

    def threads_abandoned(self) -> int:
        return sum(lane.stuck() for lane in self._lanes)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


class EngineAdapter(StepProgram[Any, Any]):
    """Makes an `EngineProgram` a `StepProgram` whose stream is the reclaim lane."""

    slot = SlotSpec(image_nbytes=0)
    slot_at_build = True

    def __init__(self, engine: EngineProgram[Any, Any]) -> None:
        self.engine = engine
        self.repeatable = engine.repeatable
        self._lane: ReclaimLane | None = None

    def open(self, device: Any) -> None:
        self.engine.open()

    def build(self, step: Any, image: Any) -> Any:
        return self.engine.prepare(step, image)

    def launch(self, step: Any, slot: Slot, stream: Stream) -> int | None:
        if not isinstance(stream, ReclaimLane):
            raise ConfigurationError("an EngineProgram runs on its own device only")
        self._lane = stream
        stream.reclaim(self.engine.reclaim, self.engine.dispatch(step))
        return None

    def close(self) -> None:
        if self._lane is not None:
            self._lane.stop()
        self.engine.close()


def unwrap(program: StepProgram[Any, Any]) -> object:
    """The caller's own object."""
    return program.engine if isinstance(program, EngineAdapter) else program
