"""The device memory of a step: what a slot is made of, and how `launch` sees it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple, Self

from async_orch._allocation import give_back, touch_all, touched
from async_orch._delta import Shadow
from async_orch._ring import Lease
from async_orch._staging import Staging, mapped_staging
from async_orch.abc import Backend, Buffer, ByteArray, Fence
from async_orch.exceptions import ConfigurationError, MisuseError, StaleLease

__all__ = ["Slot", "SlotMemory", "SlotSizes"]


class SlotSizes(NamedTuple):
    """Sizes in bytes of a slot's device parts."""

    image_nbytes: int = 0
    workspace_nbytes: int = 0
    feed_nbytes: int = 0
    output_nbytes: int = 0

    @property
    def device_nbytes(self) -> int:
        """Device memory of one slot."""
        return sum(self)

    def fits_in(self, other: SlotSizes) -> bool:
        """Whether every part is at most as large as the other's."""
        return all(mine <= theirs for mine, theirs in zip(self, other, strict=True))

    def or_larger(self, other: SlotSizes) -> SlotSizes:
        """The larger of each part."""
        return SlotSizes(*(max(pair) for pair in zip(self, other, strict=True)))

    def __str__(self) -> str:
        image, workspace, feed, output = self
        return f"image {image}, workspace {workspace}, feed {feed}, output {output} B"


_DEVICE_PARTS = ("image", "workspace", "feed", "output")


class SlotMemory:
    """The buffers of one slot; a part of size 0 is None. ``output_view`` is the read-only host output.

    ``shadow`` is what the image holds, with ``upload="delta"``. With ``mapped`` the output's two buffers are one piece
    of memory, and nothing is copied back. ``staged`` is the image's memory where the device shares it with the host:
    then the slot and a staging buffer can exchange theirs, and nothing is copied there.
    """

    __slots__ = (
        "_images_differ",
        "_shares_images",
        "feed",
        "feed_host",
        "image",
        "mapped",
        "output",
        "output_host",
        "output_view",
        "shadow",
        "sizes",
        "staged",
        "workspace",
    )

    def __init__(self, *, shares_images: bool = False, images_differ: bool = False) -> None:
        self._shares_images = shares_images
        self._images_differ = images_differ
        self.mapped = False
        self.staged: Staging | None = None
        self.sizes = SlotSizes()
        self.image: Buffer | None = None
        self.workspace: Buffer | None = None
        self.feed: Buffer | None = None
        self.output: Buffer | None = None
        self.feed_host: Buffer | None = None
        self.output_host: Buffer | None = None
        self.output_view: ByteArray | None = None
        self.shadow: Shadow | None = None

    def allocate_host(self, backend: Backend, sizes: SlotSizes, *, naive: bool = False) -> None:
        """Allocate and touch the pinned parts, and what both sides share; ``naive`` slots share nothing."""
        if sizes.image_nbytes and self._shares_images:
            self.staged = mapped_staging(backend, sizes.image_nbytes)
            if self.staged is not None:
                self.image = self.staged.device
        if sizes.feed_nbytes:
            self.feed_host = touched(backend, backend.alloc_host(sizes.feed_nbytes, name="slot.feed_host"))
        if sizes.output_nbytes:
            pair = None if naive else backend.alloc_mapped(sizes.output_nbytes, name="slot.output")
            if pair is None:
                self.output_host = touched(backend, backend.alloc_host(sizes.output_nbytes, name="slot.output_host"))
            else:
                touch_all(backend, *pair)
                self.mapped = True
                self.output, self.output_host = pair
            self.output_view = self.output_host.array.view()
            self.output_view.flags.writeable = False

    def allocate_device(self, backend: Backend, sizes: SlotSizes) -> int:
        """Allocate and touch the device parts, all or nothing. Returns the number of allocations."""
        fresh: dict[str, Buffer] = {}
        with ExitStack() as undo:
            for part, nbytes in zip(_DEVICE_PARTS, sizes, strict=True):
                if nbytes and not self._is_shared(part):
                    fresh[part] = touched(backend, backend.alloc(nbytes, name=f"slot.{part}"))
                    undo.callback(give_back, fresh[part])
            undo.pop_all()
        self.free_device()
        for part, buffer in fresh.items():
            setattr(self, part, buffer)
        self.sizes = sizes
        return len(fresh)

    def grow(self, backend: Backend, sizes: SlotSizes) -> None:
        """Allocate what is too small anew, and free the old only then; on failure nothing has changed."""
        larger = SlotMemory(shares_images=self._shares_images)
        wanted = SlotSizes(*(new if new > old else 0 for new, old in zip(sizes, self.sizes, strict=True)))
        with ExitStack() as undo:
            undo.callback(larger.free)
            larger.allocate_host(backend, wanted)
            larger.allocate_device(backend, wanted)
            undo.pop_all()
        if larger.image is not None and self.staged is not None:
            self.staged.free()
            self.staged = self.image = None
        for part in ("image", "workspace", "feed", "output", "feed_host", "output_host"):
            buffer, old = getattr(larger, part), getattr(self, part)
            if buffer is not None:
                setattr(self, part, buffer)
                if old is not None:
                    give_back(old)
        if larger.staged is not None:
            self.staged = larger.staged
        if larger.output_view is not None:
            self.output_view = larger.output_view
        if larger.output is not None:
            self.mapped = larger.mapped
        self.sizes = sizes.or_larger(self.sizes)

    def take_image(self, staging: Staging) -> bool:
        """Have the image that lies in ``staging``, which gets the slot's own memory for it; False if they cannot.

        Where images of a class of slots are smaller than those of another, only memory of one size is exchanged, or
        staging would become too small for the others' images.
        """
        own = self.staged
        if own is None or staging.device is None:
            return False
        nbytes = staging.buffer.nbytes
        if nbytes != own.buffer.nbytes:
            if self._images_differ:
                return False
            self.sizes = self.sizes._replace(image_nbytes=nbytes)
        own.exchange(staging)
        self.image = own.device
        return True

    def buffers(self) -> list[Buffer]:
        """The parts that exist."""
        parts = (self.image, self.workspace, self.feed, self.output, self.feed_host, self.output_host)
        return [part for part in parts if part is not None]

    def free_device(self) -> None:
        """Give the device parts back; the pinned ones stay, and what is shared with them."""
        for part in _DEVICE_PARTS:
            buffer: Buffer | None = getattr(self, part)
            if buffer is not None and not self._is_shared(part):
                give_back(buffer)
                setattr(self, part, None)
        self.sizes = SlotSizes()

    def _is_shared(self, part: str) -> bool:
        return (part == "output" and self.mapped) or (part == "image" and self.staged is not None)

    def free(self) -> None:
        """Give everything back."""
        self.mapped = False
        if self.staged is not None:
            self.staged.free()
            self.staged = self.image = None
        self.free_device()
        self.shadow = None
        self.output_view = None
        for part in ("feed_host", "output_host"):
            buffer: Buffer | None = getattr(self, part)
            if buffer is not None:
                give_back(buffer)
                setattr(self, part, None)


