"""A device that does nothing until told: each test decides when which piece of work ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from async_orch.abc import Backend, Buffer, ByteArray, DeviceInfo, Fence, Stream
from async_orch.exceptions import DeviceError, OutOfDeviceMemory


class ManualFence(Fence):
    """Done when the test says so."""

    notifies = True

    def __init__(self) -> None:
        self._done = False
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []
        self.reached_ns: int | None = None

    def query(self) -> bool:
        return self._done

    @property
    def error(self) -> BaseException | None:
        return self._error

    def synchronize(self, timeout_s: float | None = None) -> None:
        if not self._done:
            raise TimeoutError(f"not done within {timeout_s} s")

    def notify(self, callback: Callable[[], None]) -> None:
        if self._done:
            callback()
        else:
            self._callbacks.append(callback)

    def time_ns(self) -> int | None:
        return self.reached_ns

    def finish(self, error: BaseException | None = None, time_ns: int = 0) -> None:
        """Mark it done."""
        self._done, self._error, self.reached_ns = True, error, time_ns
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class ManualBuffer(Buffer):
    """Plain numpy memory that knows whether it was freed."""

    def __init__(self, backend: ManualBackend, nbytes: int, name: str, *, host: bool) -> None:
        super().__init__(nbytes, name)
        self._backend = backend
        self._host = host
        self._array: ByteArray | None = np.zeros(nbytes, np.uint8)

    @property
    def is_host(self) -> bool:
        return self._host

    @property
    def array(self) -> ByteArray:
        if self._array is None:
            raise DeviceError(f"{self.name} was freed")
        return self._array

    @property
    def handle(self) -> int:
        return int(self.array.ctypes.data)

    def free(self) -> None:
        if self._array is not None:
            self._array = None
            self._backend.live.remove(self)


class ManualStream(Stream):
    """Keeps what is enqueued; `run` performs it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ops: deque[tuple[str, Any]] = deque()
        self.enqueued: list[str] = []
        self.error: BaseException | None = None
        self.refuse: BaseException | None = None
        self.clock_ns = 0
        self.closed = False

    def _put(self, kind: str, payload: Any = None) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.enqueued.append(kind)
        self.ops.append((kind, payload))

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        self._put("copy", (dst, src, nbytes))

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        self._put("launch", (kernel, args))

    def record(self) -> Fence:
        fence = ManualFence()
        self._put("record", fence)
        return fence

    def wait(self, fence: Fence) -> None:
        self._put("wait", fence)

    def isolate(self) -> None:
        self._put("isolate")

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.run()

    def close(self) -> None:
        self.closed = True

    def run(self, limit: int = 1_000_000) -> int:
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
            payload.finish(self.error, self.clock_ns)
        elif kind == "copy" and self.error is None:
            dst, src, nbytes = payload
            dst.array[:nbytes] = src.array[:nbytes]
        elif kind == "launch" and self.error is None:
            kernel, args = payload
            try:
                kernel(*[a.array if isinstance(a, Buffer) else a for a in args])
            except Exception as exc:  # noqa: BLE001 - whatever a kernel raises is its fences' error
                self.error = DeviceError("kernel failed")
                self.error.__cause__ = exc


class ManualBackend(Backend):
    """Two streams by hand, and a list of the buffers that are not freed."""

    def __init__(self, capacity_nbytes: int = 1 << 30) -> None:
        self.info = DeviceInfo("manual", "test", "not run", alloc_visibility="all", device_clock="device")
        self.live: list[ManualBuffer] = []
        self.streams: dict[str, ManualStream] = {}
        self.capacity_nbytes = capacity_nbytes
        self.closed = False

    @property
    def copy(self) -> ManualStream:
        return self.streams["copy"]

    @property
    def compute(self) -> ManualStream:
        return self.streams["compute"]

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        used = sum(b.nbytes for b in self.live if not b.is_host)
        if used + nbytes > self.capacity_nbytes:
            raise OutOfDeviceMemory(f"{nbytes} B needed, {self.capacity_nbytes - used} B free")
        return self._keep(ManualBuffer(self, nbytes, name, host=False))

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        return self._keep(ManualBuffer(self, nbytes, name, host=True))

    def _keep(self, buffer: ManualBuffer) -> ManualBuffer:
        self.live.append(buffer)
        return buffer

    def touch(self, buffer: Buffer) -> None:
        buffer.array.fill(0)

    def create_stream(self, name: str) -> Stream:
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
