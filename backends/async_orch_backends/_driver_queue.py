"""What a driver's ordered queue must be able to do for `DriverStream`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from async_orch.abc import Buffer

from ._driver_fence import NativeEvent

__all__ = ["DriverQueue"]


class DriverQueue(Protocol):
    """A driver's ordered queue. Calls come one at a time, from any thread, and never block."""

    @property
    @abstractmethod
    def native(self) -> Any:
        """The driver's own object."""

    @property
    @abstractmethod
    def handle(self) -> int:
        """The driver's handle as an integer, 0 where there is none."""

    @property
    @abstractmethod
    def domain(self) -> object:
        """Queues of one domain can wait for each other's events in the driver."""

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        """Enqueue a copy within bounds."""

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        """Enqueue a kernel."""

    @abstractmethod
    def record(self) -> NativeEvent:
        """Mark what was enqueued so far."""

    def wait(self, event: NativeEvent) -> None:
        """Let later work start only after ``event`` of the same domain."""

    def isolate(self) -> None:
        """Failures so far do not concern later work; does nothing where the driver's errors are sticky."""

    def close(self) -> None:
        """Give the queue back, unless it is the caller's. Everything in it is over."""
