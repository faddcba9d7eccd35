"""Markers of host-side runtimes: ``[STRACE]`` spans, ``[CLOCK_ANCHOR]`` and ``bind phase=`` lines, and their prefixes.

Each occurs anywhere in a physical line, behind one of two prefixes or none::

    [mono_ns=41110000][T0x29][TIMING] emit_host_span: [STRACE] v=1 pid=41 tid=41 inv=7 hid=9f3c depth=1 name=chip.run.bind ts=1190000 dur=1520000
    [2026-08-04 10:00:00.000001][T0x1][TIMING] emit_span: [strace.h:132] [STRACE] v=1 pid=1 ...
    [mono_ns=1000000][T0x29][TIMING] clock_anchor: [CLOCK_ANCHOR] v=1 pid=41 mono_ns=1000000 wall_ns=1700000000000000000
    [mono_ns=41160000][T0x29][TIMING] bind: bind phase=host_orch start_ns=1500000 dur_ns=847818 tasks=47

Keys stand before values with one ``=``, separated by spaces; values are percent-encoded, and one that ends with ``~``
was cut off by its writer. A figure counts only where white space or a line end follows it: anything else may be the
start of another line that was written into this one.
"""  # noqa: E501 - lines of a log are shown as they are

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes

__all__ = ["ANCHOR_MARK", "PHASE_MARK", "SPAN_MARK", "BindPhase", "ClockAnchor", "Marker", "Span", "Unread", "parse_at"]

SPAN_MARK: Final = b"[STRACE]"
ANCHOR_MARK: Final = b"[CLOCK_ANCHOR]"
PHASE_MARK: Final = b"bind phase="

_MAX_DURATION: Final = 2**53
_MAX_CLOCK: Final = 2**62
_MAX_ID: Final = 2**62
_VERSION: Final = 1

_PAIR: Final = re.compile(rb"[ \t]+([A-Za-z_][A-Za-z0-9_]*)=([^\s=\[\]]*)(?=[ \t\r]|\Z)")
_OPEN_TAIL: Final = re.compile(rb"[ \t]*[A-Za-z0-9_]*\Z")  # nothing, or the first part of another key
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,18}")
_PREFIX: Final = re.compile(
    rb"\[(?:mono_ns=(?P<mono>[0-9]{1,19})|[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]{8,15})\]"
    rb"\[T(?P<thread>0x[0-9a-fA-F]{1,16})\]\[(?P<level>[A-Z]+)\]"
)
_PHASE_NAME: Final = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*(?=[ \t\r]|\Z)")


class Span(NamedTuple):
    """One ``[STRACE]`` span: a named stretch of time of one invocation.

    Spans of one (``pid``, ``inv``) form a tree by their ``depth``, 0 is the root. ``ts_ns`` and ``dur_ns`` are
    nanoseconds on the process's monotonic clock, or on the device's own where ``device_clock`` is true. ``attrs`` are
    the other keys, decoded. ``cut`` says that the writer cut a value off. ``logged_mono_ns`` is the time in the
    line's prefix, if it has one.
    """

    pid: int
    tid: int
    inv: int
    hid: str
    depth: int
    name: str
    ts_ns: int
    dur_ns: int
    device_clock: bool
    attrs: dict[str, str]
    cut: bool
    logged_mono_ns: int | None


class ClockAnchor(NamedTuple):
    """One moment on two clocks: ``wall_ns`` since 1970 was ``mono_ns`` on the monotonic clock of process ``pid``.

    A record of that process is at ``wall_ns + its time - mono_ns``.
    """

    pid: int
    mono_ns: int
    wall_ns: int


class BindPhase(NamedTuple):
    """One phase of binding a run: ``dur_ns`` from ``start_ns`` on the monotonic clock, both in nanoseconds.

    ``thread`` is the writer's thread as the line's prefix names it, empty without one. ``attrs`` are the other keys.
    """

    name: str
    start_ns: int
    dur_ns: int
    thread: str
    attrs: dict[str, str]


class Unread(NamedTuple):
    """A marker that could not be read: the kind to count it under, and where to go on."""

    kind: str
    end: int


Marker: TypeAlias = Span | ClockAnchor | BindPhase


def parse_at(line: bytes, start: int, after_mark: int, *, open_end: bool) -> tuple[Marker, int] | Unread:
    """The marker whose mark is ``line[start:after_mark]``, and the position after it.

    `open_end` says that nothing is known to follow the line, not even its end: a figure there may be cut off.
    """
    mark = line[start:after_mark]
    head: bytes | None = None
    position = after_mark
    if mark == PHASE_MARK:
        name = _PHASE_NAME.match(line, after_mark)
        if name is None:
            return Unread("torn", after_mark)
        head, position = name.group(), name.end()
    pairs: dict[bytes, bytes] = {}
    while (pair := _PAIR.match(line, position)) is not None:
        if pair[1] in pairs or line.startswith(PHASE_MARK, pair.start(1) - len(b"bind ")):
            break  # a key that comes again belongs to another record, written into this one
        pairs[pair[1]] = pair[2]
        position = pair.end()
    whole = not (open_end and _OPEN_TAIL.match(line, position)) and not _runs_on(line, position)
    prefix = _prefix_before(line, start)
    if mark == PHASE_MARK:
        return _phase(head or b"", pairs, prefix, position, whole=whole)
    if mark == ANCHOR_MARK:
        return _anchor(pairs, position, whole=whole)
    return _span(pairs, prefix, position, whole=whole)


