"""What backends of real drivers have in common: buffers, streams, adopted streams, and closing within a limit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar, TypeVar

from async_orch.abc import Backend, Buffer, DeviceInfo, Stream
from async_orch.exceptions import DeviceError, OutOfDeviceMemory

from ._device_state import DeviceState
from ._driver_queue import DriverQueue
from ._driver_stream import DriverStream

__all__ = ["DriverBackend", "DriverBuffer", "given_streams"]


class DriverBuffer(Buffer):
    """A range of a driver's memory; freed once, by the caller or when its backend closes."""

    __slots__ = ("_is_host", "freed", "on_free")

    def __init__(self, nbytes: int, name: str, *, is_host: bool) -> None:
        super().__init__(nbytes, name)
        self._is_host = is_host
        self.on_free: Callable[[DriverBuffer], None] | None = None
        self.freed = False

    @property
    def is_host(self) -> bool:
        return self._is_host

    def check(self) -> None:
        """Raise `DeviceError` after `free`."""
        if self.freed:
            raise DeviceError(f"buffer {self.name or 'unnamed'} of {self.nbytes} B was freed")

    def not_addressable(self) -> DeviceError:
        """The error for `array` of memory that only the device sees."""
        return DeviceError(f"{self!r} is device memory, which the host cannot address; copy it to host memory")

    def free(self) -> None:
        if not self.freed:
            self.freed = True
            try:
                self.release()
            finally:
                if self.on_free is not None:
                    self.on_free(self)

    @abstractmethod
    def release(self) -> None:
        """Give the memory back to the driver; called once."""

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.array.data


BufferT = TypeVar("BufferT", bound=DriverBuffer)


