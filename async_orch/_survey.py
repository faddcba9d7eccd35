"""What backends there are, which of them work here, and what their memory costs: for ``async-orch backends``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from async_orch._registry import available_backends, claimed_support, one_line, open_backend
from async_orch.abc import Backend, DeviceInfo

__all__ = ["survey"]

_TRIES = 5
_TIMEOUT_S = 60.0
_TEXTS = ("device", "driver", "support", "alloc_visibility", "device_clock")
_NUMBERS = ("memory_nbytes", "alignment_nbytes")


def survey(names: Sequence[str] = (), *, nbytes: int | None = None) -> list[dict[str, Any]]:
    """One entry a backend, the installed ones by default, in order of their names.

    Each entry has all keys; what is unknown is None. With ``nbytes`` an allocation of that size with its first use
    (``alloc_ns``) and a copy from host memory (``copy_ns``, ``copy_bytes_per_s``) are measured: medians of 5. A backend
    that fails in any way is an entry with ``works`` False, a one-line ``why_not``, and in ``support`` what its module
    claims; it never stops the others.
    """
    return [_entry(name, nbytes) for name in (names or available_backends())]


def _entry(name: str, nbytes: int | None) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "backend": name,
        "works": False,
        "why_not": None,
        "device": None,
        "driver": None,
        "support": None,
        "memory_nbytes": None,
        "free_nbytes": None,
        "alignment_nbytes": None,
        "pinned": None,
        "alloc_visibility": None,
        "device_clock": None,
        "measured_nbytes": None,
        "alloc_ns": None,
        "copy_ns": None,
        "copy_bytes_per_s": None,
    }
    try:
        backend = open_backend(name)
        try:
            _ask(entry, backend)
            if nbytes is not None:
                _measure(entry, backend, nbytes)
        finally:
            backend.close()
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - a third party's backend may raise anything, SystemExit too; others show
        entry["why_not"] = one_line(exc)
        entry["support"] = entry["support"] or claimed_support(name)
    else:
        entry["works"] = True
    return entry


def _ask(entry: dict[str, Any], backend: Backend) -> None:
    info = backend.info
    if not isinstance(info, DeviceInfo):
        raise TypeError(f"its info is {type(info).__name__}, not a DeviceInfo")
    found: dict[str, Any] = {key: getattr(info, key) for key in (*_TEXTS, *_NUMBERS, "pinned")}
    for key, value in found.items():
        if key in _TEXTS and not isinstance(value, str):
            raise TypeError(f"its DeviceInfo.{key} is {type(value).__name__}, not text")
        if key in _NUMBERS and not isinstance(value, int | None):
            raise TypeError(f"its DeviceInfo.{key} is {type(value).__name__}, not an int")
    free_nbytes = backend.free_nbytes()
    if not isinstance(free_nbytes, int | None):
        raise TypeError(f"its free_nbytes() gave {type(free_nbytes).__name__}, not an int")
    entry.update(found, pinned=bool(found["pinned"]), driver=info.driver or None, free_nbytes=free_nbytes)


def _measure(entry: dict[str, Any], backend: Backend, nbytes: int) -> None:
    host = backend.alloc_host(nbytes, name="survey.host")
    backend.touch(host)
    stream = backend.create_stream("copy")
    allocations, copies = [], []
    for _ in range(_TRIES):
        start = time.perf_counter_ns()
        memory = backend.alloc(nbytes, name="survey")
        backend.touch(memory)
        allocated = time.perf_counter_ns()
        stream.copy(memory, host, nbytes)
        stream.synchronize(_TIMEOUT_S)
        copied = time.perf_counter_ns()
        memory.free()
        allocations.append(allocated - start)
        copies.append(copied - allocated)
    backend.close_stream(stream)
    host.free()
    copy_ns = statistics.median(copies)
    entry["measured_nbytes"] = nbytes
    entry["alloc_ns"] = int(statistics.median(allocations))
    entry["copy_ns"] = int(copy_ns)
    entry["copy_bytes_per_s"] = int(nbytes / copy_ns * 1e9) if copy_ns > 0 else None
