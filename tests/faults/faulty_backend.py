"""A backend whose n-th call of one method fails: every call across the seam, one at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from async_orch_backends.sim import SimBackend

from async_orch.abc import Backend, Buffer, Fence, Stream

__all__ = ["FaultyBackend"]


class FaultyFence(Fence):
    """Counts the reads of a fence's clock."""

    notifies = True

    def __init__(self, inner: Fence, plan: FaultyBackend) -> None:
        self.inner, self._plan = inner, plan

    def query(self) -> bool:
        return self.inner.query()

    @property
    def error(self) -> BaseException | None:
        return self.inner.error

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.inner.synchronize(timeout_s)

    def notify(self, callback: Callable[[], None]) -> None:
        self.inner.notify(callback)

    def time_ns(self) -> int | None:
        self._plan.count("fence.time_ns")
        return self.inner.time_ns()


class FaultyStream(Stream):
    """Counts what is enqueued."""

    def __init__(self, inner: Stream, plan: FaultyBackend) -> None:
        self.inner, self._plan, self.name = inner, plan, inner.name

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        self._plan.count(f"{self.name}.copy")
        self.inner.copy(dst, src, nbytes, dst_offset=dst_offset, src_offset=src_offset)

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        self._plan.count(f"{self.name}.launch")
        self.inner.launch(kernel, *args, cost_ns=cost_ns)

    def record(self) -> Fence:
        self._plan.count(f"{self.name}.record")
        return FaultyFence(self.inner.record(), self._plan)

    def wait(self, fence: Fence) -> None:
        self._plan.count(f"{self.name}.wait")
        self.inner.wait(fence.inner if isinstance(fence, FaultyFence) else fence)

    def isolate(self) -> None:
        self._plan.count(f"{self.name}.isolate")
        self.inner.isolate()

    def synchronize(self, timeout_s: float | None = None) -> None:
        self.inner.synchronize(timeout_s)

    def close(self) -> None:
        self.inner.close()


class FaultyBuffer(Buffer):
    """Counts being freed; the memory goes even where the driver says that it failed."""

    def __init__(self, inner: Buffer, plan: FaultyBackend) -> None:
        super().__init__(inner.nbytes, inner.name)
        self.inner, self._plan = inner, plan

    @property
    def is_host(self) -> bool:
        return self.inner.is_host

    @property
    def array(self) -> Any:
        return self.inner.array

    @property
    def handle(self) -> int:
        return self.inner.handle

    def free(self) -> None:
        self.inner.free()
        if self in self._plan.live:
            self._plan.live.remove(self)
            self._plan.count("buffer.free")


class FaultyBackend(Backend):
    """Passes everything to a simulated device, but raises ``error`` at the n-th call of ``method``."""

    def __init__(self, inner: SimBackend, method: str = "", nth: int = 0, error: BaseException | None = None) -> None:
        self.inner, self.info = inner, inner.info
        self.method, self.nth, self.error = method, nth, error
        self.calls: Counter[str] = Counter()
        self.live: list[FaultyBuffer] = []

    def count(self, method: str) -> None:
        """One more call of a method; the n-th of the one in question fails."""
        self.calls[method] += 1
        if method == self.method and self.calls[method] == self.nth and self.error is not None:
            raise self.error

    def _keep(self, buffer: Buffer) -> Buffer:
        self.live.append(FaultyBuffer(buffer, self))
        return self.live[-1]

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        self.count("backend.alloc")
        return self._keep(self.inner.alloc(nbytes, name=name))

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        self.count("backend.alloc_host")
        return self._keep(self.inner.alloc_host(nbytes, name=name))

    def touch(self, buffer: Buffer) -> None:
        self.count("backend.touch")
        self.inner.touch(buffer.inner if isinstance(buffer, FaultyBuffer) else buffer)

    def create_stream(self, name: str) -> Stream:
        self.count("backend.create_stream")
        return FaultyStream(self.inner.create_stream(name), self)

    def close_stream(self, stream: Stream) -> None:
        stream.close()
        self.count("backend.close_stream")

    def released(self, buffer: Buffer) -> None:
        self.count("backend.released")

    def clock_ns(self) -> int:
        return self.inner.clock_ns()

    def close(self) -> None:
        self.inner.close()
