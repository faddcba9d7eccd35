"""What a caller writes: the program whose steps are built, launched and collected."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from async_orch._layout import LayoutView, SlotSpec
from async_orch._slot import Slot, SlotMemory, SlotSizes
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import ConfigurationError

if TYPE_CHECKING:
    from async_orch._device import Device

__all__ = ["Built", "Image", "ProgramRuntime", "StepProgram", "sizes_of"]

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")

Image = Any
"""What `StepProgram.build` receives: a `LayoutView` if the spec has a `Layout`, else a uint8 array."""


class Built(NamedTuple):
    """What ``build`` may return to have its image's two parts reported apart.

    ``nbytes`` is the size used; of it ``sm_nbytes`` describe this step's tasks, the rest recorded graphs. With
    ``upload="delta"`` the first ``sm_nbytes`` bytes are taken to be the former.
    """

    nbytes: int
    sm_nbytes: int


class StepProgram(ABC, Generic[StepT, ResultT]):
    """Builds, launches and collects steps.

    Subclasses set `slot` and override what they need; only `launch` is required. ``open``, ``launch`` and
    ``close`` run on one thread. An exception from `build`, `launch` or `collect` fails that step alone; one from
    `open` makes opening the orchestrator fail.
    """

    slot: SlotSpec

    repeatable: bool = True
    """Whether ``build`` may be called again for a step whose build raised; retries are refused otherwise."""

    writes_image: bool = False
    """True if the kernels write to ``slot.image``: with ``upload="delta"`` its images are then copied whole."""

    keeps_addresses: bool = False
    """True if the program keeps addresses of slots between steps.

    Growth is refused unless it has `slots_changed`, and ``image_at="shared"``, which moves every image, in any case.
    """

    def open(self, device: Device) -> None:
        """Once, before the first step: allocate resident memory (weights, caches) and warm up.

        What ``device.alloc`` gives is freed when the orchestrator closes.
        """

    def build(self, step: StepT, image: Image) -> int | Built | None:
        """Write the step's image into ``image``, a writable view of a staging buffer; contents undefined.

        Returns the bytes used, None for all. Runs ahead of the device, so it must not need an earlier step's
        result. The view may not be used after the return: the copy, or with ``image_at="shared"`` the kernels, read it.

        With ``build_in="process"`` it is called on a copy of the program, unpickled in a worker process as it was
        before `open`: what the other hooks change is not seen here, and no device is at hand. What cannot be pickled
        is left out by ``__getstate__``, or ``__reduce__`` says how to make the program.
        """
        raise ConfigurationError(f"{type(self).__name__} has an image but does not define build()")

    @abstractmethod
    def launch(self, step: StepT, slot: Slot, stream: Stream) -> int | None:
        """Enqueue the step's work on ``stream``; never wait here.

        The copy of the image is ordered before. Returns the output bytes used, None for all.
        """

    def collect(self, step: StepT, output: ByteArray) -> ResultT:
        """Turn the output bytes, a read-only host view valid only inside, into the caller's value."""
        raise ConfigurationError(f"{type(self).__name__} has an output but does not define collect()")

    def feed(self, step: StepT, previous: Any, feed: ByteArray) -> int | None:
        """Late input of a step submitted with ``after``: called just before its launch.

        ``previous`` is what the earlier step's ``collect`` returned; ``feed`` is a writable uint8 view of the slot's
        pinned feed buffer, copied to ``slot.feed`` ahead of the kernels. Returns the bytes used, None for all. The
        earlier step has settled and given its slot back by then. Never called for a step without ``after``.
        """
        raise ConfigurationError(f"{type(self).__name__} has feed_nbytes but does not define feed()")

    def sizes(self, step: StepT) -> SlotSpec | None:
        """What this step needs, where steps differ much: chooses its slot class, or makes slots grow.

        None means the program's `slot`. Called when the step is submitted, on the loop: it must be quick.
        """
        return None

    def slots_changed(self, slots: list[SlotMemory]) -> None:
        """Growth moved the address of a slot's buffers; for programs that keep addresses."""

    def close(self) -> None:
        """Last; runs also after a failed `open`."""


