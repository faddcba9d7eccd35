"""What the backends `host` and `sim` have in common."""

from __future__ import annotations

from abc import abstractmethod

from async_orch.abc import Backend, Buffer, ByteArray, DeviceInfo, Stream
from async_orch.exceptions import ConfigurationError, OutOfDeviceMemory

from ._device_state import DeviceState
from ._memory import SoftwareBuffer, available_nbytes, map_memory, touch_pages
from ._software_stream import SoftwareStream

__all__ = ["SoftwareBackend"]


class SoftwareBackend(Backend):
    """A device made of this machine's memory and of threads or an event loop's timers.

    Parameters
    ----------
    info:
        What the device says of itself; with ``memory_nbytes`` below the machine's, allocations beyond it fail.
    huge_pages:
        Whether device memory may use transparent huge pages, which make first use cheaper than on a device.
    compute_stream, copy_stream:
        Streams of the caller's, from another software backend, that `create_stream` gives instead of new ones.
    """

    def __init__(
        self,
        info: DeviceInfo,
        *,
        huge_pages: bool,
        compute_stream: Stream | None = None,
        copy_stream: Stream | None = None,
    ) -> None:
        self.info = info
        self._adopted = {
            name: _check_adopted(name, stream)
            for name, stream in (("compute", compute_stream), ("copy", copy_stream))
            if stream is not None
        }
        self._device = DeviceState(info.backend)
        self._huge_pages = huge_pages
        self._buffers: set[SoftwareBuffer] = set()
        self._streams: list[SoftwareStream] = []
        self._allocated_nbytes = 0

    @property
    def allocated_nbytes(self) -> int:
        """Device memory allocated and not freed."""
        return self._allocated_nbytes

    @property
    def close_timeout_s(self) -> float:
        """How long `close` and `reset` wait for kernels that do not return; then their threads are abandoned."""
        return self._device.close_timeout_s

    @close_timeout_s.setter
    def close_timeout_s(self, seconds: float) -> None:
        self._device.close_timeout_s = seconds

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        limit = self.info.memory_nbytes
        if limit is not None and nbytes > limit - self._allocated_nbytes:
            raise OutOfDeviceMemory(
                f"no device memory for {name or 'an unnamed buffer'}: needed {nbytes} B, "
                f"free {limit - self._allocated_nbytes} B of {limit} B"
            )
        return self._map(nbytes, name, is_host=False)

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        return self._map(nbytes, name, is_host=True)

    def register_host(self, array: ByteArray, *, name: str = "") -> Buffer | None:
        self._device.check_open()
        return self._keep(array, name, is_host=True)

    def _map(self, nbytes: int, name: str, *, is_host: bool) -> SoftwareBuffer:
        self._device.check_open()
        return self._keep(
            map_memory(nbytes, huge_pages=self._huge_pages and not is_host, name=name), name, is_host=is_host
        )

    def _keep(self, array: ByteArray, name: str, *, is_host: bool) -> SoftwareBuffer:
        buffer = SoftwareBuffer(array, name=name, is_host=is_host, on_free=self._freed)
        self._buffers.add(buffer)
        if not is_host:
            self._allocated_nbytes += buffer.nbytes
        return buffer

    def _freed(self, buffer: SoftwareBuffer) -> None:
        self._buffers.discard(buffer)
        if not buffer.is_host:
            self._allocated_nbytes -= buffer.nbytes

    def touch(self, buffer: Buffer) -> None:
        self._device.check_open()
        touch_pages(buffer)

    def create_stream(self, name: str) -> Stream:
        self._device.check_open()
        adopted = self._adopted.get(name)
        if adopted is not None:
            return adopted
        stream = self._make_stream(name)
        self._streams = [*(known for known in self._streams if not known.closed), stream]
        return stream

    def adopted(self, stream: Stream) -> bool:
        """Whether the stream is the caller's."""
        return any(stream is known for known in self._adopted.values())

    def close_stream(self, stream: Stream) -> None:
        if not self.adopted(stream):
            stream.close()

    @abstractmethod
    def _make_stream(self, name: str) -> SoftwareStream:
        """Create the stream; its worker registers with ``self._device``."""

    def free_nbytes(self) -> int | None:
        limit = self.info.memory_nbytes
        available = available_nbytes()
        if limit is None:
            return available
        free = limit - self._allocated_nbytes
        return free if available is None else min(free, available)

    def threads_abandoned(self) -> int:
        return self._device.threads_abandoned

    def reset(self) -> bool:
        """Drop everything queued, whose fences fail, and make streams and a lost device usable again.

        A kernel that does not return within `close_timeout_s` keeps its thread, which is abandoned and counted. Memory
        keeps its contents. False once the backend is closed, in a forked child, and where a stream of the caller's is
        lost, which only its owner can reset.
        """
        if self._device.closed or self._device.forked or any(s.lost for s in self._adopted.values()):
            return False
        for stream in self._streams:
            stream.begin_reset()
        deadline_ns = self._device.close_deadline_ns()
        self._device.lost = None
        for stream in self._streams:
            stream.finish_reset(deadline_ns)
        return True

    def close(self) -> None:
        if self._device.closed:
            return
        self._device.closed = True
        if not self._device.forked:
            for stream in self._streams:
                stream.begin_close()
            deadline_ns = self._device.close_deadline_ns()
            for stream in self._streams:
                stream.finish_close(deadline_ns)
        for buffer in tuple(self._buffers):
            buffer.free()


def _check_adopted(name: str, stream: Stream) -> SoftwareStream:
    if not isinstance(stream, SoftwareStream):
        raise ConfigurationError(
            f"{name}_stream must be a stream of an opened 'host' or 'sim' backend, not {type(stream).__name__}"
        )
    if stream.closed:
        raise ConfigurationError(f"{name}_stream is closed: {stream.name!r}")
    return stream
