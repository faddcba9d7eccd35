"""Step records as columns of 64-bit integers: a few bytes a figure and step, whatever the log's size.

Texts that repeat (run, device, program, event, cold reason, ...) are kept once; a row holds the number of its
combination, its `Kind`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import (
    BOUNDS,
    FIGURE_FIELDS,
    KIND_FIELDS,
    MAX_PID,
    MISSING,
    Column,
    Figures,
    HeldColumn,
    Kind,
    fitted,
)
from async_orch.logs import SCHEMAS_READ, StepRecord

__all__ = ["Block", "StepTable"]

_BLOCK_ROWS: Final = 1 << 14
_SHORT: Final = np.iinfo(np.int32)
_MAX_KINDS: Final = 1 << 16
_MAX_HALVES: Final = 256
_REFUSED: Final = -1  # in place of a kind's number: it cannot be, or is one more than are told apart
_UNKNOWN_SCHEMA: Final = -2


class Block(NamedTuple):
    """Some rows: a column for each of `FIGURE_FIELDS`, and the kinds."""

    columns: dict[str, HeldColumn]
    kinds: npt.NDArray[np.int32]


class _Layout:
    """Where the figures and texts of a record type stand in the tuple of its fields."""

    def __init__(self, record_type: Any) -> None:
        names: tuple[str, ...] = record_type.__struct_fields__
        self.figures = tuple(names.index(name) for name in FIGURE_FIELDS)
        self.texts = itemgetter(*(names.index(name) for name in KIND_FIELDS))
        self._halves: dict[tuple[int, ...], tuple[npt.NDArray[np.intp], _Get, _Get]] = {}

    def halves(self, row: Sequence[Any]) -> tuple[npt.NDArray[np.intp], _Get, _Get]:
        """For rows that lack the figures that `row` lacks: numbers of the columns they have, getters of both halves."""
        lacking = tuple(index for index in self.figures if row[index] is None)
        found = self._halves.get(lacking)
        if found is None:
            known = [column for column, index in enumerate(self.figures) if index not in lacking]
            found = np.array(known, np.intp), _getter([self.figures[column] for column in known]), _getter(lacking)
            if len(self._halves) < _MAX_HALVES:
                self._halves[lacking] = found
        return found


_Get: TypeAlias = Callable[[Sequence[Any]], tuple[Any, ...]]


def _getter(indices: Sequence[int]) -> _Get:
    """`itemgetter` that gives a tuple for one index, and for none, too."""
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda row: tuple(row[index] for index in indices)


_LAYOUTS: Final = {Figures: _Layout(Figures), StepRecord: _Layout(StepRecord)}
_astuple: Final = msgspec.structs.astuple


class _KindNumbers(dict[tuple[Any, ...], int]):
    """The number of (schema, *kind); negative where the row is not to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[tuple[Any, ...], int] = {}

    def __missing__(self, key: tuple[Any, ...]) -> int:
        schema, *kind = key
        number = _UNKNOWN_SCHEMA
        if schema in SCHEMAS_READ:
            number = self.number(tuple(kind)) if 0 <= Kind(*kind).pid <= MAX_PID else _REFUSED
        if len(self) < 2 * _MAX_KINDS:
            self[key] = number
        return number

    def number(self, kind: tuple[Any, ...]) -> int:
        if len(self.kinds) >= _MAX_KINDS:
            return self.kinds.get(kind, _REFUSED)
        return self.kinds.setdefault(kind, len(self.kinds))


