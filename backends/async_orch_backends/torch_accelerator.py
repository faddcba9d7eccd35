"""Backend ``torch``: any accelerator of PyTorch, through the generic classes of ``torch.accelerator``. Not run.

``torch`` is the current accelerator, ``torch:cuda:0``, ``torch:npu:0`` or ``torch:xpu:1`` one by name. A kernel is a
callable that enqueues, called at once as ``kernel(*args)`` with the stream current and buffers as uint8 tensors::

    def launch(self, step, slot, stream):
        stream.launch(self.model, slot.image, slot.output)

It must not wait for the device. What PyTorch allocates from the device during a launch is seen by its own counter, and
refused under ``strict_alloc``; what its cache serves is not. So run the model once in ``open``. Errors of work on a
device are sticky in PyTorch: they lose the device.

``torch:cpu`` is for tests of programs where there is no accelerator: the same kernels run on host streams.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

from async_orch.abc import Backend, Buffer, DeviceInfo, Stream
from async_orch.exceptions import BackendUnavailable, ConfigurationError, DeviceError

from ._device_state import DeviceState
from ._driver_backend import DriverBackend, DriverBuffer, given_streams
from ._driver_queue import DriverQueue
from ._event_clock import EventClock
from ._torch_queue import TorchBuffer, TorchQueue, torch_error

__all__ = ["TorchBackend", "open_backend"]

SUPPORT: Final = "not run"

_ALIGNMENT_NBYTES = 64
_NAME: Final = re.compile(r"[a-z_]\w*(:[0-9]+)?", re.ASCII)
_COUNTER = "num_device_alloc"  # torch.accelerator.memory_stats: allocations of device memory, not what its cache serves


class TorchBackend(DriverBackend):
    """One accelerator of PyTorch."""

    def __init__(self, torch: Any, device: Any, adopted: dict[str, Any]) -> None:
        _, total = torch.accelerator.get_memory_info(device)
        torch.empty(1, dtype=torch.uint8, device=device)  # before the first allocation there are no counters
        self._counts = _COUNTER in torch.accelerator.memory_stats(device)
        info = DeviceInfo(
            backend="torch",
            device=str(device),
            support=SUPPORT,
            alignment_nbytes=_ALIGNMENT_NBYTES,
            pinned=True,
            alloc_visibility="all" if self._counts else "own",
            device_clock="anchored",
            memory_nbytes=int(total),
            driver=f"torch {torch.__version__}",
        )
        super().__init__(info, DeviceState("torch"), {})
        self._torch = torch
        self._native = device
        self._clock_stream = torch.Stream(device=device)
        self._clock = EventClock(self._mark, lambda first, second: float(first.elapsed_time(second)))
        for name, stream in adopted.items():
            if isinstance(stream, Stream):
                self._adopted[name] = stream
            else:
                self._adopted[name] = self._opened(name, TorchQueue(torch, device, self._clock, stream))

    def _mark(self) -> Any:
        event = self._torch.Event(device=self._native, enable_timing=True)
        self._clock_stream.record_event(event)
        event.synchronize()
        return event

    def _make_queue(self, name: str) -> DriverQueue:
        return TorchQueue(self._torch, self._native, self._clock, self._torch.Stream(device=self._native))

    def _alloc(self, nbytes: int, name: str) -> DriverBuffer:
        return self._empty(nbytes, name, is_host=False, device=self._native)

    def _alloc_host(self, nbytes: int, name: str) -> DriverBuffer:
        return self._empty(nbytes, name, is_host=True, pin_memory=True)

    def _empty(self, nbytes: int, name: str, *, is_host: bool, **options: Any) -> DriverBuffer:
        torch = self._torch
        try:
            tensor = torch.empty(max(nbytes, 1), dtype=torch.uint8, **options)
        except (RuntimeError, MemoryError) as exc:  # torch.OutOfMemoryError among them, and others for pinned memory
            raise self._out_of_memory(nbytes, name, " ".join(str(exc).split())) from exc
        return TorchBuffer(tensor, nbytes, name, is_host=is_host)

    def free_nbytes(self) -> int | None:
        free, _ = self._torch.accelerator.get_memory_info(self._native)
        return int(free)

    def allocation_counter(self) -> Callable[[], int] | None:
        if not self._counts:
            return None
        stats, device = self._torch.accelerator.memory_stats, self._native
        return lambda: int(stats(device)[_COUNTER])

    def touch(self, buffer: Buffer) -> None:
        self._device.check_open()
        try:
            buffer.native.zero_()
            if not buffer.is_host:
                self._torch.accelerator.synchronize(self._native)
        except RuntimeError as exc:
            raise torch_error(exc, f"touching {buffer!r}") from exc

    def _closed(self) -> None:
        self._clock.forget()


def _load() -> Any:
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as exc:
        raise BackendUnavailable("backend 'torch' needs PyTorch: pip install 'async-orch[torch]'") from exc
    except (ImportError, OSError) as exc:
        raise BackendUnavailable(f"backend 'torch' cannot import torch: {' '.join(str(exc).split())}") from exc


def _device(torch: Any, target: str | None) -> Any:
    """The accelerator that ``target`` names. Probes first: without one PyTorch gives streams that do nothing."""
    generic: Any = getattr(torch, "accelerator", None)
    current: Any = generic.current_accelerator() if generic is not None and generic.is_available() else None
    if current is None:
        raise BackendUnavailable(
            f"backend 'torch' found no accelerator in torch {torch.__version__}: install a PyTorch build for your "
            "device (and its driver), or use 'torch:cpu' to test a program"
        )
    text = target or current.type
    kind, _, index = text.partition(":")
    if kind != current.type:
        raise BackendUnavailable(f"backend 'torch:{text}': the accelerator of this PyTorch is {current.type!r}")
    count = torch.accelerator.device_count()
    if int(index or 0) >= count:
        raise BackendUnavailable(f"backend 'torch:{text}' is out of range: there are {count} {kind} devices")
    return torch.device(kind, int(index or 0))


def open_backend(target: str | None = None, **options: Any) -> Backend:
    """Open ``torch``, ``torch:KIND``, ``torch:KIND:INDEX``, or ``torch:cpu`` for tests.

    ``compute_stream`` and ``copy_stream`` are the caller's ``torch.Stream``, or streams of another backend opened here,
    to use instead of new ones. Raises `BackendUnavailable` without PyTorch or without such an accelerator, and
    `ConfigurationError` for any other option.
    """
    unknown = sorted(set(options) - {"compute_stream", "copy_stream"})
    if unknown:
        raise ConfigurationError(
            f"backend 'torch' takes the options compute_stream and copy_stream, got {', '.join(unknown)}"
        )
    if target is not None and _NAME.fullmatch(target) is None:
        raise BackendUnavailable(
            f"backend 'torch:{target}' names no device: give KIND or KIND:INDEX, as 'torch:cuda:0'"
        )
    torch = _load()
    if target in ("cpu", "cpu:0"):
        from ._torch_cpu import TorchCpuBackend  # noqa: PLC0415 - for tests only

        return TorchCpuBackend(torch, **options)
    device = _device(torch, target)
    adopted = given_streams(options)
    for name, stream in adopted.items():
        if not isinstance(getattr(stream, "native", stream), torch.Stream):
            raise ConfigurationError(f"{name}_stream must be a torch.Stream, got {type(stream).__name__}")
    try:
        return TorchBackend(torch, device, adopted)
    except RuntimeError as exc:
        raise DeviceError(f"opening torch device {device} failed: {' '.join(str(exc).split())}") from exc
