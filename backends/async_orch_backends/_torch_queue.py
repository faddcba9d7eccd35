"""PyTorch's streams, events and tensors behind the seam."""

from __future__ import annotations

from typing import Any

from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import DeviceError, DeviceLost

from ._driver_backend import DriverBuffer
from ._driver_fence import NativeEvent
from ._event_clock import EventClock
from ._timed_event import TimedEvent

__all__ = ["TorchBuffer", "TorchEvent", "TorchQueue", "torch_error"]


def torch_error(exc: Exception, what: str) -> DeviceError:
    """An exception of PyTorch as ours. Its accelerators report a lost device as a RuntimeError like any other."""
    text = f"{what} failed: {' '.join(str(exc).split())}"
    error = DeviceLost(text) if type(exc).__name__ == "AcceleratorError" else DeviceError(text)
    error.__cause__ = exc
    return error


class TorchBuffer(DriverBuffer):
    """Memory as a uint8 tensor, which is `native`; `handle` is its address."""

    __slots__ = ("_tensor",)

    def __init__(self, tensor: Any, nbytes: int, name: str, *, is_host: bool) -> None:
        super().__init__(nbytes, name, is_host=is_host)
        self._tensor: Any = tensor

    @property
    def native(self) -> Any:
        self.check()
        return self._tensor[: self.nbytes]

    @property
    def handle(self) -> int:
        self.check()
        return int(self._tensor.data_ptr())

    @property
    def array(self) -> ByteArray:
        self.check()
        if not self.is_host:
            raise self.not_addressable()
        array: ByteArray = self._tensor[: self.nbytes].numpy()
        return array

    def release(self) -> None:
        self._tensor = None  # its last owner gives it back to PyTorch's allocator

    def __dlpack__(self, **options: Any) -> Any:
        return self.native.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.native.__dlpack_device__()
        return int(kind), int(index)


class TorchEvent(TimedEvent):
    """A ``torch.Event``."""

    __slots__ = ()

    def is_done(self) -> bool:
        return bool(self.native.query())

    def synchronize(self) -> None:
        self.native.synchronize()

    def failure(self, exc: Exception) -> DeviceError:
        error = DeviceLost(f"work before an event failed: {' '.join(str(exc).split())}")
        error.__cause__ = exc
        return error


class TorchQueue:
    """A ``torch.Stream``."""

    def __init__(self, torch: Any, device: Any, clock: EventClock, stream: Any) -> None:
        self._torch = torch
        self._device = device
        self._clock = clock
        self._stream = stream

    @property
    def native(self) -> Any:
        return self._stream

    @property
    def handle(self) -> int:
        return int(self._stream.stream_id)

    @property
    def domain(self) -> object:
        return ("torch", str(self._device))

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, dst_offset: int, src_offset: int) -> None:
        for buffer in (dst, src):
            if not isinstance(buffer, TorchBuffer):
                raise DeviceError(f"backend 'torch' cannot copy from or to {buffer!r}; allocate it with this backend")
        target = dst.native[dst_offset : dst_offset + nbytes]
        source = src.native[src_offset : src_offset + nbytes]
        self._on_stream(lambda: target.copy_(source, non_blocking=True), f"a copy of {nbytes} B")

    def launch(self, kernel: Any, args: tuple[Any, ...]) -> None:
        if not callable(kernel):
            raise DeviceError(f"backend 'torch' launches callables that enqueue, not {type(kernel).__name__}")
        natives = [arg.native if isinstance(arg, TorchBuffer) else arg for arg in args]
        self._on_stream(lambda: kernel(*natives), f"launching {getattr(kernel, '__qualname__', kernel)!r}")

    def _on_stream(self, work: Any, what: str) -> None:
        """Run ``work`` with our stream current on this thread, whatever is current before and after."""
        generic = self._torch.accelerator
        before = generic.current_stream(self._device)
        generic.set_stream(self._stream)
        try:
            work()
        except RuntimeError as exc:
            raise torch_error(exc, what) from exc
        finally:
            generic.set_stream(before)

    def record(self) -> NativeEvent:
        event = self._torch.Event(device=self._device, enable_timing=True)
        try:
            self._stream.record_event(event)
        except RuntimeError as exc:
            raise torch_error(exc, "recording an event") from exc
        return TorchEvent(event, self._clock)

    def wait(self, event: NativeEvent) -> None:
        try:
            self._stream.wait_event(event.native)
        except RuntimeError as exc:
            raise torch_error(exc, "waiting for an event") from exc

    def isolate(self) -> None:
        """The driver's errors are sticky."""

    def close(self) -> None:
        """PyTorch's streams come from a pool and are never destroyed."""
