"""A device that does nothing until told: each test decides when which piece of work ends."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from async_orch.abc import Backend, Buffer, ByteArray, DeviceInfo, Fence, Stream
from async_orch.exceptions import DeviceError, OutOfDeviceMemory
from async_orch.testing._manual_fence import ManualFence

__all__ = ["ManualBackend", "ManualBuffer", "ManualStream"]

_ALL = 1 << 62


class ManualBuffer(Buffer):
    """Plain numpy memory that knows whether it was freed."""

    def __init__(
        self, backend: ManualBackend, nbytes: int, name: str, *, host: bool, array: ByteArray | None = None
    ) -> None:
        super().__init__(nbytes, name)
        self._backend = backend
        self._host = host
        self._array: ByteArray | None = np.zeros(nbytes, np.uint8) if array is None else array

    @property
    def is_host(self) -> bool:
        return self._host

    @property
    def array(self) -> ByteArray:
        if self._array is None:
            raise DeviceError(f"{self.name or 'an unnamed buffer'} was freed")
        return self._array

    @property
    def handle(self) -> int:
        return int(self.array.ctypes.data)

    def free(self) -> None:
        if self._array is not None:
            self._array = None
            self._backend.live.remove(self)


class _StreamFence(ManualFence):
    """Recorded on a manual stream. Blocking on it lets the stream go on, as a host that waits would."""

    def __init__(self, stream: ManualStream) -> None:
        super().__init__()
        self._stream = stream

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self.query():
            self._stream.run()
        super().synchronize(0)


class ManualStream(Stream):
    """Keeps what is enqueued; `run` performs it, in order, on the calling thread.

    Attributes
    ----------
    ops:
        What is enqueued and not performed: pairs of kind and payload.
    enqueued:
        The kinds of everything that was ever enqueued.
    refuse:
        An exception that every call raises from now on; None to go on.
    clock_ns:
        The device's clock; each operation takes 100 ns.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: deque[tuple[str, Any]] = deque()
        self.enqueued: list[str] = []
        self.error: BaseException | None = None
        self.refuse: BaseException | None = None
        self.clock_ns = 0
        self.closed = False

    def _put(self, kind: str, payload: Any = None) -> None:
        if self.closed:
            raise DeviceError(f"stream {self.name!r} is closed")
        if self.refuse is not None:
            raise self.refuse
        self.enqueued.append(kind)
        self.ops.append((kind, payload))

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        if min(nbytes, dst_offset, src_offset) < 0 or dst_offset + nbytes > dst.nbytes:
            raise DeviceError(f"copy of {nbytes} B to offset {dst_offset} does not fit {dst!r}")
        if src_offset + nbytes > src.nbytes:
            raise DeviceError(f"copy of {nbytes} B from offset {src_offset} does not fit {src!r}")
        self._put("copy", (dst, src, nbytes, dst_offset, src_offset))

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        self._put("launch", (kernel, args))

    def record(self) -> Fence:
        fence = _StreamFence(self)
        self._put("record", fence)
        return fence

    def wait(self, fence: Fence) -> None:
        self._put("wait", fence)

    def isolate(self) -> None:
        self._put("isolate")

    def idle(self) -> bool:
        if self.closed:
            raise DeviceError(f"stream {self.name!r} is closed")
        return not self.ops

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.record().synchronize(timeout_s)

    def close(self) -> None:
        self.closed = True

    def run(self, limit: int = _ALL) -> int:
        """Perform up to ``limit`` operations, stopping at a wait whose fence is not done; gives their number."""
        count = 0
        while self.ops and count < limit:
            kind, payload = self.ops[0]
            if kind == "wait":
                if not payload.query():
                    break
                self.error = self.error or payload.error
            self.ops.popleft()
            count += 1
            self._perform(kind, payload)
        return count

    def run_step(self) -> None:
        """Perform operations up to the next step's `isolate`."""
        self.run(1)
        while self.ops and self.ops[0][0] != "isolate":
            if not self.run(1):
                break

    def _perform(self, kind: str, payload: Any) -> None:
        self.clock_ns += 100
        if kind == "isolate":
            self.error = None
        elif kind == "record":
            payload.finish(self.error, time_ns=self.clock_ns)
        elif kind == "copy" and self.error is None:
            # Looked up now, not at enqueue: work on memory that was freed meanwhile raises into the test.
            dst, src, nbytes, dst_offset, src_offset = payload
            dst.array[dst_offset : dst_offset + nbytes] = src.array[src_offset : src_offset + nbytes]
        elif kind == "launch" and self.error is None:
            kernel, args = payload
            arrays = [arg.array if isinstance(arg, Buffer) else arg for arg in args]
            try:
                kernel(*arrays)
            except Exception as exc:  # noqa: BLE001 - whatever a kernel raises is its fences' error
                self.error = DeviceError(f"kernel on stream {self.name!r} failed: {type(exc).__name__}: {exc}")
                self.error.__cause__ = exc


