"""Steps in columns: the part of the analysis that a notebook goes on from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import FIGURE_FIELDS, MISSING, Column, Kind
from async_orch.analysis._table import Block

__all__ = ["StepFrame"]


_Key = TypeVar("_Key", bound=Hashable)


class _Pieces(NamedTuple):
    """Rows by the block that holds them, and where each goes if they are not in the order of the log."""

    chosen: list[tuple[int, slice | npt.NDArray[np.intp]]]
    order: npt.NDArray[np.intp] | None


class StepFrame:
    """Steps in columns, immutable; indexing by a field's name gives a column, masked where a step lacks the figure.

    ``kinds`` lists the combinations of texts (run, device, program, event, ...) that occur, and ``kind`` gives each
    row's number in it. Rows are in the order of the log.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        kinds: Sequence[Kind],
        rows: npt.NDArray[np.intp] | slice | None = None,
        numbers: npt.NDArray[np.int32] | None = None,
    ) -> None:
        self._blocks = blocks if isinstance(blocks, tuple) else tuple(blocks)  # shared with the frames taken from it
        self._rows = rows
        self._numbers = numbers  # what the blocks call each of `kinds`, ascending; None where that is its index
        self.kinds: tuple[Kind, ...] = kinds if isinstance(kinds, tuple) else tuple(kinds)

    @cached_property
    def kind(self) -> npt.NDArray[np.int32]:
        """The number of each row's kind, an array of shape (steps,)."""
        kind = self._taken([block.kinds for block in self._blocks], np.int32)
        return kind if self._numbers is None else np.searchsorted(self._numbers, kind).astype(np.int32)

    def __len__(self) -> int:
        if self._rows is None:
            return sum(len(block.kinds) for block in self._blocks)
        return self._rows.stop - self._rows.start if isinstance(self._rows, slice) else len(self._rows)

    def __getitem__(self, name: str) -> np.ma.MaskedArray[Any, np.dtype[np.int64]]:
        """A column as a masked array of int64, shape (steps,). Raises `KeyError` for a name that is no figure."""
        values = self.column(name)
        return np.ma.MaskedArray(values, mask=values == MISSING)

    def column(self, name: str) -> Column:
        """A column, shape (steps,), with `MISSING` where a step lacks the figure. Raises `KeyError`."""
        if name not in FIGURE_FIELDS:
            raise KeyError(f"no column {name!r}; columns are {', '.join(FIGURE_FIELDS)}")
        return self._taken([block.columns[name] for block in self._blocks], np.int64)

    def _taken(self, parts: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
        if self._rows is None:
            return np.concatenate(parts, dtype=dtype) if parts else np.empty(0, dtype)
        if not len(self):
            return np.empty(0, dtype)
        pieces = self._pieces
        taken = [parts[block][rows] for block, rows in pieces.chosen]
        together = np.concatenate(taken, dtype=dtype)
        if pieces.order is None:
            return together
        ordered = np.empty_like(together)
        ordered[pieces.order] = together
        return ordered

    @cached_property
    def _pieces(self) -> _Pieces:
        """Where the rows are; a frame of a few rows touches the blocks that hold them and no other."""
        ends = np.cumsum([len(block.kinds) for block in self._blocks])
        rows = self._rows
        if rows is None:
            return _Pieces([(number, slice(None)) for number in range(len(self._blocks))], None)
        chosen: list[tuple[int, slice | npt.NDArray[np.intp]]] = []
        if isinstance(rows, slice):
            first, last = np.searchsorted(ends, [rows.start, rows.stop - 1], side="right").tolist()
            for number in range(first, last + 1):
                count = len(self._blocks[number].kinds)
                start = int(ends[number]) - count
                chosen.append((number, slice(max(rows.start - start, 0), min(rows.stop - start, count))))
            return _Pieces(chosen, None)
        order = None if bool(np.all(rows[1:] > rows[:-1])) else np.argsort(rows, kind="stable")
        ascending = rows if order is None else rows[order]
        first, last = np.searchsorted(ends, ascending[[0, -1]], side="right").tolist()
        cuts = [0, *np.searchsorted(ascending, ends[first:last]).tolist(), len(rows)]
        for number, begin, end in zip(range(first, last + 1), cuts, cuts[1:], strict=False):
            if begin < end:
                start = int(ends[number]) - len(self._blocks[number].kinds)
                chosen.append((number, ascending[begin:end] - start))
        return _Pieces(chosen, order)

    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows there are of each of `kinds`."""
        return np.bincount(self.kind, minlength=len(self.kinds)).astype(np.int64)

    def parts(self) -> Iterator[StepFrame]:
        """The same steps in frames of bounded size, one after the other, where they are held so."""
        if self._rows is None:
            for block in self._blocks:
                yield StepFrame([block], self.kinds, None, self._numbers)
        elif len(self) and self._pieces.order is None:
            for number, rows in self._pieces.chosen:
                yield StepFrame([self._blocks[number]], self.kinds, rows, self._numbers)
        else:
            yield self

    def where(self, condition: Callable[[Kind], bool]) -> StepFrame:
        """The steps of the kinds for which `condition` holds."""
        held = np.array([condition(kind) for kind in self.kinds], np.bool_)
        return self.take(held[self.kind] if len(self) else np.empty(0, np.bool_))

    def split(self, key: Callable[[Kind], _Key]) -> dict[_Key, StepFrame]:
        """The steps by the `key` of their kind, in the order of `kinds`; keys without a step are left out.

        Each frame knows the kinds of its own key only. The rows are sorted once, so that many keys cost little more
        than one.
        """
        keys: dict[_Key, int] = {}
        of_kind = np.array([keys.setdefault(key(kind), len(keys)) for kind in self.kinds], np.int32)
        if not len(self):
            return {}
        if len(keys) == 1:
            return dict.fromkeys(keys, self)
        of_row = of_kind[self.kind]
        order = np.argsort(of_row, kind="stable")
        cuts = np.searchsorted(of_row[order], np.arange(len(keys) + 1)).tolist()
        kinds = np.argsort(of_kind, kind="stable").astype(np.int32)
        kind_cuts = np.searchsorted(of_kind[kinds], np.arange(len(keys) + 1)).tolist()
        found: dict[_Key, StepFrame] = {}
        for number, name in enumerate(keys):
            if cuts[number] < cuts[number + 1]:
                rows = self.take(order[cuts[number] : cuts[number + 1]])
                own = kinds[kind_cuts[number] : kind_cuts[number + 1]]
                numbers = own if self._numbers is None else self._numbers[own]
                found[name] = StepFrame(self._blocks, [self.kinds[kind] for kind in own], rows._rows, numbers)
        return found

    def take(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> StepFrame:
        """The steps that a mask or an array of row numbers selects."""
        if rows.dtype == np.bool_ and bool(rows.all()):
            return self
        chosen: npt.NDArray[np.intp] = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows.astype(np.intp)
        if isinstance(self._rows, slice):
            chosen = chosen + self._rows.start
        elif self._rows is not None:
            chosen = self._rows[chosen]
        if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1 and bool(np.all(np.diff(chosen) == 1)):
            # Neighbours, such as all steps but a first cold one: a slice is taken without copying.
            return StepFrame(self._blocks, self.kinds, slice(int(chosen[0]), int(chosen[-1]) + 1), self._numbers)
        return StepFrame(self._blocks, self.kinds, chosen, self._numbers)

    def texts(self, name: str) -> list[Any]:
        """A text of `Kind` for each row, such as ``frame.texts("program")``."""
        by_kind = [getattr(kind, name) for kind in self.kinds]
        return [by_kind[number] for number in self.kind]

    def as_dict(self) -> dict[str, Any]:
        """All columns by name, for ``pandas.DataFrame(frame.as_dict())`` and the like; what is missing is masked."""
        texts = {name: self.texts(name) for name in Kind._fields}
        return texts | {name: self[name] for name in FIGURE_FIELDS}

    def __iter__(self) -> Iterator[str]:
        return iter(FIGURE_FIELDS)
