"""Memory that worker processes write images to: files in memory that have no name (Linux's memfd).

A name would outlive a crash; these exist as long as somebody holds the descriptor or a mapping, and no longer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path

import numpy as np

from async_orch.abc import ByteArray
from async_orch.exceptions import OutOfDeviceMemory

__all__ = ["SharedMemory", "map_shared"]


class SharedMemory:
    """A file in memory, mapped here; ``fd`` is sent to those who map it too.

    All of it is allocated at once, so that a lack of memory shows here and not at somebody's first write, and its size
    is sealed, so that nobody who has it can shrink it under the others. Raises `OutOfDeviceMemory`.
    """

    __slots__ = ("_array", "fd", "nbytes")

    def __init__(self, nbytes: int, name: str) -> None:
        available = _available_nbytes()
        if available is not None and nbytes > available:
            # Asking for it all the same may end this process instead of the request.
            raise OutOfDeviceMemory(f"no shared memory for {name}: needed {nbytes} B, {available} B are available")
        try:
            fd = os.memfd_create(f"async_orch.{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as exc:
            raise OutOfDeviceMemory(f"no shared memory for {name}: {exc}") from exc
        try:
            os.posix_fallocate(fd, 0, nbytes)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            array = map_shared(fd, nbytes)
        except OSError as exc:
            os.close(fd)
            raise OutOfDeviceMemory(f"no shared memory for {name}: needed {nbytes} B ({exc})") from exc
        self._array: ByteArray | None = array
        self.fd = fd
        self.nbytes = nbytes

    @property
    def array(self) -> ByteArray:
        """The memory as a uint8 array; raises `ValueError` after `close`."""
        if self._array is None:
            raise ValueError("the shared memory is closed")
        return self._array

    def close(self) -> None:
        """Close the descriptor; the mapping ends with the last array that shows it. Idempotent."""
        if self._array is not None:
            self._array = None
            os.close(self.fd)


def map_shared(fd: int, nbytes: int) -> ByteArray:
    """The first ``nbytes`` (> 0) of a file as a uint8 array that shares them; the descriptor is not needed after."""
    return np.frombuffer(mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED), dtype=np.uint8)


def _available_nbytes() -> int | None:
    """Memory that can be had without swapping, None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