def given_streams(options: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's streams by name, of the options ``compute_stream`` and ``copy_stream``. A handle may be 0."""
    given = {name: options.get(f"{name}_stream") for name in ("compute", "copy")}
    return {name: stream for name, stream in given.items() if stream is not None}


class DriverBackend(Backend):
    """Base of `opencl`, `torch`, `cuda` and `ascend`.

    Parameters
    ----------
    info:
        What the device says of itself.
    adopted:
        The caller's streams by name, ``"compute"`` and ``"copy"``: used instead of new ones and never closed.
    """

    stream_type: ClassVar[type[DriverStream]] = DriverStream

    def __init__(self, info: DeviceInfo, device: DeviceState, adopted: Mapping[str, Stream]) -> None:
        self.info = info
        self._device = device
        self._adopted = dict(adopted)
        self._buffers: set[DriverBuffer] = set()
        self._streams: list[DriverStream] = []
        self._abandoned: list[DriverBuffer] = []  # memory that hanging work may still touch
        self._accounted_for = 0  # abandoned threads whose memory is among it
        self._allocated_nbytes = 0

    @property
    def allocated_nbytes(self) -> int | None:
        """Device memory allocated through this backend and not freed."""
        return self._allocated_nbytes

    @property
    def close_timeout_s(self) -> float:
        """How long `close` waits for work on the device; then its threads are abandoned and its memory is kept."""
        return self._device.close_timeout_s

    @close_timeout_s.setter
    def close_timeout_s(self, seconds: float) -> None:
        self._device.close_timeout_s = seconds

    # -- memory --------------------------------------------------------------------------------------------

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        self._check_size(nbytes, name)
        buffer = self._kept(self._alloc(nbytes, name))
        self._allocated_nbytes += nbytes
        return buffer

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        self._check_size(nbytes, name)
        buffer = self._kept(self._alloc_host(nbytes, name))
        buffer.array[:] = 0
        return buffer

    def alloc_mapped(self, nbytes: int, *, name: str = "") -> tuple[Buffer, Buffer] | None:
        self._check_size(nbytes, name)
        pair = self._alloc_mapped(nbytes, name)
        if pair is None:
            return None
        memory, host = pair
        host.array[:] = 0
        self._allocated_nbytes += nbytes
        return self._kept(memory), self._kept(host)

    def _alloc_mapped(self, nbytes: int, name: str) -> tuple[DriverBuffer, DriverBuffer] | None:
        """Memory that device and host share without copies, as both see it; None where there is none."""
        return None

    @abstractmethod
    def _alloc(self, nbytes: int, name: str) -> DriverBuffer:
        """Device memory, at least one byte of it. Raises `OutOfDeviceMemory`, best by `_out_of_memory`."""

    @abstractmethod
    def _alloc_host(self, nbytes: int, name: str) -> DriverBuffer:
        """Page-locked host memory."""

    def _kept(self, buffer: BufferT) -> BufferT:
        buffer.on_free = self._freed
        self._buffers.add(buffer)
        return buffer

    def _freed(self, buffer: DriverBuffer) -> None:
        self._buffers.discard(buffer)
        if not buffer.is_host:
            self._allocated_nbytes -= buffer.nbytes

    def _check_size(self, nbytes: int, name: str) -> None:
        self._device.check_open()
        if nbytes < 0:
            raise DeviceError(f"cannot allocate {nbytes} B for {name or 'an unnamed buffer'}: the size is negative")
        limit = self.info.memory_nbytes
        if limit is not None and nbytes > limit - self._allocated_nbytes:
            raise self._out_of_memory(nbytes, name)

    def _out_of_memory(self, nbytes: int, name: str, why: str = "") -> OutOfDeviceMemory:
        free, total = self.free_nbytes(), self.info.memory_nbytes
        if free is None and total is not None:
            have = f"of {total} B, {self._allocated_nbytes} B are allocated here"
        else:
            have = (
                f"free {'unknown' if free is None else f'{free} B'} of {'unknown' if total is None else f'{total} B'}"
            )
        what = name or "an unnamed buffer"
        return OutOfDeviceMemory(f"no device memory for {what}: needed {nbytes} B, {have}{why and f' ({why})'}")

    # -- streams -------------------------------------------------------------------------------------------

    def create_stream(self, name: str) -> Stream:
        self._device.check_open()
        adopted = self._adopted.get(name)
        if adopted is not None:
            return adopted
        return self._opened(name, self._make_queue(name))

    def _opened(self, name: str, queue: DriverQueue) -> DriverStream:
        stream = self.stream_type(name, self._device, queue)
        self._streams = [*(known for known in self._streams if not known.closed), stream]
        return stream

    @abstractmethod
    def _make_queue(self, name: str) -> DriverQueue:
        """A new queue of the driver."""

    def close_stream(self, stream: Stream) -> None:
        if all(stream is not kept for kept in self._adopted.values()):
            stream.close()

    # -- closing -------------------------------------------------------------------------------------------

    def threads_abandoned(self) -> int:
        return self._device.threads_abandoned

    def close(self) -> None:
        if self._device.closed:
            return
        self._device.closed = True
        if self._device.forked:
            return  # the driver belongs to the parent
        with ExitStack() as rest:  # runs from its end, all of it whatever the driver makes of a part
            rest.callback(self._closed)
            for buffer in tuple(self._buffers):
                rest.callback(buffer.free)
            rest.callback(self._end_streams)

    def _end_streams(self) -> None:
        """Close our streams within the limit; memory that hanging work may still touch counts as freed, and stays."""
        for stream in self._streams:
            stream.begin_close()
        deadline_ns = self._device.close_deadline_ns()
        with ExitStack() as rest:
            rest.callback(self._keep_abandoned)
            while self._streams:
                rest.callback(self._streams.pop().finish_close, deadline_ns)

    def _keep_abandoned(self) -> None:
        abandoned = self._device.threads_abandoned
        if abandoned > self._accounted_for:
            self._accounted_for = abandoned
            for buffer in self._buffers:
                buffer.freed = True
            self._abandoned += self._buffers
            self._buffers.clear()
            self._allocated_nbytes = 0

    def _closed(self) -> None:
        """Give back what else the driver gave; not called in a forked child."""
