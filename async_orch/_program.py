"""What a caller writes: the program whose steps are built, launched and collected."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from async_orch._layout import Layout, LayoutView
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import ConfigurationError

if TYPE_CHECKING:
    from async_orch._device import Device
    from async_orch._slot import Slot

__all__ = ["Built", "Image", "SlotSpec", "StepProgram"]

StepT = TypeVar("StepT")
ResultT = TypeVar("ResultT")

Image = Any
"""What `StepProgram.build` receives: a `LayoutView` if the spec has a `Layout`, else a uint8 array."""


class Built(NamedTuple):
    """What ``build`` may return to have its image's two parts reported apart.

    ``nbytes`` is the size used; of it ``sm_nbytes`` describe this step's tasks, the rest recorded graphs.
    """

    nbytes: int
    sm_nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSpec:
    """Sizes, in bytes, of what one step needs.

    Attributes
    ----------
    image:
        The image's `Layout`; or give its size as ``image_nbytes``. Size 0 copies nothing.
    workspace_nbytes:
        Device memory for intermediate values; contents undefined at launch.
    output_nbytes:
        Device memory that `StepProgram.launch` fills; copied to the slot's pinned host buffer after the kernels.
    """

    image: Layout | None = None
    image_nbytes: int = -1
    workspace_nbytes: int = 0
    output_nbytes: int = 0

    def __post_init__(self) -> None:
        if self.image is not None:
            if self.image_nbytes == -1:
                object.__setattr__(self, "image_nbytes", self.image.nbytes)
            elif self.image_nbytes < self.image.nbytes:
                raise ConfigurationError(
                    f"image_nbytes={self.image_nbytes} is less than the layout's {self.image.nbytes} B"
                )
        elif self.image_nbytes == -1:
            raise ConfigurationError("give image=Layout(...) or image_nbytes=... (0 copies nothing)")
        for name in ("image_nbytes", "workspace_nbytes", "output_nbytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"{name} must be an int, got {value!r}")
            if value < 0:
                raise ConfigurationError(f"{name} must be >= 0, got {value}")


class StepProgram(ABC, Generic[StepT, ResultT]):
    """Builds, launches and collects steps.

    Subclasses set `slot` and override what they need; only `launch` is required. ``open``, ``launch`` and
    ``close`` run on one thread. An exception from `build`, `launch` or `collect` fails that step alone; one from
    `open` makes opening the orchestrator fail.
    """

    slot: SlotSpec

    def open(self, device: Device) -> None:
        """Once, before the first step: allocate resident memory (weights, caches) and warm up.

        What ``device.alloc`` gives is freed when the orchestrator closes.
        """

    def build(self, step: StepT, image: Image) -> int | Built | None:
        """Write the step's image into ``image``, a writable view of a staging buffer; contents undefined.

        Returns the bytes used, None for all. Runs ahead of the device, so it must not need an earlier step's
        result. The view may not be used after the return.
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

    def close(self) -> None:
        """Last; runs also after a failed `open`."""


class ProgramRuntime:
    """A program as the stages use it: bound hooks, sizes, and whether it has launched yet."""

    __slots__ = (
        "build",
        "collect",
        "has_build",
        "image_nbytes",
        "index",
        "launch",
        "launched",
        "name",
        "output_nbytes",
        "program",
    )

    def __init__(self, name: str, index: int, program: StepProgram[Any, Any]) -> None:
        self.name = name
        self.index = index
        self.program = program
        self.image_nbytes = program.slot.image_nbytes
        self.output_nbytes = program.slot.output_nbytes
        self.build = program.build
        self.launch = program.launch
        self.collect = program.collect
        self.has_build = type(program).build is not StepProgram.build
        self.launched = False


def image_view(program: StepProgram[Any, Any], array: ByteArray) -> ByteArray | LayoutView:
    """``array`` as the program's ``build`` wants to see it."""
    layout = program.slot.image
    return layout.view(array) if layout is not None else array[: program.slot.image_nbytes]


def validate_program(program: object) -> None:
    """Refuse, before anything is opened, what cannot work later."""
    if not isinstance(program, StepProgram):
        raise TypeError(f"program must be a StepProgram, got {type(program).__name__}")
    spec = getattr(program, "slot", None)
    if not isinstance(spec, SlotSpec):
        raise ConfigurationError(f"{type(program).__name__}.slot must be a SlotSpec, got {spec!r}")
    cls = type(program)
    if spec.image_nbytes > 0 and cls.build is StepProgram.build:
        raise ConfigurationError(f"{cls.__name__}.slot has an image but {cls.__name__} defines no build()")
    if spec.output_nbytes > 0 and cls.collect is StepProgram.collect:
        raise ConfigurationError(f"{cls.__name__}.slot has an output but {cls.__name__} defines no collect()")
