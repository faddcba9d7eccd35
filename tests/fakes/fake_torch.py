"""The few names of PyTorch that the backend ``torch`` uses, on an accelerator that does everything at once.

Tensors are PyTorch's own, in host memory. It shows that the calls fit together, not how a device behaves.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import torch

__all__ = ["FakeEvent", "FakeStream", "fake_torch"]

LIMIT_NBYTES = 2**34


class FakeEvent:
    """Complete as soon as it is recorded; behind work that failed it raises, as PyTorch's do."""

    def __init__(self, *, device: Any, enable_timing: bool = False) -> None:
        self.timed = enable_timing
        self.reached_ns: int | None = None
        self.error: str | None = None

    def query(self) -> bool:
        if self.error is not None:
            raise RuntimeError(self.error)
        return self.reached_ns is not None

    def synchronize(self) -> None:
        if self.reached_ns is None:
            raise RuntimeError("an event that was never recorded is waited for")
        self.query()

    def elapsed_time(self, later: FakeEvent) -> float:
        if not (self.timed and later.timed) or self.reached_ns is None or later.reached_ns is None:
            raise RuntimeError("both events must be recorded with timing")
        return (later.reached_ns - self.reached_ns) / 1e6


class FakeStream:
    """Does everything when it is enqueued. `failed` is the error that work on it met, if any: it sticks."""

    stream_id = 7

    def __init__(self, *, device: Any) -> None:
        self.device = device
        self.failed: str | None = None

    def record_event(self, event: FakeEvent) -> None:
        event.reached_ns = time.monotonic_ns()
        event.error = self.failed

    def wait_event(self, event: FakeEvent) -> None:
        event.synchronize()


def fake_torch(devices: int = 1) -> SimpleNamespace:
    """A stand-in for the module."""
    current = threading.local()
    allocations = [0]
    device = torch.device("cpu", 0)

    def empty(nbytes: int, *, dtype: Any, device: Any = None, pin_memory: bool = False) -> torch.Tensor:
        if nbytes > LIMIT_NBYTES:
            raise RuntimeError(f"out of memory: tried to allocate {nbytes} bytes")
        allocations[0] += device is not None
        return torch.empty(nbytes, dtype=dtype)

    def current_stream(device: Any = None) -> FakeStream:
        stream: FakeStream = getattr(current, "stream", None) or FakeStream(device=device)
        return stream

    def set_stream(stream: FakeStream) -> None:
        current.stream = stream

    accelerator = SimpleNamespace(
        is_available=lambda: True,
        current_accelerator=lambda: device,
        device_count=lambda: devices,
        get_memory_info=lambda device: (LIMIT_NBYTES, LIMIT_NBYTES),
        memory_stats=lambda device: {"num_device_alloc": allocations[0], "num_device_free": 0},
        synchronize=lambda device: None,
        current_stream=current_stream,
        set_stream=set_stream,
    )
    return SimpleNamespace(
        accelerator=accelerator,
        Stream=FakeStream,
        Event=FakeEvent,
        empty=empty,
        uint8=torch.uint8,
        device=torch.device,
        __version__=f"fake {torch.__version__}",
    )
