"""The device as a program sees it: resident memory, and the guard against allocating on the step path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np
import numpy.typing as npt

from async_orch._allocation import give_back, touched
from async_orch.abc import Backend, Buffer, DeviceInfo, Stream
from async_orch.exceptions import ConfigurationError, DeviceError, HotPathAllocation

__all__ = ["Device", "off_step_path"]

_off_step_path: ContextVar[bool] = ContextVar("async_orch_off_step_path", default=False)

TRANSFER_TIMEOUT_S = 120.0


class Device:
    """Handed to `StepProgram.open`. Owns what was allocated through it and frees that at close.

    Attributes
    ----------
    info:
        The backend's `DeviceInfo`.
    compute_stream, copy_stream:
        The orchestrator's two streams, for warm-up work in ``open``.
    fixed_image:
        During ``open`` of a program with ``image_at="fixed"``: the region where its images will lie; else None.
    strict:
        Whether an allocation on the step path raises `HotPathAllocation`.
    """

    def __init__(self, backend: Backend, compute_stream: Stream, copy_stream: Stream, *, strict: bool) -> None:
        self._backend = backend
        self.strict = strict
        self._armed = False
        self.fixed_image: Buffer | None = None
        self._resident: list[Buffer] = []
        self._shared: dict[str, Buffer] = {}
        self.compute_stream = compute_stream
        self.copy_stream = copy_stream
        self.step_path_allocs = 0
        self.step_path_nbytes = 0

    @property
    def info(self) -> DeviceInfo:
        """What the backend says of the device."""
        return self._backend.info

    @property
    def resident_nbytes(self) -> int:
        """Device bytes allocated through `alloc` and not freed by `free`."""
        return sum(buffer.nbytes for buffer in self._resident)

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        """Allocate and touch resident device memory; contents undefined.

        Raises `OutOfDeviceMemory`, and `HotPathAllocation` on the step path while ``strict_alloc`` is on.
        """
        on_step_path = self._armed and not _off_step_path.get()
        if on_step_path and self.strict:
            raise HotPathAllocation(
                f"device.alloc({nbytes}, name={name!r}) on the step path; allocate in open(), use the slot's "
                "workspace, or pass strict_alloc=False to have such allocations counted instead"
            )
        if not isinstance(nbytes, int) or nbytes <= 0:
            raise ValueError(f"nbytes must be a positive int, got {nbytes!r}")
        buffer = touched(self._backend, self._backend.alloc(nbytes, name=name))
        self._resident.append(buffer)
        if on_step_path:
            self.step_path_allocs += 1
            self.step_path_nbytes += nbytes
        return buffer

    def shared(self, name: str, nbytes: int) -> Buffer:
        """Resident memory that several programs use under one name: allocated by the first that asks.

        Raises `ConfigurationError` if it exists with another size.
        """
        buffer = self._shared.get(name)
        if buffer is None:
            buffer = self._shared[name] = self.alloc(nbytes, name=name)
        elif buffer.nbytes != nbytes:
            raise ConfigurationError(f"shared memory {name!r} has {buffer.nbytes} B, {nbytes} B were asked for")
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Free one buffer from `alloc` before close. The caller has waited for the work that uses it."""
        try:
            self._resident.remove(buffer)
        except ValueError:
            raise DeviceError(f"{buffer!r} was not allocated through this device, or is freed already") from None
        self._shared = {name: other for name, other in self._shared.items() if other is not buffer}
        buffer.free()

    def upload(self, buffer: Buffer, data: npt.NDArray[np.generic], *, offset: int = 0) -> None:
        """Copy an array to device memory and wait for it; for `StepProgram.open`, never for a step."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.nbytes == 0:
            return
        bounce = self._backend.alloc_host(raw.nbytes, name="upload")
        try:
            bounce.array[:] = raw
            self.copy_stream.isolate()
            self.copy_stream.copy(buffer, bounce, raw.nbytes, dst_offset=offset)
            self.copy_stream.record().synchronize(TRANSFER_TIMEOUT_S)
        finally:
            bounce.free()

    def arm(self) -> None:
        """From here on allocations are on the step path."""
        self._armed = True

    def free_all(self) -> None:
        """Free all resident memory."""
        self._armed = False
        self._shared.clear()
        while self._resident:
            give_back(self._resident.pop())


@contextmanager
def off_step_path() -> Iterator[None]:
    """Let code of this context allocate: a barrier's function, with the device at rest."""
    token = _off_step_path.set(True)
    try:
        yield
    finally:
        _off_step_path.reset(token)
