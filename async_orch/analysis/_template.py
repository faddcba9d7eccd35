"""Lines that differ in their figures only, read many at a time.

Neighbours in a log have the same keys and the same texts: a step differs from the one before in its numbers. So one
line, which the JSON decoder reads, serves as the template of others. What is the same must be so byte by byte; where
the template has an integer there must be one, where it has a short string of the caller's a plain one. A line of
which that holds is a record because the template is one; any other line is left to the decoder. So templates make no
difference to what is read, only to how fast: passes of numpy over many lines instead of an object a figure.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.analysis._table import FIGURE_FIELDS, KIND_FIELDS, MISSING, SIGNED_FIGURES, Figures
from async_orch.analysis._texts import MAX_TEXT_NBYTES, Texts
from async_orch.analysis._words import MAX_STRING_NBYTES, Places, Text

__all__ = ["Lines", "Template"]

_HEAD_NBYTES: Final = 256
_SAME_FIELDS: Final = frozenset({*KIND_FIELDS, "level"})  # the level goes with the event
_SIGNED_COLUMNS: Final = [FIGURE_FIELDS.index(name) for name in SIGNED_FIGURES]
_COMMA, _LINE_END = b",\n"

_TOKEN: Final = re.compile(
    rb'"(?P<string>[^"]*)"(?P<key>\s*:)?|(?P<integer>-?\d+)(?=\s*[,\]}])|[{\[]|[}\]]|-?\d[^,\]}\s]*'
)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode: Final = msgspec.json.Decoder(Figures).decode


class Lines:
    """The lines of a block of whole lines: where each starts, ends and has its commas.

    ``marks``: places of commas and line ends, ``first_marks``: of each line, the index of its first one in them.
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self.marks = text.places_of((_COMMA, _LINE_END))
        last = np.flatnonzero(text.bytes_at(self.marks) == _LINE_END)
        self.ends = self.marks[last]
        before = np.zeros(1, np.int64)
        self.starts = np.concatenate((before, self.ends[:-1] + 1))
        self.first_marks = np.concatenate((before, last[:-1] + 1))


class _Differing(NamedTuple):
    """A place where lines may differ: in the template's text, a string's inside or an integer.

    It ends ``to_mark`` bytes before the comma or line end of number ``mark``. ``column`` is where a figure goes.
    """

    start: int
    end: int
    mark: int
    to_mark: int
    column: int | None
    is_string: bool


