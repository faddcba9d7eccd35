"""Staging buffers: allocated by the backend, or in memory that worker processes or the device share."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from async_orch._allocation import give_back, touch_all, touched
from async_orch.abc import Backend, Buffer, ByteArray
from async_orch.exceptions import OutOfDeviceMemory

if TYPE_CHECKING:
    from async_orch._shared_memory import SharedMemory

__all__ = ["Staging", "mapped_staging", "new_staging"]


class Staging:
    """One host buffer that images are built in, and its typed view for each program.

    Attributes
    ----------
    buffer:
        What the copy stream copies from.
    views:
        One for each program, over the memory that images are built in.
    shared:
        That memory, if worker processes build there.
    copied:
        Whether ``buffer`` is memory of its own, to which each image must be copied from ``shared``.
    device:
        The same memory as the device sees it, where kernels can read images as they were built.
    """

    __slots__ = ("buffer", "copied", "device", "shared", "views")

    def __init__(
        self,
        buffer: Buffer,
        shared: SharedMemory | None = None,
        *,
        copied: bool = False,
        device: Buffer | None = None,
    ) -> None:
        self.buffer = buffer
        self.views: list[object] = []
        self.shared = shared
        self.copied = copied
        self.device = device

    @property
    def image(self) -> ByteArray:
        """The memory that images are built in."""
        return self.buffer.array if self.shared is None else self.shared.array

    def take_over(self, other: Staging) -> None:
        """Free the memory and have that of ``other`` instead; the caller makes new views."""
        self.free()
        self.buffer, self.shared, self.copied, self.device = other.buffer, other.shared, other.copied, other.device

    def exchange(self, other: Staging) -> None:
        """Each gets the other's memory, with the views of it."""
        self.buffer, other.buffer = other.buffer, self.buffer
        self.device, other.device = other.device, self.device
        self.views, other.views = other.views, self.views

    def free(self) -> None:
        """Give the memory back. Nobody uses it any more."""
        self.views.clear()
        if self.device is not None:
            give_back(self.device)
        give_back(self.buffer)
        if self.shared is not None:
            self.shared.close()


def new_staging(backend: Backend, nbytes: int, name: str, *, shared: bool) -> Staging:
    """Allocate and touch a staging buffer, all or nothing. Raises `OutOfDeviceMemory`.

    With ``shared`` its images are built in shared memory, which the backend copies from if it can; else it allocates a
    buffer of its own as well.
    """
    if not shared:
        return Staging(touched(backend, backend.alloc_host(nbytes, name=name)))
    from async_orch._shared_memory import SharedMemory  # noqa: PLC0415 - not to be had on every system

    memory = SharedMemory(nbytes, name)
    with ExitStack() as undo:
        undo.callback(memory.close)
        buffer = backend.register_host(memory.array, name=name)
        copied = buffer is None
        if buffer is None:
            buffer = touched(backend, backend.alloc_host(nbytes, name=name))
        undo.pop_all()
    return Staging(buffer, memory, copied=copied)


def mapped_staging(backend: Backend, nbytes: int) -> Staging | None:
    """Staging in memory that the device shares, allocated and touched, all or nothing; None if none of it is left.

    Its name is that of no ring, since pieces move from staging to slots and back. Raises `OutOfDeviceMemory` where it
    cannot be touched.
    """
    try:
        pair = backend.alloc_mapped(nbytes, name="image")
    except OutOfDeviceMemory:  # images can be copied, then
        return None
    if pair is None:
        return None
    touch_all(backend, *pair)
    device, buffer = pair
    return Staging(buffer, device=device)
