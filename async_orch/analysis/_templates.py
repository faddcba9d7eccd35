"""The templates of a log, learnt from its lines as they come."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import FIGURE_FIELDS, figures_of
from async_orch.analysis._memory import keep_freed
from async_orch.analysis._template import Lines, Template, record_of
from async_orch.analysis._words import Text

__all__ = ["TemplateRows", "Templates"]

_MAX_TEMPLATES: Final = 4  # more forms than that between each other are decoded as fast
_LEAST_NBYTES: Final = 1 << 18  # a smaller block is decoded before numpy is done with it
_MAX_SKIPPED: Final = 64  # blocks, of a megabyte mostly
_MAX_LEARNT_A_BLOCK: Final = 2
_LEAST_LINES_A_RUN: Final = 8
_LEAST_LINE_NBYTES: Final = 256  # a step's line has more: shorter ones are something else, and would need much memory
# For fewer lines the decoder is as fast as a template that is known, and than one that is still to be made.
_LEAST_LINES_LEFT: Final = 16
_LEAST_LINES_TO_LEARN: Final = 64
_LEAST_TAKEN_TO_ONE_LEFT: Final = 4


class TemplateRows(NamedTuple):
    """What was read of a block of lines.

    ``taken``: of each line, shape (lines,), whether it was read. ``columns``: the figures of those, shape
    (`FIGURE_FIELDS`, taken lines). ``kinds``: of each of those, the index in ``samples`` of a record with its texts.
    ``ends``: of each line, where its line end is, if any was tried.
    """

    taken: npt.NDArray[np.bool_]
    columns: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int32]
    samples: list[Any]
    ends: npt.NDArray[np.int64]

    @property
    def is_worth_it(self) -> bool:
        """Whether so many lines were taken, and so many in a row, that decoding all of them would take longer."""
        return len(self.kinds) >= len(self.taken) // 2 and len(self.runs()) <= len(self.taken) // _LEAST_LINES_A_RUN

    def runs(self) -> list[tuple[int, int]]:
        """First and last + 1 of lines in a row of which all, or none, were taken."""
        edges = np.flatnonzero(np.diff(self.taken)) + 1
        return list(pairwise((0, *edges.tolist(), len(self.taken))))


class Templates:
    """Templates of the lines read so far, those that fitted most lines of the last block first."""

    def __init__(self) -> None:
        keep_freed()
        self._known: list[Template] = []
        self.text = Text()
        self._columns = np.empty((len(FIGURE_FIELDS), 0), np.int64)
        self._some_columns = self._columns
        self._not_worth_it = 0  # blocks in a row
        self._to_skip = 0

    def try_block(self, block: bytes) -> TemplateRows | None:
        """`read`, unless decoding is faster; a log that templates do not suit is tried less and less often."""
        self.text.load(block)
        return self.try_text()

    def try_text(self) -> TemplateRows | None:
        """`try_block` for what was put into `text`."""
        if len(self.text.bytes) < _LEAST_NBYTES:
            return None
        if self._to_skip:
            self._to_skip -= 1
            return None
        rows = self._read()
        if rows.is_worth_it:
            self._not_worth_it = 0
            return rows
        self._not_worth_it += 1
        self._to_skip = min(1 << self._not_worth_it, _MAX_SKIPPED)
        return None

    def read(self, block: bytes) -> TemplateRows:
        """Read what has a template in a block of whole lines, the last of which has its line end too.

        The columns are valid until the next call.
        """
        self.text.load(block)
        return self._read()

    def _read(self) -> TemplateRows:
        lines = Lines(self.text)
        count = len(lines.ends)
        if count * _LEAST_LINE_NBYTES > len(self.text.bytes):
            return _nothing(count)
        if count > self._columns.shape[1]:
            self._columns = np.empty((len(FIGURE_FIELDS), count), np.int64)
            self._some_columns = np.empty_like(self._columns)
        found = _Found(np.arange(count), np.full(count, -1, np.int32), [])
        used: dict[Template, int] = {}
        for template in self._known:
            used[template] = self._take(template, lines, found) if len(found.left) >= _LEAST_LINES_LEFT else 0
        for _ in range(_MAX_LEARNT_A_BLOCK):
            if len(found.left) < _LEAST_LINES_TO_LEARN:
                break
            first = found.left[0]
            learnt = Template.of(self.text.bytes[lines.starts[first] : lines.ends[first] + 1].tobytes())
            if learnt is None:
                found.left = found.left[1:]
            elif (taken := self._take(learnt, lines, found)) >= _LEAST_LINES_LEFT:
                used[learnt] = taken
        if len(found.left) <= count // _LEAST_TAKEN_TO_ONE_LEFT:
            self._decode_left(lines, found)
        # The most useful first, so that most blocks need no other.
        self._known = sorted(used, key=lambda template: used[template], reverse=True)[:_MAX_TEMPLATES]
        known = found.kinds >= 0
        columns, kinds = self._columns[:, :count], found.kinds
        if not known.all():
            columns, kinds = columns[:, known], kinds[known]
        return TemplateRows(known, columns, kinds, found.samples, lines.ends)

    def _decode_left(self, lines: Lines, found: _Found) -> None:
        """Take those lines left that are records, so that what is taken is in as few pieces as possible."""
        for row in found.left.tolist():
            line = self.text.bytes[lines.starts[row] : lines.ends[row]].tobytes()
            if line.startswith(b"{") and (record := record_of(line)) is not None:
                self._columns[:, row] = figures_of(record)
                found.kinds[row] = len(found.samples)
                found.samples.append(record)

    def _take(self, template: Template, lines: Lines, found: _Found) -> int:
        """Read those of the lines left that a template fits; how many they are."""
        rows = template.read(lines, found.left, self._some_columns, all_expected=len(self._known) == 1)
        if len(rows) == len(found.kinds):
            self._columns, self._some_columns = self._some_columns, self._columns
        elif len(rows):
            self._columns[:, rows] = self._some_columns[:, : len(rows)]
        if len(rows):
            found.kinds[rows] = len(found.samples)
            found.samples.append(template.sample)
            found.left = found.left[found.kinds[found.left] < 0]
        return len(rows)


@dataclass
class _Found:
    """What is left of a block's lines; of each of them, the sample that it is like, -1 if none."""

    left: npt.NDArray[np.intp]
    kinds: npt.NDArray[np.int32]
    samples: list[Any]


def _nothing(count: int) -> TemplateRows:
    columns = np.empty((len(FIGURE_FIELDS), 0), np.int64)
    return TemplateRows(np.zeros(count, np.bool_), columns, np.empty(0, np.int32), [], np.empty(0, np.int64))