class Template:
    """One line, with its line end, in parts that are the same and parts that differ; ``sample`` is its record."""

    def __init__(self, sample: Any, line: bytes, differing: list[_Differing]) -> None:
        self.sample = sample
        # Where what differs ends, see `_Differing`; and which of it are strings, which integers.
        self._marks = np.array([[part.mark] for part in differing], np.int64)
        self._to_marks = np.array([[part.to_mark] for part in differing], np.int64)
        self._strings = np.array([number for number, part in enumerate(differing) if part.is_string], np.intp)
        self._integers = np.array([number for number, part in enumerate(differing) if not part.is_string], np.intp)
        # Of the integers: those with a sign, those that are figures, and the columns that the figures go to.
        figures = [part.column for part in differing if not part.is_string]
        self._signed = [row for row, column in enumerate(figures) if column in _SIGNED_COLUMNS]
        self._figures = np.array([row for row, column in enumerate(figures) if column is not None], np.intp)
        self._columns = np.array([column for column in figures if column is not None], np.intp)
        self._missing = [column for column in range(len(FIGURE_FIELDS)) if column not in figures]
        # The texts around what differs, one more than of it.
        edges = [0, *(edge for part in differing for edge in (part.start, part.end)), len(line)]
        texts = [line[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
        self._lengths = np.array([[len(text)] for text in texts], np.int64)
        # Most lines of another kind differ in the first words: they need not be compared to their ends.
        head = next((number for number in range(1, len(texts)) if edges[2 * number] >= _HEAD_NBYTES), len(texts))
        bounds = [(0, head), (head, len(texts))] if head < len(texts) else [(0, head)]
        self._parts = [(slice(*some), Texts(texts[slice(*some)])) for some in bounds]
        self._whole = [(slice(0, len(texts)), Texts(texts))]

    @classmethod
    def of(cls, line: bytes) -> Template | None:
        """The template that a line makes; None if it is no record, or not one to read others by."""
        # Without backslashes a quote is always the end of a string.
        if len(line) > MAX_TEXT_NBYTES or b"\\" in line:
            return None
        try:
            sample = _decode(line)
        except _DECODE_ERRORS:
            return None
        differing = _differing(line)
        template = None if differing is None else cls(sample, line, differing)
        return template if template is not None and template._reads_itself(line) else None

    def _reads_itself(self, line: bytes) -> bool:
        """Whether the figures read from its own line are the decoder's: if not, its form is not understood."""
        text = Text()
        text.load(line)
        columns = np.empty((len(FIGURE_FIELDS), 1), np.int64)
        figures = [getattr(self.sample, name) for name in FIGURE_FIELDS]
        expected = [MISSING if figure is None else figure for figure in figures]
        return (
            len(self.read(Lines(text), np.zeros(1, np.intp), columns, all_expected=True)) == 1
            and columns[:, 0].tolist() == expected
        )

    def read(
        self,
        lines: Lines,
        chosen: npt.NDArray[np.intp],
        columns: npt.NDArray[np.int64],
        *,
        all_expected: bool,
    ) -> npt.NDArray[np.intp]:
        """Those of the `chosen` lines that have this form; their figures are then the first of `columns`.

        `all_expected` is faster where all of them have it, and slower where many have not.

        What has this form starts where the line does, has no line end inside and one at its end: it is the whole line.
        """
        text = lines.text
        places = None
        for some, texts in self._whole if all_expected else self._parts:
            # Each text begins where something that differs ended, and that begins where the text before it ends.
            places = self._text_places(lines, chosen, some.stop)
            same = text.equals(places[some], texts)
            if not same.all():
                chosen, places = chosen[same], None
                if not len(chosen):
                    return chosen
        if places is None:
            places = self._text_places(lines, chosen, len(self._lengths))
        starts, ends = places[:-1] + self._lengths[:-1], places[1:]
        fits = np.all(text.plain_strings(starts[self._strings], ends[self._strings]), axis=0)
        starts, ends = starts[self._integers], ends[self._integers]
        negative = {row: text.bytes_at(starts[row]) == ord("-") for row in self._signed}
        for row, sign in negative.items():
            starts[row] += sign
        values, good = text.integers(starts, ends)
        fits &= good
        for row, sign in negative.items():
            fits &= ~(sign & (values[row] == 0))
            values[row][sign] *= -1
        values = values[self._figures]
        if not fits.all():
            chosen, values = chosen[fits], values[:, fits]
        columns = columns[:, : len(chosen)]
        columns[self._missing] = MISSING
        columns[self._columns] = values
        return chosen

    def _text_places(self, lines: Lines, chosen: npt.NDArray[np.intp], count: int) -> Places:
        """Where the first texts begin, if the lines have this form: at the line's start, and behind what differs."""
        ends = lines.marks.take(lines.first_marks[chosen] + self._marks[: count - 1], mode="clip")
        ends -= self._to_marks[: count - 1]
        return np.concatenate((lines.starts[chosen][None], ends))


def _differing(line: bytes) -> list[_Differing] | None:
    """Where lines may differ from a record, in order; None if a key comes twice, of which the last one counts."""
    found = []
    keys: set[str] = set()
    key, depth = "", 0
    for token in _TOKEN.finditer(line):
        if token["key"]:
            if depth == 1:
                key = token["string"].decode("utf-8", "replace")
                if key in keys:
                    return None
                keys.add(key)
        elif token["string"] is not None:
            string = token["string"]
            if key not in _SAME_FIELDS and len(string) <= MAX_STRING_NBYTES and b"," not in string:
                found.append(_place(line, *token.span("string"), None, is_string=True))
        elif token["integer"]:
            figure = key in FIGURE_FIELDS
            if key not in _SAME_FIELDS and (figure or not token["integer"].startswith(b"-")):
                column = FIGURE_FIELDS.index(key) if figure else None
                found.append(_place(line, *token.span("integer"), column, is_string=False))
        elif token.group() in b"{[":
            depth += 1
        elif token.group() in b"}]":
            depth -= 1
    return found


def _place(line: bytes, start: int, end: int, column: int | None, *, is_string: bool) -> _Differing:
    comma = line.find(b",", end)
    mark = len(line) - 1 if comma < 0 else comma
    return _Differing(start, end, line.count(b",", 0, end), mark - end, column, is_string)