def sizes_of(spec: SlotSpec) -> SlotSizes:
    """The sizes that a spec asks for."""
    return SlotSizes(spec.image_nbytes, spec.workspace_nbytes, spec.feed_nbytes, spec.output_nbytes)


class ProgramRuntime:
    """A program as the stages use it: bound hooks, sizes, and whether it has launched yet."""

    __slots__ = (
        "build",
        "collect",
        "feed",
        "fixed_image",
        "has_build",
        "has_collect",
        "has_feed",
        "has_sizes",
        "image_nbytes",
        "index",
        "launch",
        "launched",
        "name",
        "output_nbytes",
        "program",
        "shares_image",
        "sizes",
        "slot_at_build",
        "slots_changed",
        "step_sizes",
        "writes_image",
    )

    def __init__(self, name: str, index: int, program: StepProgram[Any, Any]) -> None:
        cls = type(program)
        self.name = name
        self.index = index
        self.program = program
        self.sizes = sizes_of(program.slot)
        self.image_nbytes = program.slot.image_nbytes
        self.output_nbytes = program.slot.output_nbytes
        self.build = program.build
        self.launch = program.launch
        self.collect = program.collect
        self.feed = program.feed
        self.step_sizes = program.sizes
        self.slots_changed = program.slots_changed
        self.has_build = cls.build is not StepProgram.build
        self.has_collect = cls.collect is not StepProgram.collect
        self.has_feed = cls.feed is not StepProgram.feed
        self.has_sizes = cls.sizes is not StepProgram.sizes
        self.slot_at_build = bool(getattr(program, "slot_at_build", False))
        self.shares_image = program.slot.image_at == "shared"
        self.writes_image = program.writes_image
        self.fixed_image: Buffer | None = None
        self.launched = False


def image_view(program: StepProgram[Any, Any], array: ByteArray) -> ByteArray | LayoutView:
    """``array`` as the program's ``build`` wants to see it."""
    layout = program.slot.image
    return layout.view(array) if layout is not None else array[: program.slot.image_nbytes]


def validate_growth(program: StepProgram[Any, Any]) -> None:
    """Refuse growth for a program that keeps addresses and would not be told of new ones."""
    cls = type(program)
    if program.keeps_addresses and cls.slots_changed is StepProgram.slots_changed:
        raise ConfigurationError(
            f"grow='high_water' moves addresses, which {cls.__name__} keeps; define slots_changed() or use grow='never'"
        )


def validate_program(program: object) -> StepProgram[Any, Any]:
    """Refuse, before anything is opened, what cannot work later."""
    if not isinstance(program, StepProgram):
        raise TypeError(f"program must be a StepProgram or an EngineProgram, got {type(program).__name__}")
    spec = getattr(program, "slot", None)
    if not isinstance(spec, SlotSpec):
        raise ConfigurationError(f"{type(program).__name__}.slot must be a SlotSpec, got {spec!r}")
    cls = type(program)
    if spec.image_at == "shared" and program.keeps_addresses:
        raise ConfigurationError(
            f"image_at='shared' gives a slot's image another address in each step, and {cls.__name__} keeps addresses; "
            "use image_at='slot', or 'fixed' if they must never change"
        )
    for hook in ("open", "build", "launch", "feed", "collect", "sizes", "slots_changed", "close"):
        if inspect.iscoroutinefunction(getattr(cls, hook)):
            raise ConfigurationError(f"{cls.__name__}.{hook} is async; hooks are plain functions and never wait")
    if spec.image_nbytes > 0 and cls.build is StepProgram.build:
        raise ConfigurationError(f"{cls.__name__}.slot has an image but {cls.__name__} defines no build()")
    if spec.output_nbytes > 0 and cls.collect is StepProgram.collect:
        raise ConfigurationError(f"{cls.__name__}.slot has an output but {cls.__name__} defines no collect()")
    has_feed = cls.feed is not StepProgram.feed
    if has_feed and spec.feed_nbytes == 0:
        raise ConfigurationError(f"{cls.__name__} defines feed() but feed_nbytes of its slot is 0")
    if spec.feed_nbytes > 0 and not has_feed:
        raise ConfigurationError(f"{cls.__name__}.slot has feed_nbytes={spec.feed_nbytes} but no feed() is defined")
    return program
