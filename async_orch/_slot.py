"""The memory of a step: what a slot and a staging buffer are made of, and how `launch` sees a slot."""

from __future__ import annotations

from async_orch._ring import Lease
from async_orch.abc import Backend, Buffer, ByteArray
from async_orch.exceptions import ConfigurationError

__all__ = ["Slot", "SlotMemory", "SlotSizes", "Staging", "allocate_slot"]


class SlotSizes:
    """Sizes in bytes that serve every program of an orchestrator: the largest of each part."""

    __slots__ = ("image_nbytes", "output_nbytes", "workspace_nbytes")

    def __init__(self, image_nbytes: int, workspace_nbytes: int, output_nbytes: int) -> None:
        self.image_nbytes = image_nbytes
        self.workspace_nbytes = workspace_nbytes
        self.output_nbytes = output_nbytes

    @property
    def device_nbytes(self) -> int:
        """Device memory of one slot."""
        return self.image_nbytes + self.workspace_nbytes + self.output_nbytes


class SlotMemory:
    """The buffers of one slot; a part of size 0 is None. ``output_view`` is the read-only host output."""

    __slots__ = ("image", "output", "output_host", "output_view", "workspace")

    def __init__(self) -> None:
        self.image: Buffer | None = None
        self.workspace: Buffer | None = None
        self.output: Buffer | None = None
        self.output_host: Buffer | None = None
        self.output_view: ByteArray | None = None

    def set_output_host(self, buffer: Buffer) -> None:
        """Take the pinned buffer that outputs are copied to."""
        self.output_host = buffer
        self.output_view = buffer.array.view()
        self.output_view.flags.writeable = False

    def free_device(self) -> None:
        """Give the device parts back; the pinned output buffer stays."""
        for buffer in (self.image, self.workspace, self.output):
            if buffer is not None:
                buffer.free()
        self.image = self.workspace = self.output = None

    def free(self) -> None:
        """Give everything back."""
        self.free_device()
        self.output_view = None
        if self.output_host is not None:
            self.output_host.free()
            self.output_host = None


class Staging:
    """One host buffer that images are built in, and its typed view for each program."""

    __slots__ = ("buffer", "views")

    def __init__(self, buffer: Buffer, views: list[object]) -> None:
        self.buffer = buffer
        self.views = views


def allocate_slot(backend: Backend, sizes: SlotSizes, memory: SlotMemory, *, touch: bool) -> int:
    """Allocate the device parts of a slot into ``memory``; all or nothing. Returns the number of allocations."""
    count = 0
    try:
        for part in ("image", "workspace", "output"):
            nbytes: int = getattr(sizes, f"{part}_nbytes")
            if nbytes:
                buffer = backend.alloc(nbytes, name=f"slot.{part}")
                setattr(memory, part, buffer)
                count += 1
                if touch:
                    backend.touch(buffer)
    except BaseException:
        memory.free_device()
        raise
    return count


class Slot(Lease[SlotMemory]):
    """What `StepProgram.launch` gets: one leased slot's device memory.

    Every access after the step gave the slot back raises `StaleLease`.
    """

    __slots__ = ()

    def _part(self, name: str) -> Buffer:
        buffer: Buffer | None = getattr(self.item, name)
        if buffer is None:
            raise ConfigurationError(f"the slot has no {name}: every program's {name}_nbytes is 0")
        return buffer

    @property
    def image(self) -> Buffer:
        """Device memory with the step's image."""
        return self._part("image")

    @property
    def workspace(self) -> Buffer:
        """Device memory for intermediate values; contents undefined."""
        return self._part("workspace")

    @property
    def output(self) -> Buffer:
        """Device memory for the output, copied to the host after the kernels."""
        return self._part("output")
