"""The templates of a log, learnt from its lines as they come."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from async_orch.analysis._table import FIGURE_FIELDS
from async_orch.analysis._template import Lines, Template
from async_orch.analysis._words import Text

__all__ = ["TemplateRows", "Templates"]

_MAX_TEMPLATES: Final = 8
_MAX_LEARNT_A_BLOCK: Final = 4
_LEAST_LINES_A_RUN: Final = 8
_LEAST_LINE_NBYTES: Final = 256  # a step's line has more: shorter ones are something else, and would need much memory
# For fewer lines the decoder is as fast as a template that is known, and than one that is still to be made.
_LEAST_LINES_LEFT: Final = 16
_LEAST_LINES_TO_LEARN: Final = 64


class TemplateRows(NamedTuple):
    """What was read of a block of lines.

    ``taken``: of each line, shape (lines,), whether it was read. ``columns``: the figures of those, shape
    (`FIGURE_FIELDS`, taken lines). ``kinds``: of each of those, the index in ``samples`` of a record with its texts.
    ``ends``: of each line, where its line end is.
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
        self._known: list[Template] = []
        self._text = Text()
        self._columns = np.empty((len(FIGURE_FIELDS), 0), np.int64)
        self._some_columns = self._columns

    def read(self, block: bytes) -> TemplateRows:
        """Read what has a template in a block of whole lines, the last of which has its line end too.

        The columns are valid until the next call.
        """
        self._text.load(block)
        lines = Lines(self._text)
        count = len(lines.ends)
        if count * _LEAST_LINE_NBYTES > len(block):
            nothing = np.empty((len(FIGURE_FIELDS), 0), np.int64)
            return TemplateRows(np.zeros(count, np.bool_), nothing, np.empty(0, np.int32), [], lines.ends)
        if count > self._columns.shape[1]:
            self._columns = np.empty((len(FIGURE_FIELDS), count), np.int64)
            self._some_columns = np.empty_like(self._columns)
        kinds = np.full(count, -1, np.int32)
        samples: list[Any] = []
        left = np.arange(count)
        used = {}
        for template in self._known:
            before = len(left)
            if before >= _LEAST_LINES_LEFT:
                left = self._take(template, lines, left, kinds, samples)
            used[template] = before - len(left)
        for _ in range(_MAX_LEARNT_A_BLOCK):
            if len(left) < _LEAST_LINES_TO_LEARN:
                break
            learnt = Template.of(block[lines.starts[left[0]] : lines.ends[left[0]] + 1])
            before = len(left)
            left = left[1:] if learnt is None else self._take(learnt, lines, left, kinds, samples)
            if learnt is not None and before - len(left) >= _LEAST_LINES_LEFT:
                used[learnt] = before - len(left)
        # The most useful first, so that most blocks need no other.
        self._known = sorted(used, key=lambda template: used[template], reverse=True)[:_MAX_TEMPLATES]
        taken = kinds >= 0
        columns = self._columns[:, :count]
        if not taken.all():
            columns, kinds = columns[:, taken], kinds[taken]
        return TemplateRows(taken, columns, kinds, samples, lines.ends)

    def _take(
        self,
        template: Template,
        lines: Lines,
        left: npt.NDArray[np.intp],
        kinds: npt.NDArray[np.int32],
        samples: list[Any],
    ) -> npt.NDArray[np.intp]:
        """Read those of the lines `left` that a template fits; give the others."""
        if not len(left):
            return left
        whole = len(left) == len(kinds)
        fits = template.read(lines, left, self._columns if whole else self._some_columns)
        rows = left[fits]
        if len(rows):
            if not whole:
                self._columns[:, rows] = self._some_columns[:, : len(left)][:, fits]
            kinds[rows] = len(samples)
            samples.append(template.sample)
        return left[~fits]
