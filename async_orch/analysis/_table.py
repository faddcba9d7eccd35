"""Step records as columns of 64-bit integers: a few bytes a figure and step, whatever the log's size.

Texts that repeat (run, device, program, event, cold reason, ...) are kept once; a row holds the number of its
combination, its `Kind`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.logs import FIELDS, StepRecord

__all__ = ["FIGURE_FIELDS", "MISSING", "Block", "Column", "Figures", "Kind", "StepTable"]

MISSING: Final = -(2**63)
"""Stands for a figure that a step does not have; no figure can have this value."""

Column: TypeAlias = npt.NDArray[np.int64]

_COUNT_FIELDS: Final = ("seq", "after", "slot", "generation", "alloc_count", "in_flight", "on_device")
FIGURE_FIELDS: Final = tuple(name for name in FIELDS if name.endswith(("_ns", "_nbytes")) or name in _COUNT_FIELDS)
"""Fields of a `StepRecord` that are integers, in its order: the columns."""

_BLOCK_ROWS: Final = 1 << 16
_MAX_KINDS: Final = 1 << 16
_MISSING_BYTES: Final = array("q", [MISSING]).tobytes()
_DAMAGED: Final = 2**63 - 1  # stands for a figure that does not fit 64 bits, until its row is dropped


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


def _bounds(name: str) -> tuple[int, int]:
    """Least and most of a figure, as `StepRecord` states them."""
    if name == "bubble_ns":
        return -(2**53), 2**53
    return 0, 2**62 if name in _COUNT_FIELDS or name.endswith(("_start_ns", "submit_ns", "accept_ns")) else 2**53


_BOUNDS: Final = {name: _bounds(name) for name in FIGURE_FIELDS}
_LATER_FIELDS: Final = {field.name for field in msgspec.structs.fields(StepRecord) if not field.required}
_PLAIN_TYPES: Final = get_type_hints(StepRecord)  # without the bounds, which are checked by column

Figures: Final[Any] = msgspec.defstruct(
    "Figures",
    [
        (name, _PLAIN_TYPES[name], *((None,) if name in _LATER_FIELDS else ()))
        for name in FIELDS
        if name in (*FIGURE_FIELDS, *Kind._fields, "schema")
    ],
    gc=False,
)
"""A `StepRecord` without the texts that no figure depends on (``attrs``, ``error``, ...): read in half the time."""

_kind_of: Final = attrgetter(*Kind._fields)
_GETTERS: Final = tuple(attrgetter(name) for name in FIGURE_FIELDS)


class Block(NamedTuple):
    """Some rows: a column for each of `FIGURE_FIELDS`, and the kinds."""

    columns: dict[str, Column]
    kinds: npt.NDArray[np.int32]


class _KindNumbers(dict[tuple[Any, ...], int]):
    def __missing__(self, key: tuple[Any, ...]) -> int:
        number = len(self) if len(self) < _MAX_KINDS else -1
        if number >= 0:
            self[key] = number
        return number


class StepTable:
    """Rows of steps that grow at their end.

    ``invalid`` counts rows that were dropped because a figure is negative or larger than can be meant, and rows of
    more different runs than are told apart.
    """

    def __init__(self) -> None:
        self.invalid = 0
        self._numbers = _KindNumbers()
        self._blocks: list[Block] = []
        self._new_block()

    def _new_block(self) -> None:
        self._open = [array("q") for _ in FIGURE_FIELDS]
        self._open_kinds = array("i")

    def extend(self, records: Sequence[Any]) -> None:
        """Add records: `Figures`, or `StepRecord`, which has the same names."""
        for column, get in zip(self._open, _GETTERS, strict=True):
            values = list(map(get, records))
            if values and values[0] is None and values.count(None) == len(values):
                column.frombytes(_MISSING_BYTES * len(values))
                continue
            try:
                column.fromlist(values)  # all or nothing
            except (TypeError, OverflowError):
                column.fromlist([MISSING if value is None else _fitted(value) for value in values])
        self._open_kinds.extend(map(self._numbers.__getitem__, map(_kind_of, records)))
        if len(self._open_kinds) >= _BLOCK_ROWS:
            self._close_block()

    def _close_block(self) -> None:
        if not len(self._open_kinds):
            return
        kinds = np.array(self._open_kinds, np.int32)
        columns = {name: np.array(values) for name, values in zip(FIGURE_FIELDS, self._open, strict=True)}
        self._new_block()
        good = kinds >= 0
        for name, values in columns.items():
            least, most = _BOUNDS[name]
            if values.max() > most or (values.min() < least and np.any((values < least) & (values != MISSING))):
                good &= (values <= most) & ((values >= least) | (values == MISSING))
        dropped = len(kinds) - int(np.count_nonzero(good))
        if dropped:
            self.invalid += dropped
            kinds = kinds[good]
            columns = {name: values[good] for name, values in columns.items()}
        if len(kinds):
            self._blocks.append(Block({name: _compact(values) for name, values in columns.items()}, kinds))

    def append(self, block: Block, kinds: Sequence[Kind]) -> None:
        """Add rows that another table read; `kinds` are theirs by number."""
        self._close_block()
        numbers = np.array([self._numbers[tuple(kind)] for kind in kinds] or [-1], np.int32)[block.kinds]
        good = numbers >= 0
        self.invalid += len(numbers) - int(np.count_nonzero(good))
        if bool(good.all()):
            self._blocks.append(Block(block.columns, numbers))
        else:
            self._blocks.append(Block({name: values[good] for name, values in block.columns.items()}, numbers[good]))

    def blocks(self) -> tuple[list[Block], list[Kind]]:
        """All rows up to now, and the kinds by number."""
        self._close_block()
        return list(self._blocks), [Kind(*key) for key in self._numbers]


def _fitted(value: int) -> int:
    return value if -(2**63) < value < 2**63 else _DAMAGED


def _compact(values: Column) -> Column:
    """A column whose values are all the same takes no memory: many are 0, or missing throughout."""
    first = values[0]
    return np.broadcast_to(first, values.shape) if np.all(values == first) else values
