"""Places in OpenCL queues, told by the events of the commands before them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from async_orch.exceptions import DeviceError

from ._anchored_clock import AnchoredClock
from ._opencl_driver import status_error

__all__ = ["Command", "EventReader", "OpenCLEvent"]


class EventReader:
    """What all events of a queue are read with.

    Attributes
    ----------
    cl:
        The module ``pyopencl``.
    status, end:
        What to ask an event for. ``event.command_execution_status`` and ``event.profile.end`` are the same by way of
        Python; the second takes ten times as long.
    """

    __slots__ = ("cl", "clock", "end", "status", "stream")

    def __init__(self, cl: Any, clock: AnchoredClock, stream: str) -> None:
        self.cl = cl
        self.clock = clock
        self.stream = stream
        self.status = cl.event_info.COMMAND_EXECUTION_STATUS
        self.end = cl.profiling_info.END


class Command(msgspec.Struct, eq=False):
    """A command of a queue by its event, which is asked for nothing that it has told once and for all.

    Several places in the queue stand on one command, and each is looked at by the loop and by a thread that waits.
    Threads may ask at once: they write the same.

    Attributes
    ----------
    uses:
        What must stay where it is until the command is over: shared memory is freed with its last reference, whatever
        runs on it, unlike the driver's own buffers.
    status:
        As far as seen: greater than 0 until `look` has found the command to be over; 0 if it went well, less if not.
    end:
        When it was over by the device's clock, once `ask_end` has been called.
    """

    event: Any
    uses: Sequence[Any] = ()
    status: int = 1
    end: int | None = None

    def look(self, reader: EventReader) -> int:
        """The status now."""
        status = self.status
        if status > 0:
            status = self.status = self.event.get_info(reader.status)
        return status

    def ask_end(self, reader: EventReader) -> int:
        """`end`, from the driver. Raises pyopencl's ``Error`` where it is not known."""
        end: int = self.event.get_profiling_info(reader.end)
        self.end = end
        return end


class OpenCLEvent(msgspec.Struct, eq=False):
    """A place in a queue: over when all of its commands are. Without any, it is over from the start.

    The time is that of the last command's end, but not before ``marked_ns``: an idle queue is reached when it is
    asked. ``earlier`` is a command of before the last isolation, whose failure is not the place's.
    """

    reader: EventReader
    commands: Sequence[Command]
    error: DeviceError | None
    earlier: Command | None
    marked_ns: int
    over: bool
    reached_ns: int | None = None

    @property
    def native(self) -> Any:
        return self.commands[0].event if self.commands else None

    def query(self) -> bool:
        if self.over:
            return True
        error, reader = self.error, self.reader
        for command in self.commands:
            status = command.status
            if status > 0:
                status = command.look(reader)
                if status > 0:
                    return False
            if status < 0 and error is None and command is not self.earlier:
                error = status_error(status, reader.stream)
        self.error = error
        self.over = True
        return True

    def wait(self, timeout_s: float) -> bool:
        reader = self.reader
        failed = reader.cl.Error
        for command in self.commands:
            if command.look(reader) <= 0:
                continue  # each wait gives the GIL away, also where there is nothing to wait for
            try:
                command.event.wait()
            except failed:
                continue  # `query` says how
        reader.clock.renew()
        return True

    def time_ns(self) -> int | None:
        time_ns = self.reached_ns
        if time_ns is None and self.error is None:
            reader, time_ns = self.reader, self.marked_ns
            offset_ns = reader.clock.offset_ns
            try:
                for command in self.commands:
                    end = command.end
                    if end is None:
                        end = command.ask_end(reader)
                    end += offset_ns
                    if end > time_ns:
                        time_ns = end
            except reader.cl.Error:  # the caller's queue does not profile
                return None
            if time_ns > self.marked_ns:
                time_ns = min(time_ns, time.monotonic_ns())
            self.reached_ns = time_ns
        return time_ns
