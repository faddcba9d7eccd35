"""Lines that differ in their figures only, read many at a time.

Neighbours in a log have the same keys and the same texts: a step differs from the one before in its numbers. So one
line, which the JSON decoder reads, serves as the template of others. What is the same must be so byte by byte; where
the template has an integer there must be one, where it has a short string of the caller's a plain one. A line of
which that holds is a record because the template is one; any other line is left to the decoder. So templates make no
difference to what is read, only to how fast: passes of numpy over many lines instead of an object a figure.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import (
    FIGURE_FIELDS,
    KIND_FIELDS,
    MISSING,
    OPTIONAL_FIGURES,
    SIGNED_FIGURES,
    Figures,
    figures_of,
)
from async_orch.analysis._texts import MAX_TEXT_NBYTES, Texts
from async_orch.analysis._words import MAX_STRING_NBYTES, Mask, Places, Text

__all__ = ["Lines", "Template", "record_of"]

_HEAD_NBYTES: Final = 256
_SAME_FIELDS: Final = frozenset({*KIND_FIELDS, "level"})  # the level goes with the event
_SIGNED_COLUMNS: Final = [FIGURE_FIELDS.index(name) for name in SIGNED_FIGURES]
_OPTIONAL_COLUMNS: Final = [FIGURE_FIELDS.index(name) for name in OPTIONAL_FIGURES]
_ANY_FIELD: Final = "attrs"  # the caller's: any value, which differs from step to step and is no figure
_COMMA, _LINE_END = b",\n"
_What: TypeAlias = Literal["integer", "string", "value"]

_TOKEN: Final = re.compile(
    rb'"(?P<string>[^"]*)"(?P<key>\s*:)?|(?P<integer>-?\d+)(?=\s*[,\]}])|[{\[]|[}\]]|-?\d[^,\]}\s]*'
)
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode: Final = msgspec.json.Decoder(Figures).decode
_look_at_value: Final = msgspec.json.Decoder(msgspec.Raw).decode  # as the other looks at fields that it leaves out
_python_decoder: Final = json.JSONDecoder()


class Lines:
    """The lines of a block of whole lines: where each starts, ends and has its commas.

    ``marks``: places of commas and line ends, ``first_marks`` and ``last_marks``: of each line, the index of its first
    one and of its line end in them.
    """

    def __init__(self, text: Text) -> None:
        self.text = text
        self.marks = text.places_of((_COMMA, _LINE_END))
        self.last_marks = np.flatnonzero(text.bytes_at(self.marks) == _LINE_END)
        self.ends = self.marks[self.last_marks]
        before = np.zeros(1, np.int64)
        self.starts = np.concatenate((before, self.ends[:-1] + 1))
        self.first_marks = np.concatenate((before, self.last_marks[:-1] + 1))


class _Differing(NamedTuple):
    """A place where lines may differ: in the template's text, an integer, a string's inside or any value.

    It ends ``to_mark`` bytes before the comma or line end of number ``mark``, counted from the line's first one, or
    backwards from its line end, which is -1, where a value before it may have any number of commas. ``column`` is where
    a figure goes.
    """

    start: int
    end: int
    mark: int
    to_mark: int
    column: int | None
    what: _What


class Template:
    """One line, with its line end, in parts that are the same and parts that differ; ``sample`` is its record."""

    def __init__(self, sample: Any, line: bytes, differing: list[_Differing]) -> None:
        self.sample = sample
        # Where what differs ends, see `_Differing`; and which of it are values, strings and integers.
        marks = np.array([[part.mark] for part in differing], np.int64)
        self._from_start, self._from_end = marks[marks[:, 0] >= 0], marks[marks[:, 0] < 0] + 1
        self._to_marks = np.array([[part.to_mark] for part in differing], np.int64)
        self._values = [number for number, part in enumerate(differing) if part.what == "value"]
        self._strings = np.array([n for n, part in enumerate(differing) if part.what == "string"], np.intp)
        self._integers = np.array([n for n, part in enumerate(differing) if part.what == "integer"], np.intp)
        # Of the integers: those with a sign, those that may be null, those that are figures, and their columns.
        figures = [part.column for part in differing if part.what == "integer"]
        self._signed = [row for row, column in enumerate(figures) if column in _SIGNED_COLUMNS]
        self._optional = np.array([column in _OPTIONAL_COLUMNS for column in figures], np.bool_)
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
        if len(line) > MAX_TEXT_NBYTES:
            return None
        sample = record_of(line)
        if sample is None:
            return None
        differing = _differing(line)
        template = None if differing is None else cls(sample, line, differing)
        return template if template is not None and template._reads_itself(line) else None

    def _reads_itself(self, line: bytes) -> bool:
        """Whether the figures read from its own line are the decoder's: if not, its form is not understood."""
        text = Text()
        text.load(line)
        columns = np.empty((len(FIGURE_FIELDS), 1), np.int64)
        return len(self.read(Lines(text), np.zeros(1, np.intp), columns, all_expected=True)) == 1 and columns[
            :, 0
        ].tolist() == figures_of(self.sample)

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
        for row in self._values:
            fits[fits] = _are_values(text, starts[row, fits], ends[row, fits])
        values = self._integers_at(text, starts[self._integers], ends[self._integers], fits)
        values = values[self._figures]
        if not fits.all():
            chosen, values = chosen[fits], values[:, fits]
        columns = columns[:, : len(chosen)]
        columns[self._missing] = MISSING
        columns[self._columns] = values
        return chosen

    def _integers_at(self, text: Text, starts: Places, ends: Places, fits: Mask) -> npt.NDArray[np.int64]:
        """The integers from `starts` to `ends`, `MISSING` for null; clears `fits` where neither may be there.

        Changes `starts` and `ends`.
        """
        first = text.bytes_at(starts)
        nulls = first == ord("n")
        some_null = bool(nulls.any())
        if some_null:
            of_figure, of_line = np.nonzero(nulls)
            allowed = self._optional[of_figure] & text.are_null(starts[nulls], ends[nulls])
            fits[of_line[~allowed]] = False
            starts[nulls], ends[nulls] = text.zero
        negative = {row: first[row] == ord("-") for row in self._signed}
        for row, sign in negative.items():
            starts[row] += sign
        values, good = text.integers(starts, ends)
        fits &= good
        for row, sign in negative.items():
            fits &= ~(sign & (values[row] == 0))
            values[row][sign] *= -1
        if some_null:
            values[nulls] = MISSING
        return values

    def _text_places(self, lines: Lines, chosen: npt.NDArray[np.intp], count: int) -> Places:
        """Where the first texts begin, if the lines have this form: at the line's start, and behind what differs."""
        before = lines.first_marks[chosen] + self._from_start[: count - 1]
        behind = lines.last_marks[chosen] + self._from_end[: max(count - 1 - len(before), 0)]
        ends = lines.marks.take(np.concatenate((before, behind)) if len(behind) else before, mode="clip")
        ends -= self._to_marks[: count - 1]
        return np.concatenate((lines.starts[chosen][None], ends))


