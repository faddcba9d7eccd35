"""Reads step records and ``host-orch:`` lines out of whatever they are mixed with.

A record is read whole or counted as skipped; nothing is repaired or guessed. Each skipped piece has a kind:

``torn``
    The beginning of a record that is cut off, interleaved with another line, or damaged.
``invalid``
    A whole record with a field missing, of the wrong type, negative or larger than can be meant.
``unknown_schema``
    A whole step record of a schema that this version does not know.
``foreign``
    A line of text that holds nothing of ours: what lies around the records in a real log.
``undecodable``
    The same, and it is not UTF-8 either.
``too_long``
    A line of more than `async_orch.analysis.MAX_LINE_NBYTES`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from async_orch.analysis import _host_orch
from async_orch.analysis._lines import ByteSource, physical_lines
from async_orch.logs import SCHEMA, HostOrch, StepRecord

__all__ = ["Contradiction", "LogReader", "Reading", "Record", "read"]

Record: TypeAlias = StepRecord | HostOrch

# The start of a piece of ours inside a physical line. Our encoder writes "event" first; records that another
# encoder wrote with the keys in another order are still read where they have a line to themselves.
_PIECE: Final = re.compile(rb'host-orch:|\{\s*"event"\s*:\s*"step\.')
# Strings (also one that never ends) and braces: enough to find where an object closes, in one pass.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
_INSIDE: Final = re.compile(rb"[:,\[]\s*\Z")
_MAX_TORN_A_LINE: Final = 8  # each costs a pass over the rest of the line
_MAX_CONTRADICTIONS_KEPT: Final = 5
_MAX_MODES_KEPT: Final = 10_000
_STEP_EVENTS: Final = frozenset({"step.completed", "step.failed", "step.cancelled", "step.detached"})
_OTHER_EVENTS: Final = ("orchestrator.", "ring.", "device.", "loop.", "step.")
_HINTS: Final = (
    (b"\x1f\x8b", "it looks gzip-compressed: pipe `gzip -dc FILE` into `async-orch analyze -`"),
    (b"\x28\xb5\x2f\xfd", "it looks zstd-compressed: pipe `zstd -dc FILE` into `async-orch analyze -`"),
    (b"\xff\xfe", "it looks like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "it looks like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"),
)
_BOM: Final = b"\xef\xbb\xbf"


class _Head(msgspec.Struct):
    event: Any = None
    schema: Any = None
    run_id: Any = None
    config: Any = None


_decode_step: Final = msgspec.json.Decoder(StepRecord).decode
_decode_head: Final = msgspec.json.Decoder(_Head).decode
_DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A ``host-orch:`` line that was read although its figures disagree: where (from 1) and how."""

    line_number: int
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader has seen so far.

    ``lines`` counts physical lines. ``steps``, ``host_orch_lines``: records read. ``other_events``: our own events that
    are no step's end, such as ``orchestrator.opened``. ``skipped``: pieces by kind, most frequent first.
    ``contradictions``: how many ``host-orch:`` lines disagree with themselves, the first few of them in
    ``first_contradictions``. ``modes``: the mode of each run whose ``orchestrator.opened`` was read. ``hint``: what to
    do if nothing could be read, where the first bytes tell.
    """

    lines: int
    steps: int
    host_orch_lines: int
    other_events: int
    skipped: dict[str, int]
    contradictions: int
    first_contradictions: tuple[Contradiction, ...]
    modes: dict[str, str]
    hint: str | None

    @property
    def records(self) -> int:
        """Records read, of both forms."""
        return self.steps + self.host_orch_lines


class LogReader:
    """Iterates over the records of one log; `reading` tells at any time what was read and what was skipped.

    It reads as it is iterated, holds one chunk of the file at a time, and can be iterated once.
    """

    def __init__(self, source: str | os.PathLike[str] | ByteSource) -> None:
        self._source = source
        self._lines = 0
        self._steps = 0
        self._host_orch_lines = 0
        self._other_events = 0
        self._skipped: dict[str, int] = {}
        self._contradictions = 0
        self._first_contradictions: list[Contradiction] = []
        self._modes: dict[str, str] = {}
        self._hint: str | None = None
        self._records = self._iterate()

    @property
    def reading(self) -> Reading:
        """What was read and skipped up to now."""
        return Reading(
            lines=self._lines,
            steps=self._steps,
            host_orch_lines=self._host_orch_lines,
            other_events=self._other_events,
            skipped=dict(sorted(self._skipped.items(), key=lambda item: (-item[1], item[0]))),
            contradictions=self._contradictions,
            first_contradictions=tuple(self._first_contradictions),
            modes=dict(self._modes),
            hint=self._hint,
        )

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def _iterate(self) -> Iterator[Record]:
        with contextlib.ExitStack() as stack:
            source: ByteSource
            if isinstance(self._source, str | os.PathLike):
                source = stack.enter_context(Path(self._source).open("rb"))
            else:
                source = self._source
            for line in physical_lines(source):
                self._lines += 1
                if line is None:
                    self._skip("too_long")
                    continue
                if self._lines == 1:
                    self._hint = next((hint for magic, hint in _HINTS if line.startswith(magic)), None)
                    line = line.removeprefix(_BOM)  # noqa: PLW2901 - the mark is no part of the line
                if line.startswith(b"{"):
                    try:
                        record = _decode_step(line)
                    except _DECODE_ERRORS:
                        pass  # not a record of ours with a line to itself; looked at closely below
                    else:
                        if record.schema == SCHEMA:
                            self._steps += 1
                            yield record
                        else:
                            self._skip("unknown_schema")
                        continue
                yield from self._read_mixed(line)

    def _skip(self, kind: str) -> None:
        self._skipped[kind] = self._skipped.get(kind, 0) + 1

    def _read_mixed(self, line: bytes) -> Iterator[Record]:
        """Everything that is not one good record on a line of its own."""
        if not line.strip():
            return
        if line.startswith(b"{"):
            try:
                head = _decode_head(line)
            except _DECODE_ERRORS:
                head = None
            if head is not None and isinstance(head.event, str):
                if head.event in _STEP_EVENTS:
                    self._skip("invalid" if head.schema == SCHEMA else "unknown_schema")
                    return
                if head.event.startswith(_OTHER_EVENTS):
                    self._other_events += 1
                    self._note_mode(head)
                    return
        found = False
        torn_objects = 0
        position = 0
        while (mark := _PIECE.search(line, position)) is not None:
            found = True
            position = mark.end()
            record: Record | None
            if mark.group() == _host_orch.MARK:
                record, position = self._read_host_orch(line, mark.start(), position)
            elif torn_objects and _INSIDE.search(line, max(0, mark.start() - 16), mark.start()):
                continue  # a value inside the torn object before it, not a record of its own
            elif torn_objects >= _MAX_TORN_A_LINE:
                self._skip("torn")
                continue
            else:
                record, position, whole = self._read_object(line, mark.start(), position)
                torn_objects += not whole
            if record is not None:
                yield record
        if not found:
            self._skip(_kind_of_stranger(line))

    def _note_mode(self, head: _Head) -> None:
        mode = head.config.get("mode") if isinstance(head.config, dict) else None
        if isinstance(head.run_id, str) and isinstance(mode, str) and len(self._modes) < _MAX_MODES_KEPT:
            self._modes[head.run_id] = mode

    def _read_host_orch(self, line: bytes, start: int, after_mark: int) -> tuple[HostOrch | None, int]:
        parsed = _host_orch.parse_at(line, start)
        if parsed is None:
            self._skip("torn")
            return None, after_mark
        record, end = parsed
        if not _host_orch.is_sensible(record):
            self._skip("invalid")
            return None, end
        self._host_orch_lines += 1
        text = _host_orch.contradiction(record)
        if text is not None:
            self._contradictions += 1
            if len(self._first_contradictions) < _MAX_CONTRADICTIONS_KEPT:
                self._first_contradictions.append(Contradiction(self._lines, text))
        return record, end

    def _read_object(self, line: bytes, start: int, after_mark: int) -> tuple[StepRecord | None, int, bool]:
        """The record, where to go on, and whether the object was whole (it may still be invalid)."""
        end = _end_of_object(line, start)
        if end is None:
            self._skip("torn")
            return None, after_mark, False
        piece = line[start:end]
        try:
            record = _decode_step(piece)
        except _DECODE_ERRORS:
            try:
                head = _decode_head(piece)
            except _DECODE_ERRORS:
                self._skip("torn")
                return None, after_mark, False
            self._skip("invalid" if head.schema == SCHEMA else "unknown_schema")
            return None, end, True
        if record.schema != SCHEMA:
            self._skip("unknown_schema")
            return None, end, True
        self._steps += 1
        return record, end, True


def _end_of_object(line: bytes, start: int) -> int | None:
    depth = 0
    for token in _TOKEN.finditer(line, start):
        text = token.group()
        if text == b"{":
            depth += 1
        elif text == b"}":
            depth -= 1
            if depth == 0:
                return token.end()
    return None


def _kind_of_stranger(line: bytes) -> str:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return "undecodable"
    if line.startswith(b"{"):
        try:
            _decode_head(line)
        except _DECODE_ERRORS:
            return "torn"
    return "foreign"


def read(source: str | os.PathLike[str] | ByteSource) -> LogReader:
    """Read a log by path, or from anything with ``read(size) -> bytes``.

    A path is opened when iteration starts. Raises `OSError` while iterating if the file cannot be opened or read;
    what the file holds never raises.
    """
    return LogReader(source)
