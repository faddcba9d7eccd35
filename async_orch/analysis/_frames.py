"""Steps in columns: the part of the analysis that a notebook goes on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from async_orch.analysis._table import FIGURE_FIELDS, MISSING, Block, Column, Kind

__all__ = ["StepFrame"]


class StepFrame:
    """Steps in columns, immutable; indexing by a field's name gives a column, masked where a step lacks the figure.

    ``kinds`` lists the combinations of texts (run, device, program, event, ...) that occur, and ``kind`` gives each
    row's number in it. Rows are in the order of the log.
    """

    def __init__(
        self, blocks: Sequence[Block], kinds: Sequence[Kind], rows: npt.NDArray[np.intp] | slice | None = None
    ) -> None:
        self._blocks = tuple(blocks)
        self._rows = rows
        self.kinds: tuple[Kind, ...] = tuple(kinds)

    @cached_property
    def kind(self) -> npt.NDArray[np.int32]:
        """The number of each row's kind, an array of shape (steps,)."""
        return self._taken([block.kinds for block in self._blocks], np.int32)

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
        whole = np.concatenate(parts) if parts else np.empty(0, dtype)
        return whole if self._rows is None else whole[self._rows]

    def counts(self) -> npt.NDArray[np.int64]:
        """How many rows there are of each of `kinds`."""
        return np.bincount(self.kind, minlength=len(self.kinds)).astype(np.int64)

    def parts(self) -> Iterator[StepFrame]:
        """The same steps in frames of bounded size, one after the other, where they are held so."""
        if self._rows is None:
            for block in self._blocks:
                yield StepFrame([block], self.kinds)
        else:
            yield self

    def where(self, condition: Callable[[Kind], bool]) -> StepFrame:
        """The steps of the kinds for which `condition` holds."""
        held = np.array([condition(kind) for kind in self.kinds], np.bool_)
        return self.take(held[self.kind] if len(self) else np.empty(0, np.bool_))

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
            return StepFrame(self._blocks, self.kinds, slice(int(chosen[0]), int(chosen[-1]) + 1))
        return StepFrame(self._blocks, self.kinds, chosen)

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