def _runs_on(line: bytes, position: int) -> bool:
    """Whether the text at `position` is a pair that does not parse: the record is damaged there."""
    rest = line[position : position + 120].lstrip(b" \t")
    return re.match(rb"[A-Za-z_][A-Za-z0-9_]*=", rest) is not None and not rest.startswith(b"phase=")


def _prefix_before(line: bytes, start: int) -> re.Match[bytes] | None:
    found = list(_PREFIX.finditer(line, max(0, start - 400), start))
    return found[-1] if found else None


def _number(pairs: dict[bytes, bytes], key: bytes) -> int | None:
    text = pairs.get(key)
    return None if text is None or _NUMBER.fullmatch(text) is None else int(text)


def _text(value: bytes) -> str:
    return unquote_to_bytes(value).decode("utf-8", "replace")


def _bad(pairs: dict[bytes, bytes], required: tuple[bytes, ...], end: int, *, whole: bool) -> Unread | None:
    """Why a marker of ours cannot be read, or None if all that is required is there."""
    if b"v" in pairs and pairs[b"v"] != b"%d" % _VERSION:
        return Unread("unknown_schema" if _NUMBER.fullmatch(pairs[b"v"]) else "torn", end)
    if not whole or any(key not in pairs or not pairs[key] for key in required):
        return Unread("torn", end)
    return None


def _span(
    pairs: dict[bytes, bytes], prefix: re.Match[bytes] | None, end: int, *, whole: bool
) -> tuple[Span, int] | Unread:
    required = (b"v", b"pid", b"tid", b"inv", b"hid", b"depth", b"name", b"ts", b"dur")
    bad = _bad(pairs, required, end, whole=whole)
    if bad is not None:
        return bad
    pid, tid, inv, depth = (_number(pairs, key) for key in (b"pid", b"tid", b"inv", b"depth"))
    ts, dur = _number(pairs, b"ts"), _number(pairs, b"dur")
    if pid is None or tid is None or inv is None or depth is None or ts is None or dur is None:
        return Unread("invalid", end)
    if max(pid, tid, inv) > _MAX_ID or depth > 1000 or ts > _MAX_CLOCK or dur > _MAX_DURATION:
        return Unread("invalid", end)
    rest = {key.decode(): value for key, value in pairs.items() if key not in required and key != b"clk"}
    cut = any(value.endswith(b"~") for value in pairs.values())
    mono = None if prefix is None or prefix["mono"] is None else int(prefix["mono"])
    return (
        Span(
            pid,
            tid,
            inv,
            _text(pairs[b"hid"]),
            depth,
            _text(pairs[b"name"]),
            ts,
            dur,
            pairs.get(b"clk") == b"dev",
            {key: _text(value.removesuffix(b"~")) for key, value in rest.items()},
            cut,
            mono,
        ),
        end,
    )


def _anchor(pairs: dict[bytes, bytes], end: int, *, whole: bool) -> tuple[ClockAnchor, int] | Unread:
    bad = _bad(pairs, (b"v", b"pid", b"mono_ns", b"wall_ns"), end, whole=whole)
    if bad is not None:
        return bad
    pid, mono, wall = _number(pairs, b"pid"), _number(pairs, b"mono_ns"), _number(pairs, b"wall_ns")
    if pid is None or mono is None or wall is None or max(pid, mono, wall) > _MAX_CLOCK:
        return Unread("invalid", end)
    return ClockAnchor(pid, mono, wall), end


def _phase(
    name: bytes, pairs: dict[bytes, bytes], prefix: re.Match[bytes] | None, end: int, *, whole: bool
) -> tuple[BindPhase, int] | Unread:
    bad = _bad(pairs, (b"start_ns", b"dur_ns"), end, whole=whole)
    if bad is not None:
        return bad
    start, dur = _number(pairs, b"start_ns"), _number(pairs, b"dur_ns")
    if start is None or dur is None or start > _MAX_CLOCK or dur > _MAX_DURATION:
        return Unread("invalid", end)
    attrs = {key.decode(): _text(value) for key, value in pairs.items() if key not in (b"start_ns", b"dur_ns")}
    thread = "" if prefix is None else prefix["thread"].decode()
    return BindPhase(name.decode(), start, dur, thread, attrs), end


def anchors_of(runs: dict[str, dict[str, Any]]) -> list[ClockAnchor]:
    """The anchors that ``orchestrator.opened`` events hold, where they are numbers."""
    found = []
    for opening in runs.values():
        values = [opening.get(name) for name in ("pid", "mono_ns", "wall_ns")]
        if all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
            found.append(ClockAnchor(*values))  # type: ignore[arg-type] # three integers, as was looked at
    return found
