"""Backend ``cuda``: NVIDIA GPUs by cuda-core. Tested against a fake of it; not run on a GPU.

``cuda:0`` is the device with that ordinal. ``stream.launch`` takes a `Launch` (a ``cuda.core.Kernel`` with its
``LaunchConfig``), a captured graph, or a callable that enqueues, ``kernel(stream, *args)`` with ``cuda.core`` objects.
Errors of work on the device are sticky: they lose the device (`DeviceLost`).
"""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import Any, Final

from async_orch.abc import Buffer, DeviceInfo, Stream
from async_orch.exceptions import BackendUnavailable, ConfigurationError, OrchError, OutOfDeviceMemory

from ._cuda_queue import CudaBuffer, CudaQueue, CudaStream, Launch, cuda_error
from ._device_state import DeviceState
from ._driver_backend import DriverBackend, DriverBuffer, given_streams
from ._driver_queue import DriverQueue
from ._event_clock import EventClock

__all__ = ["CudaBackend", "Launch", "open_backend"]

SUPPORT: Final = "tested against a fake; on a GPU not run"

_ALIGNMENT_NBYTES = 256
_PAGE_NBYTES = 4096


class CudaBackend(DriverBackend):
    """One GPU, in its primary context."""

    stream_type = CudaStream

    def __init__(self, core: Any, bindings: Any, device: Any, adopted: dict[str, Any]) -> None:
        self._core = core
        self._bindings = bindings
        self._native = device
        device.set_current()
        code, _, total = bindings.cuMemGetInfo()
        if int(code):
            raise cuda_error(RuntimeError(getattr(code, "name", str(code))), f"opening cuda:{device.device_id}")
        _, version = bindings.cuDriverGetVersion()
        info = DeviceInfo(
            backend="cuda",
            device=device.name,
            support=SUPPORT,
            alignment_nbytes=_ALIGNMENT_NBYTES,
            pinned=True,
            alloc_visibility="own",
            device_clock="anchored",
            memory_nbytes=int(total),
            driver=f"CUDA driver API {version // 1000}.{version % 1000 // 10}",
        )
        super().__init__(info, DeviceState("cuda"), {})
        self._pinned = core.LegacyPinnedMemoryResource()
        self._own_stream = device.create_stream()
        with ExitStack() as undo:
            undo.callback(self._own_stream.close)
            self._clock = EventClock(self._mark, self._elapsed_ms)
            for name, stream in adopted.items():
                if isinstance(stream, Stream):
                    self._adopted[name] = stream
                else:
                    self._adopted[name] = self._opened(name, self._wrap(device.create_stream(stream), owned=False))
            undo.pop_all()

    def _wrap(self, stream: Any, *, owned: bool) -> CudaQueue:
        return CudaQueue(self._core, self._bindings, self._native, self._clock, stream, owned=owned)

    def _mark(self) -> Any:
        self._native.set_current()
        event = self._own_stream.record(options=self._core.EventOptions(timing_enabled=True, blocking_sync=True))
        event.sync()
        return event

    def _elapsed_ms(self, first: Any, second: Any) -> float:
        self._native.set_current()
        return float(second - first)

    def _make_queue(self, name: str) -> DriverQueue:
        self._native.set_current()
        return self._wrap(self._native.create_stream(), owned=True)

    def _alloc(self, nbytes: int, name: str) -> DriverBuffer:
        self._native.set_current()
        return self._allocated(self._native, nbytes, name, is_host=False)

    def _alloc_host(self, nbytes: int, name: str) -> DriverBuffer:
        self._native.set_current()
        return self._allocated(self._pinned, nbytes, name, is_host=True)

    def _allocated(self, source: Any, nbytes: int, name: str, *, is_host: bool) -> DriverBuffer:
        try:
            memory = source.allocate(max(nbytes, 1), stream=self._own_stream)
            self._own_stream.sync()  # an allocation is ordered in the stream; other streams use it next
        except Exception as exc:
            error = cuda_error(exc, f"allocating {nbytes} B for {name or 'an unnamed buffer'}")
            if isinstance(error, OutOfDeviceMemory) or isinstance(exc, OverflowError):
                raise self._out_of_memory(nbytes, name, " ".join(str(exc).split())) from exc
            raise error from exc
        return CudaBuffer(memory, self._native, self._own_stream, nbytes, name, is_host=is_host)

    def free_nbytes(self) -> int | None:
        self._native.set_current()
        code, free, _ = self._bindings.cuMemGetInfo()
        return None if int(code) else int(free)

    def touch(self, buffer: Buffer) -> None:
        self._device.check_open()
        if buffer.is_host:
            buffer.array[::_PAGE_NBYTES] = 0
        elif buffer.nbytes:
            self._native.set_current()
            try:
                buffer.native.fill(0, stream=self._own_stream)
                self._own_stream.sync()
            except Exception as exc:
                raise cuda_error(exc, f"touching {buffer!r}") from exc

    def _closed(self) -> None:
        self._clock.forget()
        if not self._device.threads_abandoned:
            self._native.set_current()
            self._own_stream.close()


