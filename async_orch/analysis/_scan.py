"""Reads whole logs into frames, large files in several processes."""

from __future__ import annotations

import os
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Final

from async_orch.analysis._consistency import step_contradictions
from async_orch.analysis._fields import Kind
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._log_frames import LogFrames
from async_orch.analysis._markers import anchors_of
from async_orch.analysis._part_file import PartHeader, PartRead
from async_orch.analysis._parts import Division, Part, divided
from async_orch.analysis._sort import Sorter
from async_orch.analysis._sources import Source, chunks, opened
from async_orch.analysis._unique import first_of_each_step

__all__ = ["Scanner", "read_frames"]

# Some thousand lines: enough for numpy to be busy with them and not with being called, and still in the cache.
_CHUNK_NBYTES: Final = 1 << 20
_MAX_MAPPED: Final = 64  # outputs of children that keep a descriptor each; of so many logs, copying them is little


class Scanner(Sorter):
    """Takes the bytes of logs in pieces, as they come, and gives frames at any time.

    `feed` takes the next piece of the current log and `end` says that it is over; `read` does both for a source.
    """

    _outputs = 0  # of children, up to now

    def read(self, source: Source) -> None:
        """Take all of a source, of a large file in several processes. Raises `OSError` if it cannot be read."""
        if isinstance(source, str | os.PathLike):
            path = Path(source)
            with divided(path) as division:
                if division is not None:
                    self._read_divided(division)
                    return
        with opened(source, self._pieces.damaged.append) as stream:
            for data in chunks(stream, _CHUNK_NBYTES):
                self.feed(data)
        self.end()

    def _read_divided(self, division: Division) -> None:
        file, parts = division.file, division.parts
        found: dict[int, PartRead] = {}
        reader = Scanner(self._templates)
        for number in division.draw():
            if (read := reader.read_part(file, parts[number], number)).header.steps_only:
                found[number] = read
        self._outputs += len(division.children)
        found |= division.collect(mapped=self._outputs <= _MAX_MAPPED)
        self._flush()
        for number, part in enumerate(parts):
            if number in found:
                self._take_part(found.pop(number))
            else:
                self._read_range(file, part)
        # What stands after the last line end, and what was written since.
        self._at_start = False
        file.seek(parts[-1].end)
        while data := file.read(_CHUNK_NBYTES):
            self.feed(data)
        self.end()

    def _take_part(self, part: PartRead) -> None:
        header = part.header
        kinds = [Kind(*kind) for kind in header.kinds]
        for block in part.blocks:
            self._steps.append(block, kinds)
        self._steps.invalid += header.invalid
        self._steps.unknown_schema += header.unknown_schema
        rows = sum(len(block.kinds) for block in part.blocks)
        steps = rows + header.invalid + header.unknown_schema
        self._pieces.take_counts(header.lines, steps, header.other_events, header.skipped, header.runs)

    def _read_range(self, file: FileIO, part: Part, *, steps_only: bool = False) -> bool:
        """Take a part of a file. False, and not all of it is read, if it holds more than steps and they are wanted."""
        start, end = part
        self._at_start = start == 0
        file.seek(start)
        while start < end and (count := self._take_some(file, min(_CHUNK_NBYTES, end - start))):
            start += count
            if steps_only and self._pieces.more_than_steps:
                return False
        if not self._splitter.is_empty:
            self.end()  # a part ends with a line end: the file became shorter, and its last line was cut off
        self._flush()
        return True

    def _take_some(self, file: FileIO, nbytes: int) -> int:
        """Take the next bytes of a log, `nbytes` at most; returns how many, 0 at the file's end."""
        if self._is_between_lines and (taken := self._take_in_place(file, nbytes)):
            return taken
        # A log's first line, or one that is longer than `nbytes`: what ends it, so that the next lines can be in place.
        data = file.read(nbytes)
        taken = data.find(b"\n") + 1 or len(data)
        file.seek(taken - len(data), os.SEEK_CUR)
        self.feed(data[:taken])
        return taken

    def read_part(self, file: FileIO, part: Part, number: int) -> PartRead:
        """Read a part of a file, as part `number`, and forget it; only that it is more than steps, if so.

        Raises `OSError`.
        """
        try:
            if not self._read_range(file, part, steps_only=True):
                return PartRead(PartHeader(number, steps_only=False), [])
            reading = self._pieces.reading()
            blocks, kinds = self._steps.blocks()
            header = PartHeader(
                number=number,
                steps_only=True,
                lines=reading.lines,
                invalid=self._steps.invalid,
                unknown_schema=self._steps.unknown_schema,
                other_events=reading.other_events,
                skipped=reading.skipped,
                runs=self._pieces.runs,
                kinds=[list(kind) for kind in kinds],
            )
            return PartRead(header, blocks)
        finally:
            self._start_anew()

    def leave_out(self, why: str) -> None:
        """Note a source that could not be read, in words; what came of it before that is kept."""
        self.end()
        self._pieces.unread.append(why)

    def frames(self) -> LogFrames:
        """What was read up to now. A second record of a step is dropped, and counted as skipped."""
        self._flush()
        blocks, kinds = self._steps.blocks()
        steps, duplicates = first_of_each_step(StepFrame(blocks, kinds))
        reading = self._pieces.reading()
        skipped = dict(reading.skipped)
        of_steps = {
            "invalid": self._steps.invalid,
            "unknown_schema": self._steps.unknown_schema,
            "duplicate": duplicates,
        }
        for kind, count in of_steps.items():
            if count:
                skipped[kind] = skipped.get(kind, 0) + count
        anchors = (*anchors_of(self._pieces.runs), *self._anchors)
        return LogFrames(
            steps=steps,
            host_orch=self._lines,
            spans=self._spans,
            phases=self._phases,
            anchors=anchors,
            opened=dict(self._pieces.runs),
            reading=replace(
                reading,
                steps=reading.steps - sum(of_steps.values()),
                step_contradictions=step_contradictions(steps),
                skipped=dict(sorted(skipped.items(), key=lambda item: (-item[1], item[0]))),
            ),
        )


def read_frames(*sources: Source) -> LogFrames:
    """Read logs into frames: paths, or anything with ``read(size) -> bytes``; gzip and zstd as well as text.

    Fields that no figure and no group depends on (``level``, ``timestamp``, ``step_id``, ``attrs``, ``error``,
    ``stage``) are not looked at: a record may lack them.
    Raises `OSError` if one cannot be opened or read; what a log holds never raises.
    """
    scanner = Scanner()
    for source in sources:
        scanner.read(source)
    return scanner.frames()
