"""A ring for memory of the caller's own, usable without an orchestrator."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self, TypeVar

import anyio

from async_orch._fences import FenceWatcher
from async_orch._ring import Lease, Ring
from async_orch._waker import Waker
from async_orch.abc import Fence
from async_orch.exceptions import ConfigurationError

__all__ = ["SlotRing"]

ItemT = TypeVar("ItemT")


class SlotRing(Ring[ItemT]):
    """Leases a fixed set of buffers to one user at a time, each reused only after its last fence.

    ``SlotRing.adopt(buffers)`` takes any objects; the ring owns indices, generations and fences, the caller the
    memory, which is never freed here. `acquire` waits first come first served; ``lease.release(*fences)`` ends a
    lease. For one event loop; create it anywhere, use it on that loop.
    """

    __slots__ = ("_waiting", "_waker", "_watcher")

    def __init__(self, items: Sequence[ItemT]) -> None:
        super().__init__(items)
        self._waiting: deque[asyncio.Future[Lease[ItemT]]] = deque()
        self._waker: Waker | None = None
        self._watcher: FenceWatcher | None = None

    @classmethod
    def adopt(cls, buffers: Sequence[ItemT]) -> Self:
        """A ring over the caller's buffers. Raises `ConfigurationError` if there are none."""
        if not buffers:
            raise ConfigurationError("SlotRing.adopt needs at least one buffer")
        return cls(buffers)

    def acquire_nowait(self) -> Lease[ItemT]:
        """A lease now. Raises `anyio.WouldBlock` if no buffer is free, or others wait for one."""
        self.poll()
        lease = None if self._waiting else self.acquire_as(Lease)
        if lease is None:
            raise anyio.WouldBlock
        return lease

    async def acquire(self) -> Lease[ItemT]:
        """A lease, as soon as a buffer is free and those before have theirs. A cancel leaves nothing behind."""
        try:
            return self.acquire_nowait()
        except anyio.WouldBlock:
            pass
        future: asyncio.Future[Lease[ItemT]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        for fence in self.parked_fences():
            self._watch(fence)
        with ExitStack() as undo:
            undo.callback(self._withdraw, future)
            lease = await future
            undo.pop_all()
        return lease

    def _withdraw(self, future: asyncio.Future[Lease[ItemT]]) -> None:
        """Whoever waited for it does so no more."""
        if future.done() and not future.cancelled():
            future.result().release()
        elif future in self._waiting:
            self._waiting.remove(future)

    def release(self, lease: Lease[ItemT], fences: Sequence[Fence] = ()) -> None:
        """As `Lease.release`."""
        super().release(lease, fences)
        self._serve()
        if self._waiting:
            for fence in fences:
                if not fence.query():
                    self._watch(fence)

    def _watch(self, fence: Fence) -> None:
        if self._waker is None or self._watcher is None:
            self._waker = Waker(asyncio.get_running_loop(), self._serve)
            self._watcher = FenceWatcher(self._waker)
        self._watcher.watch(fence)

    def _serve(self) -> None:
        """Give free buffers to those who wait, in order."""
        self.poll()
        while self._waiting:
            if self._waiting[0].done():
                self._waiting.popleft()
                continue
            lease = self.acquire_as(Lease)
            if lease is None:
                return
            self._waiting.popleft().set_result(lease)