class ManualBackend(Backend):
    """A device whose streams are run by hand, with a list of the buffers that are not freed.

    Parameters
    ----------
    capacity_nbytes:
        Size of the device's memory; allocations beyond it raise `OutOfDeviceMemory`.
    shares_memory:
        Whether device and host share memory: `alloc_mapped` then gives some. An attribute as well, which can be set.

    Attributes
    ----------
    live:
        Buffers allocated and not freed.
    streams:
        The stream created last of each name.
    """

    def __init__(self, capacity_nbytes: int = 1 << 30, *, shares_memory: bool = False) -> None:
        self.info = DeviceInfo("manual", "test", "tested against a fake", alloc_visibility="all", device_clock="device")
        self.live: list[ManualBuffer] = []
        self.streams: dict[str, ManualStream] = {}
        self.capacity_nbytes = capacity_nbytes
        self.shares_memory = shares_memory
        self.closed = False

    @property
    def copy(self) -> ManualStream:
        """The copy stream."""
        return self.streams["copy"]

    @property
    def compute(self) -> ManualStream:
        """The compute stream."""
        return self.streams["compute"]

    def run(self) -> int:
        """Let the device finish all that it can, on every stream; gives the number of operations."""
        total = 0
        while count := sum(stream.run() for stream in tuple(self.streams.values())):
            total += count
        return total

    @property
    def allocated_nbytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.live if not buffer.is_host)

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        used = self.allocated_nbytes
        if used + nbytes > self.capacity_nbytes:
            raise OutOfDeviceMemory(
                f"no device memory for {name or 'an unnamed buffer'}: needed {nbytes} B, "
                f"free {self.capacity_nbytes - used} B"
            )
        return self._keep(ManualBuffer(self, nbytes, name, host=False))

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        return self._keep(ManualBuffer(self, nbytes, name, host=True))

    def alloc_mapped(self, nbytes: int, *, name: str = "") -> tuple[Buffer, Buffer] | None:
        if not self.shares_memory:
            return None
        memory = self.alloc(nbytes, name=name)
        return memory, self._keep(ManualBuffer(self, nbytes, name, host=True, array=memory.array))

    def _keep(self, buffer: ManualBuffer) -> ManualBuffer:
        if self.closed:
            raise DeviceError("backend 'manual' is closed")
        self.live.append(buffer)
        return buffer

    def touch(self, buffer: Buffer) -> None:
        buffer.array.fill(0)

    def create_stream(self, name: str) -> Stream:
        if self.closed:
            raise DeviceError("backend 'manual' is closed")
        stream = self.streams[name] = ManualStream(name)
        return stream

    def lose(self, error: BaseException) -> None:
        """Every fence that is pending on the compute stream fails with ``error``."""
        ops = list(self.compute.ops)
        self.compute.ops.clear()
        for kind, payload in ops:
            if kind == "record":
                payload.finish(error)

    def close(self) -> None:
        self.closed = True
        for stream in self.streams.values():
            stream.close()
        for buffer in tuple(self.live):
            buffer.free()
