"""Backend ``host``: a device made of this machine's memory and threads.

Copies and kernels are real work on real memory, so copy and compute overlap as far as the machine has cores, and
an allocation costs its page faults. A kernel is a Python callable; numpy calls release the GIL and overlap, plain
Python does not.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from async_orch.abc import DeviceInfo, Stream
from async_orch.exceptions import BackendUnavailable, ConfigurationError

from ._memory import PAGE_NBYTES, physical_nbytes
from ._software_backend import SoftwareBackend
from ._software_stream import SoftwareStream
from ._stream_worker import StreamWorker

__all__ = ["HostBackend", "open_backend"]


class HostBackend(SoftwareBackend):
    """This machine as a device. A stream is one daemon thread, started with its first operation.

    ``compute_stream`` and ``copy_stream`` are streams of the caller's to use instead of new ones.
    """

    def __init__(self, *, compute_stream: Stream | None = None, copy_stream: Stream | None = None) -> None:
        info = DeviceInfo(
            backend="host",
            device="cpu",
            support="measured on CPU",
            alignment_nbytes=PAGE_NBYTES,
            pinned=True,
            alloc_visibility="all",
            device_clock="host",
            memory_nbytes=physical_nbytes(),
        )
        super().__init__(info, huge_pages=False, compute_stream=compute_stream, copy_stream=copy_stream)

    def _make_stream(self, name: str) -> SoftwareStream:
        return SoftwareStream(name, self._device, partial(StreamWorker, name, self._device), clock_ns=time.monotonic_ns)


def open_backend(target: str | None = None, **options: Any) -> HostBackend:
    """Open ``host`` or ``host:cpu``, which are the same.

    ``compute_stream`` and ``copy_stream`` are streams of the caller's to use instead of new ones; closing the backend
    leaves them open. Raises `BackendUnavailable` for another device and `ConfigurationError` for any other option.
    """
    if target not in (None, "", "cpu"):
        raise BackendUnavailable(f"backend 'host' has one device, 'cpu', not {target!r}; use 'host'")
    unknown = sorted(set(options) - {"compute_stream", "copy_stream"})
    if unknown:
        raise ConfigurationError(
            f"backend 'host' takes the options compute_stream and copy_stream, got {', '.join(unknown)}"
        )
    return HostBackend(**options)