class StepTable:
    """Rows of steps that grow at their end.

    ``invalid`` counts rows that were dropped because a figure or the pid is negative or larger than can be meant, and
    rows of more different runs than are told apart; ``unknown_schema`` those of a schema that is not read.
    """

    def __init__(self) -> None:
        self._open, self._open_kinds = _empty_block(0)  # the block that is being filled
        self.start_anew()

    def start_anew(self) -> None:
        """Forget all rows; what `blocks` gave stays as it is."""
        self.invalid = 0
        self.unknown_schema = 0
        self._numbers = _KindNumbers()
        self._blocks: list[Block] = []
        self._filled = 0  # rows of the open block
        self._pending: list[npt.NDArray[np.int64]] = []  # the last of these rows, still row by row
        self._pending_columns: npt.NDArray[np.intp] = np.empty(0, np.intp)  # the columns that those have

    def extend(self, records: Sequence[Any]) -> None:
        """Add records of one type: `Figures` or `StepRecord`."""
        if not records:
            return
        for first in range(0, len(records), _BLOCK_ROWS):
            part = records[first : first + _BLOCK_ROWS]
            self._fill(list(map(_astuple, part)), _LAYOUTS[type(part[0])])

    def extend_columns(
        self, columns: npt.NDArray[np.int64], kinds: npt.NDArray[np.int32], samples: Sequence[Any]
    ) -> None:
        """Add rows that are in columns, shape (`FIGURE_FIELDS`, rows); `kinds` has for each the index of a `Figures`
        in `samples` that has its texts.
        """
        numbers = np.full(len(samples), _REFUSED, np.int32)
        # Kinds get their numbers in the order of the log, however many lines were looked at together.
        for index in sorted(range(len(samples)), key=lambda index: int(np.argmax(kinds == index))):
            if len(samples) == 1 or bool(np.any(kinds == index)):
                numbers[index] = self._numbers[_LAYOUTS[Figures].texts(_astuple(samples[index]))]
        for first in range(0, len(kinds), _BLOCK_ROWS):
            part = slice(first, first + _BLOCK_ROWS)
            count = len(kinds[part])
            place = self._room(count)
            self._place_pending()
            self._open[:, place] = columns[:, part]
            self._open_kinds[place] = numbers[kinds[part]]
            self._filled += count

    def _room(self, count: int) -> slice:
        """Where the next `count` rows go, in a block that has room for them."""
        if self._filled + count > _BLOCK_ROWS:
            self._close_block()
        if not len(self._open_kinds):
            self._open, self._open_kinds = _empty_block(_BLOCK_ROWS)  # memory that is not touched yet costs nothing
        return slice(self._filled, self._filled + count)

    def _fill(self, rows: list[tuple[Any, ...]], layout: _Layout) -> None:
        """Add rows, fast where all of them lack the same figures and are of one kind, as most neighbours are."""
        count = len(rows)
        place = self._room(count)
        columns, known, lacking = layout.halves(rows[0])
        if columns is not self._pending_columns:
            self._place_pending()
            self._pending_columns = columns
        values = None
        if list(map(lacking, rows)).count(lacking(rows[0])) == count:
            with contextlib.suppress(TypeError, OverflowError):  # a row lacks more than the first; damage
                values = np.fromiter(chain.from_iterable(map(known, rows)), np.int64, count * len(columns))
        if values is None or bool(np.any(values == MISSING)):  # the figure that stands for none is damage, too
            self._fill_mixed(rows, layout, place)
        else:
            self._pending.append(values.reshape(count, len(columns)))
        texts = list(map(layout.texts, rows))
        if texts.count(texts[0]) == count:
            self._open_kinds[place] = self._numbers[texts[0]]
        else:
            self._open_kinds[place] = list(map(self._numbers.__getitem__, texts))
        self._filled += count

    def _fill_mixed(self, rows: list[tuple[Any, ...]], layout: _Layout, place: slice) -> None:
        self._place_pending()
        for column, index in enumerate(layout.figures):
            values = map(itemgetter(index), rows)
            self._open[column, place] = [MISSING if value is None else fitted(value) for value in values]

    def _place_pending(self) -> None:
        """Turn the rows that wait for it into columns; they end where `_filled` is."""
        if self._pending:
            values = np.concatenate(self._pending)
            place = slice(self._filled - len(values), self._filled)
            self._open[:, place] = MISSING
            for position, column in enumerate(self._pending_columns):
                self._open[column, place] = values[:, position]
            self._pending.clear()

    def _close_block(self) -> None:
        self._place_pending()
        count, self._filled = self._filled, 0
        if not count:
            return
        values, kinds = self._open[:, :count], self._open_kinds[:count]
        self.unknown_schema += int(np.count_nonzero(kinds == _UNKNOWN_SCHEMA))
        wanted = int(np.count_nonzero(kinds != _UNKNOWN_SCHEMA))
        good = kinds >= 0
        low, high = values.min(axis=1), values.max(axis=1)
        suspect = (high > BOUNDS[:, 1]) | ((low < BOUNDS[:, 0]) & (high != MISSING))
        for column in np.flatnonzero(suspect):
            figures, (least, most) = values[column], BOUNDS[column]
            good &= (figures <= most) & ((figures >= least) | (figures == MISSING))
        kept = int(np.count_nonzero(good))
        self.invalid += wanted - kept
        if not kept:
            return
        if kept < count:
            values, kinds = values[:, good], kinds[good]
            low, high = values.min(axis=1), values.max(axis=1)
        columns = {
            name: _compact(values[column], int(low[column]), int(high[column]))
            for column, name in enumerate(FIGURE_FIELDS)
        }
        self._blocks.append(Block(columns, kinds.copy()))

    def append(self, block: Block, kinds: Sequence[Kind]) -> None:
        """Add rows that another table read; `kinds` are theirs by number."""
        self._close_block()
        numbers = np.array([self._numbers.number(tuple(kind)) for kind in kinds] or [_REFUSED], np.int32)[block.kinds]
        good = numbers >= 0
        self.invalid += len(numbers) - int(np.count_nonzero(good))
        if bool(good.all()):
            self._blocks.append(Block(block.columns, numbers))
        else:
            self._blocks.append(Block({name: values[good] for name, values in block.columns.items()}, numbers[good]))

    def blocks(self) -> tuple[list[Block], list[Kind]]:
        """All rows up to now, and the kinds by number."""
        self._close_block()
        return list(self._blocks), [Kind(*key) for key in self._numbers.kinds]


def _empty_block(rows: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    return np.empty((len(FIGURE_FIELDS), rows), np.int64), np.empty(rows, np.int32)


def _compact(values: Column, low: int, high: int) -> HeldColumn:
    """A column of its own, in little memory: most figures fit 32 bits, many are 0 or missing throughout."""
    if low == high:
        return np.broadcast_to(np.int64(low), values.shape)
    if _SHORT.min <= low and high <= _SHORT.max:
        return values.astype(np.int32)
    return values.copy()
