"""What is enqueued on a software stream, and the errors that failed operations leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError, DeviceLost

from ._software_fence import PendingFence

__all__ = ["ISOLATE", "Isolate", "Operation", "Wait", "Work", "failure_of", "step_failure"]

Work: TypeAlias = tuple[Callable[..., object], tuple[Any, ...], int, int]
"""A copy or a kernel: callable, arguments, cost_ns, enqueue_ns."""


class Wait:
    """The stream goes on only after ``fence``."""

    __slots__ = ("fence",)

    def __init__(self, fence: Fence) -> None:
        self.fence = fence


class Isolate:
    """Failures before this marker do not concern the work behind it."""

    __slots__ = ()


ISOLATE = Isolate()
Operation: TypeAlias = Work | Wait | Isolate | PendingFence


def step_failure(effect: Callable[..., object], stream: str, exc: BaseException) -> DeviceError:
    """The error that fences carry after ``effect`` raised ``exc``, which is its cause."""
    what = getattr(effect, "__qualname__", None) or repr(effect)
    kind = DeviceLost if isinstance(exc, DeviceLost) else DeviceError
    error = kind(f"{what} on stream {stream!r} failed: {type(exc).__name__}: {exc}")
    error.__cause__ = exc
    return error


def failure_of(fence: Fence) -> DeviceError | None:
    """A done fence's error as the waiting stream carries it on."""
    error = fence.error
    if error is None or isinstance(error, DeviceError):
        return error
    wrapped = DeviceError(f"the fence waited for failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
