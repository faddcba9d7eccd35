"""Reads whole logs into frames: step records by the block, everything else piece by piece."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from async_orch.analysis._columns import LineRows
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._lines import MAX_LINE_NBYTES, LineSplitter
from async_orch.analysis._markers import BindPhase, ClockAnchor, Span
from async_orch.analysis._parts import PartHeader, PartProcess, divided, receive, send
from async_orch.analysis._pieces import DECODE_ERRORS, PieceReader, Reading, Record
from async_orch.analysis._sources import Source, opened
from async_orch.analysis._spans import PhaseFrame, SpanFrame
from async_orch.analysis._table import FIGURE_FIELDS, Figures, Kind, StepTable
from async_orch.analysis._unique import first_of_each_step
from async_orch.logs import SCHEMAS_READ, HostOrch, StepRecord

__all__ = ["LogFrames", "Scanner", "read_frames"]

# Some 200 lines: what was decoded from them is still in the cache when the columns are made.
_CHUNK_NBYTES: Final = 1 << 17
_MAX_ANCHORS: Final = 1 << 20

_decoder: Final = msgspec.json.Decoder(Figures)
_decode_block: Final = _decoder.decode_lines
_decode_line: Final = _decoder.decode


@dataclass(frozen=True, slots=True)
class LogFrames:
    """Everything of use in one or more logs.

    ``steps``: step records. ``host_orch``: ``host-orch:`` lines. ``spans``: ``[STRACE]`` spans. ``phases``: ``bind
    phase=`` lines. ``anchors``: clock anchors, those in ``orchestrator.opened`` too. ``opened``: that event, by run.
    ``reading``: what was read and skipped.
    """

    steps: StepFrame
    host_orch: LineRows
    spans: SpanFrame
    phases: PhaseFrame
    anchors: tuple[ClockAnchor, ...]
    opened: dict[str, dict[str, Any]]
    reading: Reading


class Scanner:
    """Takes the bytes of logs in pieces, as they come, and gives frames at any time.

    `feed` takes the next piece of the current log and `end` says that it is over; `read` does both for a source.
    """

    def __init__(self) -> None:
        self._pieces = PieceReader()
        self._splitter = LineSplitter()
        self._at_start = True
        self._steps = StepTable()
        self._single: list[StepRecord] = []
        self._lines = LineRows()
        self._spans = SpanFrame()
        self._phases = PhaseFrame()
        self._anchors: list[ClockAnchor] = []

    def read(self, source: Source) -> None:
        """Take all of a source, of a large file in several processes. Raises `OSError` if it cannot be read."""
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            with divided(path) as (first_end, parts):
                if parts:
                    self._read_divided(path, first_end, parts)
                    return
        with opened(source, self._pieces.damaged.append) as stream:
            while data := stream.read(_CHUNK_NBYTES):
                self.feed(data)
        self.end()

    def _read_divided(self, path: Path, first_end: int, parts: list[PartProcess]) -> None:
        self.read_range(path, 0, first_end, at_start=True)
        for part in parts:
            found = receive(part)
            if found is None:
                self.read_range(path, part.start, part.end)
                continue
            header, block = found
            self._flush()
            self._steps.append(block, [Kind(*kind) for kind in header.kinds])
            self._steps.invalid += header.invalid
            self._pieces.take_counts(
                header.lines, header.rows + header.invalid, header.other_events, header.skipped, header.runs
            )
        # What stands after the last line end, and what was written since.
        with path.open("rb") as file:
            file.seek(parts[-1].end)
            while data := file.read(_CHUNK_NBYTES):
                self.feed(data)
        self.end()

    def read_range(self, path: Path, start: int, end: int, *, at_start: bool = False) -> None:
        """Take the bytes from `start` to `end` of a file, which are whole lines. Raises `OSError`."""
        self._at_start = at_start
        with path.open("rb") as file:
            file.seek(start)
            while start < end and (data := file.read(min(_CHUNK_NBYTES, end - start))):
                start += len(data)
                self.feed(data)

    def send_part(self, target: IO[bytes]) -> None:
        """Write what was read for `_read_divided` of another process; only that it is more than steps, if so."""
        self._flush()
        reading = self._pieces.reading()
        others = (reading.host_orch_lines, reading.spans, reading.bind_phases, reading.clock_anchors, reading.hint)
        if any(others):
            send(target, PartHeader(steps_only=False), {}, np.empty(0, np.int64))
            return
        blocks, kinds = self._steps.blocks()
        frame = StepFrame(blocks, kinds)
        header = PartHeader(
            steps_only=True,
            rows=len(frame),
            lines=reading.lines,
            invalid=self._steps.invalid,
            other_events=reading.other_events,
            skipped=reading.skipped,
            runs=self._pieces.runs,
            kinds=[list(kind) for kind in kinds],
        )
        send(target, header, {name: frame.column(name) for name in FIGURE_FIELDS}, frame.kind.astype(np.int64))

    def feed(self, data: bytes) -> None:
        """Take the next piece of the current log."""
        for block in self._splitter.feed(data):
            self._block(block, open_end=False)

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

    def frames(self) -> LogFrames:
        """What was read up to now. A second record of a step is dropped, and counted as skipped."""
        self._flush()
        blocks, kinds = self._steps.blocks()
        steps, duplicates = first_of_each_step(StepFrame(blocks, kinds))
        reading = self._pieces.reading()
        skipped = dict(reading.skipped)
        for kind, count in (("invalid", self._steps.invalid), ("duplicate", duplicates)):
            if count:
                skipped[kind] = skipped.get(kind, 0) + count
        anchors = (*_anchors_of(self._pieces.runs), *self._anchors)
        return LogFrames(
            steps=steps,
            host_orch=self._lines,
            spans=self._spans,
            phases=self._phases,
            anchors=anchors,
            opened=dict(self._pieces.runs),
            reading=replace(
                reading,
                steps=reading.steps - self._steps.invalid - duplicates,
                skipped=dict(sorted(skipped.items(), key=lambda item: (-item[1], item[0]))),
            ),
        )

    def _block(self, block: bytes | None, *, open_end: bool) -> None:
        if block is None:
            self._pieces.lines += 1
            self._pieces.skip("too_long")
            self._at_start = False
            return
        if self._at_start or open_end or len(block) > MAX_LINE_NBYTES or not self._take_whole(block):
            self._take_lines(block, open_end=open_end)

    def _take_whole(self, block: bytes) -> bool:
        """Take a block that holds nothing but a good step record on each line; False if it is not one."""
        try:
            records = _decode_block(block)
        except DECODE_ERRORS:
            return False
        if len(records) != block.count(b"\n") or any(record.schema not in SCHEMAS_READ for record in records):
            return False
        self._pieces.lines += len(records)
        self._pieces.counts[StepRecord] += len(records)
        self._steps.extend(records)
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
                    if record.schema in SCHEMAS_READ:
                        good.append(record)
                    else:
                        pieces.skip("unknown_schema")
                    continue
            for piece in pieces.read_line(line, open_end=open_end):
                self._add(piece)
        pieces.counts[StepRecord] += len(good)
        self._steps.extend(good)

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
        self._steps.extend(self._single)
        self._single.clear()


def _anchors_of(runs: dict[str, dict[str, Any]]) -> list[ClockAnchor]:
    """The anchors that ``orchestrator.opened`` events hold, where they are numbers."""
    found = []
    for opening in runs.values():
        values = [opening.get(name) for name in ("pid", "mono_ns", "wall_ns")]
        if all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
            found.append(ClockAnchor(*values))  # type: ignore[arg-type] # three integers, as was looked at
    return found


def read_frames(*sources: Source) -> LogFrames:
    """Read logs into frames: paths, or anything with ``read(size) -> bytes``; gzip and zstd as well as text.

    Raises `OSError` if one cannot be opened or read; what a log holds never raises.
    """
    scanner = Scanner()
    for source in sources:
        scanner.read(source)
    return scanner.frames()
