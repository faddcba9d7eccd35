"""The OpenCL driver: finding it, finding a device, and what its errors mean."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from async_orch.exceptions import BackendUnavailable, ConfigurationError, DeviceError, DeviceLost, OutOfDeviceMemory

__all__ = ["driver_error", "find_device", "load_pyopencl", "queue_of", "status_error", "support_of"]

_POCL = "Portable Computing Language"
_LOST = {-2: "DEVICE_NOT_AVAILABLE"}
_NO_MEMORY = {-4: "MEM_OBJECT_ALLOCATION_FAILURE", -5: "OUT_OF_RESOURCES", -6: "OUT_OF_HOST_MEMORY", -61: "too large"}
_BEHIND_A_FAILURE = (-14, -1)  # the number by the standard, and what PoCL gives an event behind a failed one


def load_pyopencl() -> Any:
    """The module ``pyopencl``; `BackendUnavailable` with the line to type where it is missing or broken."""
    try:
        return importlib.import_module("pyopencl")
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            "backend 'opencl' needs pyopencl: pip install 'async-orch[opencl]', "
            "and for a driver on the CPU (Linux x86_64) 'async-orch[pocl]'"
        ) from exc
    except ImportError as exc:
        raise BackendUnavailable(f"backend 'opencl' cannot import pyopencl: {exc}") from exc


def _devices(cl: Any) -> list[Any]:
    try:
        platforms = cl.get_platforms()
    except cl.Error as exc:
        raise BackendUnavailable(
            "no OpenCL driver is installed: pip install 'async-orch[pocl]' on Linux x86_64; elsewhere the system's "
            f"package, such as pocl-opencl-icd or the vendor's driver ({exc})"
        ) from exc
    found: list[Any] = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:  # a platform without a device says so with an error
            continue
    return found


def _name(device: Any) -> str:
    return f"{device.name.strip()} ({'PoCL' if device.platform.name == _POCL else device.platform.name.strip()})"


def support_of(device: Any) -> str:
    """The word for the claim of support: only PoCL has been measured."""
    return "measured on CPU (PoCL)" if device.platform.name == _POCL else "not run"


def find_device(cl: Any, target: str | None) -> Any:
    """The device with the index ``target``, the first by default; `BackendUnavailable` lists what there is."""
    text = target or "0"
    is_index = text.isascii() and text.isdigit()
    try:
        devices = _devices(cl)
    except BackendUnavailable as exc:
        if is_index:
            raise
        raise BackendUnavailable(f"backend 'opencl:{target}' names no device: give an index; and {exc}") from exc
    if not devices:
        raise BackendUnavailable("OpenCL is installed but has no device; check the driver with `clinfo`")
    listing = ", ".join(f"opencl:{i} {_name(device)}" for i, device in enumerate(devices))
    if not is_index:
        raise BackendUnavailable(f"backend 'opencl:{target}' names no device: give an index; there is {listing}")
    index = int(text)
    if index >= len(devices):
        raise BackendUnavailable(f"backend 'opencl:{target}' is out of range; there is {listing}")
    return devices[index]


def queue_of(cl: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The queue whose context and device to use, if any was given, and the given streams by the seam's names."""
    adopted: dict[str, Any] = {}
    first: Any = None
    for name in ("compute", "copy"):
        stream = options.get(f"{name}_stream")
        if stream is None:
            continue
        queue = getattr(stream, "native", stream)
        if not isinstance(queue, cl.CommandQueue):
            raise ConfigurationError(f"{name}_stream must be a pyopencl.CommandQueue, got {type(stream).__name__}")
        if first is not None and (first.context != queue.context or first.device != queue.device):
            raise ConfigurationError("compute_stream and copy_stream must be queues of one context and one device")
        first = queue
        adopted[name] = stream
    return first, adopted


def driver_error(exc: Exception, what: str, advice: str = "") -> DeviceError:
    """A driver call's exception as ours, with it as the cause; ``advice`` says what to change."""
    code = getattr(exc, "code", None)
    text = f"{what} failed: {f'{advice}; ' if advice else ''}{' '.join(str(exc).split())}"
    kind = DeviceLost if code in _LOST else OutOfDeviceMemory if code in _NO_MEMORY else DeviceError
    error = kind(text)
    error.__cause__ = exc
    return error


def status_error(status: int, stream: str) -> DeviceError:
    """What a negative event status says."""
    if status in _LOST:
        return DeviceLost(f"the device of stream {stream!r} is gone: {_LOST[status]} ({status})")
    if status in _BEHIND_A_FAILURE:
        return DeviceError(f"work on stream {stream!r} was behind an event that failed (status {status})")
    meaning = f", {_NO_MEMORY[status]}" if status in _NO_MEMORY else ""
    return DeviceError(f"work on stream {stream!r} failed on the device (status {status}{meaning})")
