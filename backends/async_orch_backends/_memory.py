"""Memory of the software devices: anonymous mappings, seen through numpy.

A buffer is a mapping of its own rather than a piece of the heap, because then an allocation and its first touch
cost page faults, as they do on a device, and giving it back really gives it back.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import DeviceError, OutOfDeviceMemory

__all__ = ["PAGE_NBYTES", "SoftwareBuffer", "available_nbytes", "map_memory", "physical_nbytes", "touch_pages"]

PAGE_NBYTES = mmap.PAGESIZE

CHECKED_NBYTES = 1 << 20
"""Smaller allocations are not compared with available memory: reading that takes some 50 us."""


class SoftwareBuffer(Buffer):
    """A range of memory that host and software device both address.

    Freeing drops the buffer's own reference only: an array, a slice or a DLPack capsule taken before keeps the
    mapping alive, so that late access reads stale bytes instead of ending the process.
    """

    __slots__ = ("_address", "_array", "_is_host", "_lent", "_on_free")

    def __init__(
        self,
        array: ByteArray,
        *,
        name: str,
        is_host: bool,
        on_free: Callable[[SoftwareBuffer], None],
    ) -> None:
        super().__init__(array.nbytes, name)
        self._array: ByteArray | None = array
        self._address = int(array.ctypes.data)
        self._is_host = is_host
        self._lent: ByteArray | None = None
        self._on_free = on_free

    @property
    def is_host(self) -> bool:
        return self._is_host

    @property
    def array(self) -> ByteArray:
        array = self._array
        if array is None:
            raise DeviceError(f"buffer {self.name or 'unnamed'} of {self.nbytes} B was freed")
        return array

    @property
    def handle(self) -> int:
        if self._array is None:
            raise DeviceError(f"buffer {self.name or 'unnamed'} of {self.nbytes} B was freed; no address")
        return self._address

    def free(self) -> None:
        if self._array is not None:
            self._array = None
            self._on_free(self)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        # A consumer keeps this object alive, not the array, and gets a bare address: so from here on the mapping
        # lives as long as this object does, whatever `free` says.
        self._lent = self.array
        return dict(self._lent.__array_interface__)

    def __buffer__(self, flags: int, /) -> memoryview:
        return self.array.data

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self.array.__dlpack_device__()
        return int(kind), int(index)


def map_memory(nbytes: int, *, huge_pages: bool, name: str) -> ByteArray:
    """Map ``nbytes`` zero bytes without touching them; page-aligned.

    Without ``huge_pages`` every page faults on its own, as first use of freshly allocated device memory does;
    where the system has no such switch (macOS) its default holds. Raises `OutOfDeviceMemory`.
    """
    if nbytes < 0:
        raise DeviceError(f"cannot allocate {nbytes} B for {name or 'an unnamed buffer'}: the size is negative")
    total = physical_nbytes()
    try:
        if total is not None and nbytes > total:
            # Such a mapping may well succeed where the system overcommits, and end the process at first touch.
            raise MemoryError(f"this machine has {total} B of memory")
        if nbytes >= CHECKED_NBYTES:
            free_nbytes = available_nbytes()
            if free_nbytes is not None and nbytes > free_nbytes:
                # Likewise: many rings' worth of such mappings, each below the total, would.
                raise MemoryError(f"{free_nbytes} B are available")
        mapping = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError, MemoryError) as exc:
        available = available_nbytes()
        free = "unknown" if available is None else f"{available} B"
        raise OutOfDeviceMemory(
            f"no memory for {name or 'an unnamed buffer'}: needed {nbytes} B, free {free} ({exc})"
        ) from exc
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge_pages else "MADV_NOHUGEPAGE", None)
    if advice is not None:
        with contextlib.suppress(OSError):  # a kernel built without huge pages knows no advice about them
            mapping.madvise(advice)
    return np.frombuffer(mapping, dtype=np.uint8)[:nbytes]


def touch_pages(buffer: Buffer) -> None:
    """Write one byte of every page of a fresh buffer, so that all of it is resident. Loses its contents."""
    buffer.array[::PAGE_NBYTES] = 0


def physical_nbytes() -> int | None:
    """Physical memory of this machine, None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def available_nbytes() -> int | None:
    """Memory that can be had without swapping, None where the system does not tell (Linux: MemAvailable)."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