class Slot(Lease[SlotMemory], eq=False):
    """What `StepProgram.launch` gets: one leased slot's device memory.

    Every access after the step gave the slot back raises `StaleLease`.
    """

    holds: tuple[Fence, ...] = ()
    fixed_image: Buffer | None = None

    @property
    def image(self) -> Buffer:
        """Device memory with the step's image; with ``image_at="fixed"`` the program's one fixed region.

        With ``"shared"`` it is other memory in each step, of another size after growth; what lies behind the bytes that
        ``build`` used is what any earlier build left there.
        With ``upload="delta"`` the kernels must leave it as it is, see `StepProgram.writes_image`.
        """
        image = self.item.image
        if image is None:
            raise self._missing("image")
        return image if self.fixed_image is None else self.fixed_image

    @property
    def workspace(self) -> Buffer:
        """Device memory for intermediate values; contents undefined."""
        workspace = self.item.workspace
        if workspace is None:
            raise self._missing("workspace")
        return workspace

    @property
    def feed(self) -> Buffer:
        """Device memory with what ``feed`` wrote; undefined for a step without ``after``."""
        feed = self.item.feed
        if feed is None:
            raise self._missing("feed")
        return feed

    @property
    def output(self) -> Buffer:
        """Device memory for the output, which the host gets after the kernels."""
        output = self.item.output
        if output is None:
            raise self._missing("output")
        return output

    @staticmethod
    def _missing(name: str) -> ConfigurationError:
        return ConfigurationError(f"the slot has no {name}: {name}_nbytes of the program's SlotSpec is 0")

    def hold(self, fence: Fence) -> Self:
        """Keep the slot from being reused until ``fence`` too: for work of other streams that reads it.

        Call it in ``launch``. Raises `StaleLease` once the slot has been given back, when it would be too late.
        """
        if not isinstance(fence, Fence):
            raise TypeError(f"hold() takes a Fence, got {fence!r}")
        if self.ended:
            raise StaleLease(f"hold() on slot {self.index} came after its step had given it back")
        self.holds = (*self.holds, fence)
        return self

    def release(self, *fences: Fence) -> None:
        """Not for programs: the orchestrator gives a step's slot back. Raises `MisuseError`."""
        raise MisuseError("the orchestrator gives a step's slot back; to keep it longer use hold(fence)")

    def quarantine(self) -> None:
        """Not for programs. Raises `MisuseError`."""
        raise MisuseError("the orchestrator alone takes slots out of use")
