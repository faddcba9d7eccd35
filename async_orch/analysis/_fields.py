"""What of a `StepRecord` is a figure, and what tells the kind of its step."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.logs import FIELDS, StepRecord

__all__ = [
    "BOUNDS",
    "DAMAGED",
    "FIGURE_FIELDS",
    "KIND_FIELDS",
    "MAX_PID",
    "MISSING",
    "OPTIONAL_FIGURES",
    "SIGNED_FIGURES",
    "Column",
    "Figures",
    "HeldColumn",
    "Kind",
    "figures_of",
    "fitted",
]

MISSING: Final = -(2**63)
"""Stands for a figure that a step does not have; no figure can have this value."""

Column: TypeAlias = npt.NDArray[np.int64]
HeldColumn: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""A column as it is kept: in 32 bits where they are enough, and once where all values are the same."""

_COUNT_FIELDS: Final = ("seq", "after", "slot", "generation", "alloc_count", "in_flight", "on_device")
FIGURE_FIELDS: Final = tuple(name for name in FIELDS if name.endswith(("_ns", "_nbytes")) or name in _COUNT_FIELDS)
"""Fields of a `StepRecord` that are integers, in its order: the columns."""

DAMAGED: Final = 2**63 - 1  # stands for a figure that does not fit 64 bits, until its row is dropped


class Kind(NamedTuple):
    """What the steps of a kind share; the fields of `StepRecord` of these names."""

    run_id: str
    pid: int
    host: str
    device: str
    program: str
    event: str
    cold_reason: str | None
    device_clock: str | None
    h2d_split: str | None


KIND_FIELDS: Final = ("schema", *Kind._fields)
"""Fields of a `StepRecord` that tell which `Kind` it is, and whether it can be one."""


def _bounds(name: str) -> tuple[int, int]:
    """Least and most of a figure, as `StepRecord` states them."""
    if name == "bubble_ns":
        return -(2**53), 2**53
    return 0, 2**62 if name in _COUNT_FIELDS or name.endswith(("_start_ns", "submit_ns", "accept_ns")) else 2**53


_PLAIN_TYPES: Final = get_type_hints(StepRecord)  # without the bounds, which are checked by column
MAX_PID: Final = 2**62  # the bound of a count, see `StepRecord`
BOUNDS: Final = np.array([_bounds(name) for name in FIGURE_FIELDS], np.int64)
"""Least and most of each of `FIGURE_FIELDS`."""
OPTIONAL_FIGURES: Final = frozenset(name for name in FIGURE_FIELDS if _PLAIN_TYPES[name] is not int)
"""Those of `FIGURE_FIELDS` that may be null."""
SIGNED_FIGURES: Final = frozenset(name for name in FIGURE_FIELDS if _bounds(name)[0] < 0)
"""Those of `FIGURE_FIELDS` that may be negative."""

_LATER_FIELDS: Final = {field.name for field in msgspec.structs.fields(StepRecord) if not field.required}

Figures: Final[Any] = msgspec.defstruct(
    "Figures",
    [
        (name, _PLAIN_TYPES[name], None) if name in _LATER_FIELDS else (name, _PLAIN_TYPES[name])
        for name in FIELDS
        if name in (*FIGURE_FIELDS, *KIND_FIELDS)
    ],
    gc=False,
)
"""A `StepRecord` without the texts that no figure depends on (``attrs``, ``error``, ...): read in half the time."""


def figures_of(record: Any) -> list[int]:
    """The figures of a `Figures`, in the order of the columns."""
    values = (getattr(record, name) for name in FIGURE_FIELDS)
    return [MISSING if value is None else fitted(value) for value in values]


def fitted(value: int) -> int:
    """The figure, or `DAMAGED` if 64 bits do not hold it."""
    return value if -(2**63) < value < 2**63 else DAMAGED
