"""Finds the records in one physical line, whatever they are mixed with.

A record is read whole or counted as skipped; nothing is repaired or guessed. Each skipped piece has a kind:

``torn``
    The beginning of a record that is cut off, interleaved with another line, or damaged.
``invalid``
    A whole record with a field missing, of the wrong type, negative or larger than can be meant.
``unknown_schema``
    A whole record of a schema that this version does not know.
``duplicate``
    A second record of the same step (`read_frames` only).
``foreign``
    A line of text that holds nothing of ours: what lies around the records in a real log.
``undecodable``
    The same, and it is not UTF-8 either.
``too_long``
    A line of more than `async_orch.analysis.MAX_LINE_NBYTES`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec

from async_orch.analysis import _host_orch, _markers
from async_orch.analysis._markers import BindPhase, ClockAnchor, Span
from async_orch.analysis._reading import Contradiction, Reading
from async_orch.logs import SCHEMAS_READ, HostOrch, StepRecord

__all__ = ["DECODE_ERRORS", "PieceReader", "Record"]

Record: TypeAlias = StepRecord | HostOrch | Span | BindPhase | ClockAnchor

# The start of a piece of ours inside a physical line. Our encoder writes "event" first; records that another
# encoder wrote with the keys in another order are still read where they have a line to themselves.
_PIECE: Final = re.compile(
    rb'host-orch:|\[STRACE\]|\[CLOCK_ANCHOR\]|bind phase=|\{\s*"event"\s*:\s*"(?:orchestrator|ring|device|loop|step)\.'
)
# Strings (also one that never ends) and braces: enough to find where an object closes, in one pass.
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
_INSIDE: Final = re.compile(rb"[:,\[]\s*\Z")
_MAX_TORN_A_LINE: Final = 8  # each costs a pass over the rest of the line
_MAX_CONTRADICTIONS_KEPT: Final = 5
_MAX_RUNS_KEPT: Final = 10_000
_STEP_EVENTS: Final = frozenset({"step.completed", "step.failed", "step.cancelled", "step.detached"})
_OTHER_EVENTS: Final = ("orchestrator.", "ring.", "device.", "loop.", "step.")
_HINTS: Final = (
    (b"\xff\xfe", "it looks like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "it looks like UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`"),
)
_BOM: Final = b"\xef\xbb\xbf"


class _Head(msgspec.Struct):
    event: Any = None
    schema: Any = None
    run_id: Any = None
    config: Any = None
    pid: Any = None
    mono_ns: Any = None
    wall_ns: Any = None


_decode_step: Final = msgspec.json.Decoder(StepRecord).decode
_decode_head: Final = msgspec.json.Decoder(_Head).decode
_decode_any: Final = msgspec.json.Decoder(dict[str, Any]).decode
DECODE_ERRORS: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class PieceReader:
    """Reads what is not one good step record on a line of its own, and counts everything."""

    def __init__(self) -> None:
        self.lines = 0
        self.counts: dict[type[Any], int] = dict.fromkeys((StepRecord, HostOrch, Span, BindPhase, ClockAnchor), 0)
        self.other_events = 0
        self.skipped: dict[str, int] = {}
        self.contradictions = 0
        self.first_contradictions: list[Contradiction] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.damaged: list[str] = []
        self.unread: list[str] = []
        self.hint: str | None = None

    def reading(self) -> Reading:
        """The counts up to now."""
        modes = {run: opened["config"]["mode"] for run, opened in self.runs.items() if _has_mode(opened)}
        return Reading(
            lines=self.lines,
            steps=self.counts[StepRecord],
            host_orch_lines=self.counts[HostOrch],
            spans=self.counts[Span],
            bind_phases=self.counts[BindPhase],
            clock_anchors=self.counts[ClockAnchor],
            other_events=self.other_events,
            skipped=dict(sorted(self.skipped.items(), key=lambda item: (-item[1], item[0]))),
            contradictions=self.contradictions,
            first_contradictions=tuple(self.first_contradictions),
            modes=modes,
            damaged=tuple(self.damaged),
            unread=tuple(self.unread),
            hint=self.hint,
        )

    @property
    def more_than_steps(self) -> bool:
        """Whether anything was found that is not in the columns of steps, or in counts."""
        others = sum(count for kind, count in self.counts.items() if kind is not StepRecord)
        return bool(others or self.hint or self.contradictions)

    def skip(self, kind: str, count: int = 1) -> None:
        """Count pieces that give no record."""
        if count:
            self.skipped[kind] = self.skipped.get(kind, 0) + count

    def take_counts(
        self, lines: int, steps: int, other_events: int, skipped: dict[str, int], runs: dict[str, dict[str, Any]]
    ) -> None:
        """Add what another reader counted in a part of the log."""
        self.lines += lines
        self.counts[StepRecord] += steps
        self.other_events += other_events
        for kind, count in skipped.items():
            self.skip(kind, count)
        for run_id, opened in runs.items():
            if len(self.runs) < _MAX_RUNS_KEPT:
                self.runs.setdefault(run_id, opened)

    def look_at_start(self, line: bytes) -> bytes:
        """The first line of a source without a byte order mark; keeps a hint where its first bytes tell."""
        self.hint = self.hint or next((hint for magic, hint in _HINTS if line.startswith(magic)), None)
        return line.removeprefix(_BOM)

    def read_line(self, line: bytes, *, open_end: bool = False) -> Iterator[Record]:
        """Every record in one physical line, without its line end; `lines` counts it already.

        `open_end`: no line end was seen, so that the line may be cut off.
        """
        if line.startswith(b"{"):
            try:
                record = _decode_step(line)
            except DECODE_ERRORS:
                pass  # not a record of ours with a line to itself; looked at closely below
            else:
                if record.schema in SCHEMAS_READ:
                    self.counts[StepRecord] += 1
                    yield record
                else:
                    self.skip("unknown_schema")
                return
        if line and not line.isspace() and not self._read_event(line):
            yield from self._read_mixed(line, open_end=open_end)

    def _read_event(self, line: bytes) -> bool:
        """Whether the line is an event of ours, but no good step record; counts it if so."""
        if not line.startswith(b"{"):
            return False
        try:
            head = _decode_head(line)
        except DECODE_ERRORS:
            return False
        if not isinstance(head.event, str):
            return False
        if head.event in _STEP_EVENTS:
            self.skip("invalid" if head.schema in SCHEMAS_READ else "unknown_schema")
            return True
        if head.event.startswith(_OTHER_EVENTS):
            self._take_event(head, line)
            return True
        return False

    def _take_event(self, head: _Head, text: bytes) -> None:
        """Count an event of ours that is no step's end, and keep it if it opens a run."""
        if head.event == "orchestrator.opened" and isinstance(head.run_id, str) and len(self.runs) < _MAX_RUNS_KEPT:
            try:
                opened = _decode_any(text)
            except DECODE_ERRORS:
                self.skip("torn")  # damage where the head does not look, such as bytes that are not UTF-8
                return
            self.runs.setdefault(head.run_id, opened)
        self.other_events += 1

    def _read_mixed(self, line: bytes, *, open_end: bool) -> Iterator[Record]:
        found = False
        torn_objects = 0
        torn_step = False
        position = 0
        while (mark := _PIECE.search(line, position)) is not None:
            found = True
            position = mark.end()
            record: Record | None
            if mark.group() == _host_orch.MARK:
                record, position = self._read_host_orch(line, mark.start(), position)
            elif not mark.group().startswith(b"{"):
                record, position = self._read_marker(line, mark.start(), position, open_end=open_end)
            elif torn_step and _INSIDE.search(line, max(0, mark.start() - 16), mark.start()):
                continue  # a value inside the torn object before it, not a record of its own
            elif torn_objects >= _MAX_TORN_A_LINE:
                self.skip("torn")
                continue
            else:
                record, position, whole = self._read_object(line, mark.start(), position)
                torn_objects += not whole
                torn_step |= not whole and mark.group().endswith(b"step.")  # other events hold no events
            if record is not None:
                yield record
        if not found:
            self.skip(_kind_of_stranger(line))

    def _read_marker(
        self, line: bytes, start: int, after_mark: int, *, open_end: bool
    ) -> tuple[_markers.Marker | None, int]:
        found = _markers.parse_at(line, start, after_mark, open_end=open_end)
        if isinstance(found, _markers.Unread):
            self.skip(found.kind)
            return None, max(found.end, after_mark)
        self.counts[type(found[0])] += 1
        return found

    def _read_host_orch(self, line: bytes, start: int, after_mark: int) -> tuple[HostOrch | None, int]:
        parsed = _host_orch.parse_at(line, start)
        if parsed is None:
            self.skip("torn")
            return None, after_mark
        record, end = parsed
        if not _host_orch.is_sensible(record):
            self.skip("invalid")
            return None, end
        self.counts[HostOrch] += 1
        text = _host_orch.contradiction(record)
        if text is not None:
            self.contradictions += 1
            if len(self.first_contradictions) < _MAX_CONTRADICTIONS_KEPT:
                self.first_contradictions.append(Contradiction(self.lines, text))
        return record, end

    def _read_object(self, line: bytes, start: int, after_mark: int) -> tuple[StepRecord | None, int, bool]:
        """The record, where to go on, and whether the object was whole (it may still be invalid)."""
        end = _end_of_object(line, start)
        if end is None:
            self.skip("torn")
            return None, after_mark, False
        piece = line[start:end]
        try:
            record = _decode_step(piece)
        except DECODE_ERRORS:
            try:
                head = _decode_head(piece)
            except DECODE_ERRORS:
                self.skip("torn")
                return None, after_mark, False
            if isinstance(head.event, str) and head.event not in _STEP_EVENTS and head.event.startswith(_OTHER_EVENTS):
                self._take_event(head, piece)
            else:
                self.skip("invalid" if head.schema in SCHEMAS_READ else "unknown_schema")
            return None, end, True
        if record.schema not in SCHEMAS_READ:
            self.skip("unknown_schema")
            return None, end, True
        self.counts[StepRecord] += 1
        return record, end, True


def _has_mode(opened: dict[str, Any]) -> bool:
    config = opened.get("config")
    return isinstance(config, dict) and isinstance(config.get("mode"), str)


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
        except DECODE_ERRORS:
            return "torn"
    return "foreign"
