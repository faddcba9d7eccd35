"""Takes the bytes of logs and sorts what is in them: step records by the block, everything else piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import FileIO
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from async_orch.analysis._columns import LineRows
from async_orch.analysis._fields import Figures
from async_orch.analysis._lines import MAX_LINE_NBYTES, LineSplitter
from async_orch.analysis._markers import BindPhase, ClockAnchor, Span
from async_orch.analysis._pieces import DECODE_ERRORS, PieceReader, Record
from async_orch.analysis._spans import PhaseFrame, SpanFrame
from async_orch.analysis._table import StepTable
from async_orch.analysis._templates import TemplateRows, Templates
from async_orch.logs import HostOrch, StepRecord

__all__ = ["Sorter"]

# Some 60 lines: what was decoded from them is still in the cache when the columns are made.
_DECODED_NBYTES: Final = 1 << 16
_NEAR_NBYTES: Final = 1 << 12  # some lines: the last line end of a block is almost always in so many of its end
_MAX_ANCHORS: Final = 1 << 20

_decoder: Final = msgspec.json.Decoder(Figures)
_decode_block: Final = _decoder.decode_lines
_decode_line: Final = _decoder.decode


class Sorter:
    """Takes the bytes of logs in pieces, as they come, and keeps what is in them in tables.

    `feed` takes the next piece of the current log and `end` says that it is over. `templates`: those of another
    one, for several that take turns.
    """

    def __init__(self, templates: Templates | None = None) -> None:
        self._templates = templates or Templates()
        self._steps = StepTable()
        self._start_anew()

    def _start_anew(self) -> None:
        """Forget all that was read, but neither templates nor memory."""
        self._pieces = PieceReader()
        self._splitter = LineSplitter()
        self._at_start = True
        self._steps.start_anew()
        self._single: list[StepRecord] = []
        self._lines = LineRows()
        self._spans = SpanFrame()
        self._phases = PhaseFrame()
        self._anchors: list[ClockAnchor] = []

    @property
    def _is_between_lines(self) -> bool:
        """Whether nothing is held of a line that is not complete, and the first one of the log was taken."""
        return not self._at_start and self._splitter.is_empty

    def feed(self, data: bytes) -> None:
        """Take the next piece of the current log."""
        for block in self._splitter.feed(data):
            self._block(block)

    def end(self) -> None:
        """The current log is over; what is fed next is another one."""
        for block in self._splitter.end():
            self._block(block, open_end=True)
        self._at_start = True

    def add(self, records: Iterable[Record]) -> None:
        """Take records that were read already; `LogFrames.reading` counts no lines for them."""
        for record in records:
            self._pieces.counts[type(record)] += 1
            self._add(record)

    def _block(self, block: bytes | None, *, open_end: bool = False) -> None:
        if block is None:
            self._pieces.lines += 1
            self._pieces.skip("too_long")
            self._at_start = False
        elif self._at_start or open_end:
            self._take_lines(block, open_end=open_end)
        else:
            self._take_rows(memoryview(block), self._templates.try_block(block))

    def _take_in_place(self, file: FileIO, nbytes: int) -> int:
        """Take the next whole lines of a log, `nbytes` at most, without copying them where templates fit.

        Only while `_is_between_lines`. Returns how many bytes these were, 0 if there is no line end in so many, and
        leaves the file behind them.
        """
        text = self._templates.text
        count = file.readinto(text.room(nbytes))
        text.hold(count)
        text.hold(_whole_lines(text.bytes))
        taken = len(text.bytes)
        file.seek(taken - count, os.SEEK_CUR)
        if taken:
            self._take_rows(text.bytes.data, self._templates.try_text())
        return taken

    def _take_rows(self, block: memoryview, rows: TemplateRows | None) -> None:
        """Take the lines that were read by templates, and what stands between them by decoding it."""
        if rows is None:
            self._decode(bytes(block))
            return
        row = start = 0
        for first, last in rows.runs():
            end = int(rows.ends[last - 1]) + 1
            if rows.taken[first]:
                count = last - first
                self._flush()
                self._steps.extend_columns(
                    rows.columns[:, row : row + count], rows.kinds[row : row + count], rows.samples
                )
                self._pieces.lines += count
                self._pieces.counts[StepRecord] += count
                row += count
            else:
                self._decode(bytes(block[start:end]))
            start = end

    def _decode(self, block: bytes) -> None:
        """Take a block by decoding it, some lines at a time."""
        start = 0
        while start < len(block):
            end = block.rfind(b"\n", start, start + _DECODED_NBYTES) + 1 or block.find(b"\n", start) + 1
            piece = block[start:end]
            if len(piece) > MAX_LINE_NBYTES or not self._take_whole(piece):
                self._take_lines(piece, open_end=False)
            start = end

    def _take_whole(self, block: bytes) -> bool:
        """Take a block that holds nothing but a step record on each line; False if it is not one."""
        count = _objects_in(block)
        if not count:
            return False
        try:
            records = _decode_block(block)
        except DECODE_ERRORS:
            return False
        if len(records) != count:
            return False
        self._pieces.lines += len(records)
        self._extend(records)
        return True

    def _take_lines(self, block: bytes, *, open_end: bool) -> None:
        lines = block.split(b"\n")
        if not open_end:
            del lines[-1]
        pieces = self._pieces
        good: list[Any] = []
        for line in lines:
            pieces.lines += 1
            if len(line) > MAX_LINE_NBYTES:
                pieces.skip("too_long")
                continue
            if self._at_start:
                self._at_start = False
                line = pieces.look_at_start(line)  # noqa: PLW2901 - the mark is no part of the line
            if line.startswith(b"{"):
                try:
                    record = _decode_line(line)
                except DECODE_ERRORS:
                    pass
                else:
                    self._flush()
                    good.append(record)
                    continue
            for piece in pieces.read_line(line, open_end=open_end):
                if good and isinstance(piece, StepRecord):
                    self._extend(good)
                    good = []
                self._add(piece)
        self._extend(good)

    def _extend(self, records: list[Any]) -> None:
        """Add figures in the order of the log: behind the records that were added one by one."""
        self._pieces.counts[StepRecord] += len(records)
        self._flush()
        self._steps.extend(records)

    def _add(self, record: Record) -> None:
        match record:
            case StepRecord():
                self._single.append(record)
                if len(self._single) >= 256:
                    self._flush()
            case HostOrch():
                self._lines.add(record)
            case Span():
                self._spans.add(record)
            case BindPhase():
                self._phases.add(record)
            case ClockAnchor():
                if len(self._anchors) < _MAX_ANCHORS:
                    self._anchors.append(record)

    def _flush(self) -> None:
        if self._single:
            self._steps.extend(self._single)
            self._single.clear()


def _whole_lines(codes: npt.NDArray[np.uint8]) -> int:
    """How many bytes the lines with a line end take: up to the last one, 0 if there is none."""
    for looked_at in (_NEAR_NBYTES, len(codes)):
        if ends := codes[-looked_at:].tobytes().rfind(b"\n") + 1:
            return max(len(codes) - looked_at, 0) + ends
    return 0


def _objects_in(block: bytes) -> int:
    """The number of lines if each begins with a brace and ends with one, else 0.

    Within a JSON value no closing brace is followed by an opening one. So no value goes on across such a line end, and
    a block that decodes into as many values as it has lines has one on each; else what is read of a line would depend
    on its neighbours.
    """
    codes = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(codes == ord("\n"))
    starts = np.concatenate((np.zeros(1, np.int64), ends[:-1] + 1))
    good = np.all(codes[starts] == ord("{")) and np.all(codes[ends - 1] == ord("}"))
    return len(ends) if good else 0