def record_of(line: bytes) -> Any:
    """The `Figures` that a line holds; None if it holds none."""
    try:
        return _decode(line)
    except _DECODE_ERRORS:
        return None


def _are_values(text: Text, starts: Places, ends: Places) -> Mask:
    """Where the text from `starts` to `ends` is one value of JSON."""
    found = text.are_null(starts, ends)
    others = np.flatnonzero(~found)
    if len(others):
        whole = text.bytes.tobytes()
        # A place outside the text gives nothing, which is no value.
        for number, start, end in zip(others.tolist(), starts[others].tolist(), ends[others].tolist(), strict=True):
            try:
                _look_at_value(whole[start:end] if start >= 0 else b"")
            except _DECODE_ERRORS:
                continue
            found[number] = True
    return found


def _differing(line: bytes) -> list[_Differing] | None:
    """Where lines may differ from a record, in order.

    None if a key comes twice, of which the last one counts, or if there is a backslash: without one a quote is always
    the end of a string.
    """
    found: list[_Differing] = []
    keys: set[str] = set()
    key, depth, position, after_any = "", 0, 0, False
    rest = line
    while token := _TOKEN.search(line, position):
        position = token.end()
        if token["key"]:
            if depth == 1:
                key = token["string"].decode("utf-8", "replace")
                if key in keys:
                    return None
                keys.add(key)
                if key == _ANY_FIELD:
                    position = _value_end(line, token.end())
                    rest = line[: token.end()] + line[position:]
                    found.append(_place(line, token.end(), position, "value", from_end=True))
                    after_any = True
        elif token["string"] is not None:
            string = token["string"]
            if key not in _SAME_FIELDS and len(string) <= MAX_STRING_NBYTES and b"," not in string:
                found.append(_place(line, *token.span("string"), "string", from_end=after_any))
        elif token["integer"]:
            figure = key in FIGURE_FIELDS
            if key not in _SAME_FIELDS and (figure or not token["integer"].startswith(b"-")):
                column = FIGURE_FIELDS.index(key) if figure else None
                found.append(_place(line, *token.span("integer"), "integer", column, from_end=after_any))
        elif token.group() in b"{[":
            depth += 1
        elif token.group() in b"}]":
            depth -= 1
    return None if b"\\" in rest else found


def _value_end(line: bytes, start: int) -> int:
    """Where the value that begins at `start`, or behind spaces there, ends in a line that holds JSON."""
    text = line.decode("latin-1")  # a character a byte
    return _python_decoder.raw_decode(text, len(text) - len(text[start:].lstrip()))[1]


def _place(line: bytes, start: int, end: int, what: _What, column: int | None = None, *, from_end: bool) -> _Differing:
    comma = line.find(b",", end)
    mark = len(line) - 1 if comma < 0 else comma
    number = line.count(b",", 0, mark)
    if from_end:
        number -= line.count(b",") + 1
    return _Differing(start, end, number, mark - end, column, what)