def _load() -> tuple[Any, Any, Any]:
    """The modules ``cuda.core``, ``cuda.bindings.driver`` and ``cuda.bindings.runtime``."""
    try:
        core, driver, runtime = (
            importlib.import_module(f"cuda.{name}") for name in ("core", "bindings.driver", "bindings.runtime")
        )
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            "backend 'cuda' needs cuda-core: pip install 'async-orch[cuda13]', or 'async-orch[cuda12]' for a driver of "
            "CUDA 12"
        ) from exc
    except (ImportError, RuntimeError) as exc:
        raise BackendUnavailable(f"backend 'cuda' cannot import cuda-core: {' '.join(str(exc).split())}") from exc
    return core, driver, runtime


def _count(runtime: Any) -> int:
    """Number of GPUs. Asked of the runtime, which says so by a value where the driver is missing; the rest raises."""
    try:
        code, count = runtime.cudaGetDeviceCount()
    except RuntimeError as exc:
        raise BackendUnavailable(f"no NVIDIA driver works here: {' '.join(str(exc).split())}") from exc
    if int(code):
        name = getattr(code, "name", str(code))
        raise BackendUnavailable(
            f"no NVIDIA driver works here: {name} ({int(code)}); install the driver, or a newer one, and check it with "
            "nvidia-smi"
        )
    return int(count)


def open_backend(target: str | None = None, **options: Any) -> CudaBackend:
    """Open ``cuda`` (device 0) or ``cuda:ORDINAL``.

    ``compute_stream`` and ``copy_stream`` are objects that speak ``__cuda_stream__``, or streams of another backend
    opened here, to use instead of new ones. Raises `BackendUnavailable` without cuda-core, a driver or such a device,
    and `ConfigurationError` for any other option.
    """
    unknown = sorted(set(options) - {"compute_stream", "copy_stream"})
    if unknown:
        raise ConfigurationError(
            f"backend 'cuda' takes the options compute_stream and copy_stream, got {', '.join(unknown)}"
        )
    text = target or "0"
    if not (text.isascii() and text.isdigit()):
        raise BackendUnavailable(f"backend 'cuda:{target}' names no device: give its ordinal, e.g. 'cuda:0'")
    adopted = given_streams(options)
    for name, stream in adopted.items():
        if not hasattr(stream, "__cuda_stream__"):
            raise ConfigurationError(f"{name}_stream must speak __cuda_stream__, got {type(stream).__name__}")
    core, driver, runtime = _load()
    count = _count(runtime)
    if int(text) >= count:
        raise BackendUnavailable(f"backend 'cuda:{text}' is out of range: this machine has {count} NVIDIA devices")
    try:
        return CudaBackend(core, driver, core.Device(int(text)), adopted)
    except OrchError:
        raise
    except Exception as exc:
        raise cuda_error(exc, f"opening cuda:{text}") from exc
