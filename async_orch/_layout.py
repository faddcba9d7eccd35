"""The shape of a step's memory: sizes, and typed views of an image."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from async_orch.abc import ByteArray
from async_orch.exceptions import ConfigurationError

__all__ = ["Layout", "LayoutView", "SlotSpec"]

FIELD_ALIGNMENT_NBYTES = 64
"""Fields start on cache lines (and on the 64 bytes that Ascend's copy engines ask for)."""

FieldSpec = tuple[npt.DTypeLike, tuple[int, ...]]


class LayoutView:
    """The arrays of a `Layout` over one buffer, as attributes. Made by `Layout.view`."""

    def __init__(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        self.__dict__.update(arrays)

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        raise AttributeError(f"the layout has no field {name!r}; it has {', '.join(sorted(self.__dict__))}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"assign to the array's contents (image.{name}[:] = ...), not to its name")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={array.dtype}{array.shape}" for name, array in self.__dict__.items())
        return f"LayoutView({fields})"


class Layout:
    """Names, types and shapes of an image's arrays.

    ``Layout(tokens=("i4", (16,)), tables=("i4", (16, 64)))`` describes an image with two int32 arrays. Fields
    lie in the order given, each on a 64-byte boundary; `nbytes` is the size of the whole.

    Raises `ConfigurationError` for a field that is no fixed-size type, a negative dimension, or no field.
    """

    __slots__ = ("_fields", "nbytes")

    def __init__(self, **fields: FieldSpec) -> None:
        if not fields:
            raise ConfigurationError("a Layout needs at least one field, e.g. Layout(tokens=('i4', (16,)))")
        end = 0
        self._fields: dict[str, tuple[np.dtype[Any], tuple[int, ...], int, int]] = {}
        for name, field in fields.items():
            dtype, dims = _parse(name, field)
            if dtype.hasobject or dtype.itemsize == 0:
                raise ConfigurationError(f"field {name!r}: {dtype} is not a fixed-size type without objects")
            if any(n < 0 for n in dims):
                raise ConfigurationError(f"field {name!r}: shape {dims} has a negative dimension")
            start = -(-end // FIELD_ALIGNMENT_NBYTES) * FIELD_ALIGNMENT_NBYTES
            nbytes = dtype.itemsize * math.prod(dims)
            self._fields[name] = (dtype, dims, start, nbytes)
            end = start + nbytes
        self.nbytes: int = end

    def view(self, image: ByteArray) -> LayoutView:
        """The fields as arrays that share memory with ``image``, a uint8 array of at least `nbytes` bytes."""
        if image.nbytes < self.nbytes:
            raise ConfigurationError(f"the layout needs {self.nbytes} B, the buffer has {image.nbytes} B")
        return LayoutView(
            {
                name: image[start : start + nbytes].view(dtype).reshape(dims)
                for name, (dtype, dims, start, nbytes) in self._fields.items()
            }
        )

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}=({d.str!r}, {dims})" for name, (d, dims, _, _) in self._fields.items())
        return f"Layout({fields})"


def _parse(name: str, field: object) -> tuple[np.dtype[Any], tuple[int, ...]]:
    if not isinstance(field, tuple) or len(field) != 2:
        raise ConfigurationError(f"field {name!r} must be a pair such as ('i4', (16,)), got {field!r}")
    spec, shape = field
    try:
        dtype = np.dtype(spec)
    except TypeError as exc:
        raise ConfigurationError(f"field {name!r}: {spec!r} is no numpy type") from exc
    try:
        return dtype, tuple(operator.index(n) for n in shape)
    except TypeError as exc:
        raise ConfigurationError(f"field {name!r}: the shape must be a tuple of ints, got {shape!r}") from exc


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
    feed_nbytes:
        Device memory, and a pinned host buffer, for what `StepProgram.feed` writes just before the launch.
    image_at:
        ``"slot"``; or ``"fixed"``: each image is copied once more, on the device, to one region of the program whose
        address never changes, as captured graphs need it; or ``"shared"``: where the device works in the host's memory
        (`Backend.alloc_mapped`), kernels read the image where it was built, and nothing is copied. ``slot.image`` then
        is other memory in each step, also of the same slot. Images are copied as ever where there is no such memory, in
        mode naive, with ``upload="delta"`` or ``build_in="process"``, and if another program of the orchestrator
        has an image that is not shared. Said by the program's `slot` alone, not by ``slot_classes`` or ``sizes``.
    """

    image: Layout | None = None
    image_nbytes: int = -1
    workspace_nbytes: int = 0
    output_nbytes: int = 0
    feed_nbytes: int = 0
    image_at: Literal["slot", "fixed", "shared"] = "slot"

    def __post_init__(self) -> None:
        if self.image is not None:
            if not isinstance(self.image, Layout):
                raise ConfigurationError(f"image must be a Layout, got {self.image!r}; a size goes in image_nbytes")
            if self.image_nbytes == -1:
                object.__setattr__(self, "image_nbytes", self.image.nbytes)
            elif self.image_nbytes < self.image.nbytes:
                raise ConfigurationError(
                    f"image_nbytes={self.image_nbytes} is less than the layout's {self.image.nbytes} B"
                )
        elif self.image_nbytes == -1:
            raise ConfigurationError("give image=Layout(...) or image_nbytes=... (0 copies nothing)")
        for name in ("image_nbytes", "workspace_nbytes", "output_nbytes", "feed_nbytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"{name} must be an int, got {value!r}")
            if value < 0:
                raise ConfigurationError(f"{name} must be >= 0, got {value}")
        if self.image_at not in ("slot", "fixed", "shared"):
            raise ConfigurationError(f"image_at={self.image_at!r} must be 'slot', 'fixed' or 'shared'")
        if self.image_at != "slot" and self.image_nbytes == 0:
            raise ConfigurationError(f"image_at={self.image_at!r} needs an image: image_nbytes is 0")
