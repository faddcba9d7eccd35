"""OpenCL command queues behind the seam."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from async_orch.abc import Buffer
from async_orch.exceptions import DeviceError

from ._anchored_clock import AnchoredClock
from ._device_state import DeviceState
from ._driver_fence import NativeEvent
from ._driver_queue import DriverQueue
from ._driver_stream import DriverStream
from ._opencl_driver import driver_error, status_error
from ._opencl_event import Command, EventReader, OpenCLEvent
from ._opencl_launch import NUMBERS, NDRange, advice
from ._opencl_memory import OpenCLBuffer

__all__ = ["OpenCLQueue", "OpenCLStream"]


class OpenCLQueue:
    """An in-order command queue.

    A marker costs as much as a command, so the last command's event marks a place in the queue, as long as all
    commands are ours. From when the caller has the native queue, which may get commands that we do not see, real
    markers are enqueued.
    """

    def __init__(self, cl: Any, native: Any, clock: AnchoredClock, name: str, *, owned: bool) -> None:
        self._cl = cl
        self._native = native
        self._reader = EventReader(cl, clock, name)
        self._name = name
        self._shared = not owned
        self._domain = ("opencl", native.context.int_ptr)
        self._waits: list[Command] = []
        self._running: deque[Command] = deque()  # since the last isolation, those not seen to be over well
        self._earlier: deque[Command] = deque()  # those before it
        self._last: Command | None = None
        self._looked = False  # for failures, just before the last command, behind which nothing else has come
        self._failure: DeviceError | None = None

    @property
    def native(self) -> Any:
        self._shared = True
        return self._native

    @property
    def context(self) -> Any:
        """The queue's context, by which the queue stays ours."""
        return self._native.context

    @property
    def device(self) -> Any:
        """The queue's device."""
        return self._native.device

    @property
    def handle(self) -> int:
        return int(self._native.int_ptr)

    @property
    def domain(self) -> object:
        return self._domain

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        to_host, from_host = dst.is_host, src.is_host
        if to_host and from_host:
            raise DeviceError(f"backend 'opencl' copies from or to device memory, not {src!r} to {dst!r}; use numpy")
        target = self._host_part(dst, dst_offset, nbytes) if to_host else self._memory(dst)
        source = self._host_part(src, src_offset, nbytes) if from_host else self._memory(src)
        if not nbytes or self._has_failed():
            return
        options: dict[str, Any] = {"wait_for": _events(self._waits) if self._waits else None}
        if not to_host:
            options["dst_offset"] = dst_offset
        if not from_host:
            options["src_offset"] = src_offset
        if to_host or from_host:
            options["is_blocking"] = False
        else:
            options["byte_count"] = nbytes
        try:
            event = self._cl.enqueue_copy(self._native, target, source, **options)
        except self._cl.Error as exc:
            raise driver_error(exc, f"enqueuing a copy of {nbytes} B on stream {self._name!r}") from exc
        self._enqueued(event, (target, source))

    @staticmethod
    def _host_part(buffer: Buffer, offset: int, nbytes: int) -> Any:
        array = buffer.array
        return array if nbytes == buffer.nbytes else array[offset : offset + nbytes]

    @staticmethod
    def _memory(buffer: Buffer) -> Any:
        if isinstance(buffer, OpenCLBuffer):
            return buffer.native
        raise DeviceError(f"backend 'opencl' cannot copy from or to {buffer!r}, device memory of another backend")

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        if not isinstance(kernel, NDRange) or not isinstance(kernel.kernel, self._cl.Kernel):
            what = type(kernel.kernel if isinstance(kernel, NDRange) else kernel).__name__
            raise DeviceError(
                "backend 'opencl' launches async_orch_backends.opencl.NDRange(kernel, global_size) with a "
                f"pyopencl.Kernel, not {what}; Python callables run on 'host' and 'sim'"
            )
        called, global_size, local_size = kernel
        natives = [arg.native if type(arg) is OpenCLBuffer else self._argument(arg, called) for arg in args]
        if self._has_failed():
            return
        waits = _events(self._waits) if self._waits else None
        try:
            if 0 in global_size:
                raise ValueError("it would run nowhere")  # since OpenCL 2.1 a driver takes it, and runs nothing
            event = called(self._native, global_size, local_size, *natives, wait_for=waits)
        except (self._cl.Error, TypeError, ValueError, RuntimeError) as exc:  # the last of numbers that do not fit
            what = f"launching kernel {called.function_name!r} on stream {self._name!r}"
            by_driver = isinstance(exc, self._cl.Error)
            raise driver_error(exc, what, advice(self.device, kernel, args, by_driver=by_driver)) from exc
        self._enqueued(event, natives)

    def _argument(self, arg: Any, kernel: Any) -> Any:
        if isinstance(arg, NUMBERS):
            return arg  # asked first: whether it is a buffer takes an abstract class ten times as long
        if isinstance(arg, OpenCLBuffer):
            return arg.native
        if isinstance(arg, Buffer):
            raise DeviceError(
                f"kernel {kernel.function_name!r} cannot get {arg!r}; copy it to device memory of backend 'opencl' "
                "first"
            )
        return arg

    def _enqueued(self, event: Any, uses: Sequence[Any]) -> None:
        self._waits = []  # the command has them now; before, one that is refused must not take them with it
        # Kept until it is over: a failure must not pass unseen, and the event of a copy from or to host memory blocks,
        # holding the GIL, when it is dropped before that.
        self._last = command = Command(event, uses)
        self._running.append(command)
        self._looked = True
        try:
            self._native.flush()
        except self._cl.Error as exc:
            raise driver_error(exc, f"flushing stream {self._name!r}") from exc

    def _has_failed(self) -> bool:
        """Whether work since the last isolation failed; then what follows must not be enqueued.

        A driver may fail a command whose event list holds a failed event, run it all the same if it comes late
        enough, or never end it (PoCL 3.0).
        """
        earlier, running, reader = self._earlier, self._running, self._reader
        while earlier and earlier[0].look(reader) <= 0:
            earlier.popleft()
        while running and self._failure is None:
            status = running[0].look(reader)
            if status > 0:
                break
            if status < 0:
                self._failure = status_error(status, self._name)
            running.popleft()
        for command in self._waits:
            status = command.look(reader)
            if status < 0 and self._failure is None:
                self._failure = status_error(status, self._name)
        return self._failure is not None

    def isolate(self) -> None:
        self._failure = None
        self._looked = False
        if self._running:
            self._earlier += self._running
            self._running.clear()
        if self._waits:  # the step enqueued nothing behind them, or not by us: those that are over are forgotten
            self._waits = self._pending()

    def record(self) -> NativeEvent:
        failed = self._failure is not None
        if not self._looked and self._running:
            failed = self._has_failed()
        last, running = self._last, list(self._running)
        earlier: Command | None = None
        if self._shared:
            try:
                last = Command(self._cl.enqueue_marker(self._native, wait_for=_events(self._pending()) or None))
                self._native.flush()
            except self._cl.Error as exc:
                raise driver_error(exc, f"recording on stream {self._name!r}") from exc
        elif running:
            running.pop()  # it is the last one
        elif last is not None and not failed:
            # Over well, or of before the isolation: then its failure is not ours, whether it came or will come.
            status = last.look(self._reader)
            if status < 0:
                last = self._last = None
            elif status > 0:
                earlier = last
        commands = [*running, *self._waits] if last is None else [last, *running, *self._waits]
        failure = self._failure if failed else None
        return OpenCLEvent(self._reader, commands, failure, earlier, time.monotonic_ns(), not commands)

    def wait(self, event: NativeEvent) -> None:
        if isinstance(event, OpenCLEvent):
            self._looked = False
            self._waits += [command for command in event.commands if command.status > 0]

    def _pending(self) -> list[Command]:
        return [command for command in self._waits if command.look(self._reader) > 0]

    def close(self) -> None:
        self._running.clear()
        self._earlier.clear()
        self._waits.clear()
        self._last = None


def _events(commands: Sequence[Command]) -> list[Any]:
    """What a driver's call takes as ``wait_for``, where there are any."""
    return [command.event for command in commands]


class OpenCLStream(DriverStream):
    """A stream that tells its context and device without handing out its queue, which would cost markers."""

    def __init__(self, name: str, device: DeviceState, queue: DriverQueue) -> None:
        super().__init__(name, device, queue)
        self._info: Any = queue

    @property
    def context(self) -> Any:
        """The ``pyopencl.Context`` to build programs in."""
        return self._info.context

    @property
    def device(self) -> Any:
        """The ``pyopencl.Device``."""
        return self._info.device
