"""Spans, anchors and bind phases: their grammar, their damage, their sums."""

from __future__ import annotations

import io

import pytest

from async_orch.analysis import BindPhase, ClockAnchor, Reading, Record, Span, analyze, read, read_frames
from tests.unit.step_records import REPORT_LINE

NEW = "[mono_ns=41110000][T0x29][TIMING] emit_host_span: "
OLD = "[2026-08-04 10:00:00.000001][T0x1][TIMING] emit_span: [strace.h:132] "
SPAN = "[STRACE] v=1 pid=41 tid=42 inv=7 hid=9f3c depth=1 name=chip.run.bind ts=1190000 dur=1520000"
ANCHOR = "[CLOCK_ANCHOR] v=1 pid=41 mono_ns=1000000 wall_ns=1700000000000000000"
PHASE = "bind phase=host_orch start_ns=1500000 dur_ns=847818 tasks=47"
EXPECTED = Span(41, 42, 7, "9f3c", 1, "chip.run.bind", 1_190_000, 1_520_000, False, {}, False, None)


def read_text(text: str) -> tuple[list[Record], Reading]:
    reader = read(io.BytesIO(text.encode()))
    return list(reader), reader.reading


@pytest.mark.parametrize(
    ("prefix", "mono"), [("", None), (NEW, 41_110_000), (OLD, None), ("worker-3: " + NEW, 41_110_000)]
)
def test_span_is_read_behind_any_prefix(prefix: str, mono: int | None) -> None:
    """Both prefixes, none, and text before them give the same span; the newer prefix also its time of logging."""
    records, reading = read_text(prefix + SPAN + "\n")
    assert records == [EXPECTED._replace(logged_mono_ns=mono)]
    assert (reading.spans, reading.skipped) == (1, {})


def test_attributes_clock_and_cut_are_read() -> None:
    """Values are percent-decoded, clk=dev is the device's clock, and a trailing tilde says that a value was cut off."""
    (span,), _ = read_text(SPAN + " clk=dev note=a%20b%3d run_id=7 long=abc~\n")
    assert isinstance(span, Span)
    assert span.device_clock
    assert span.cut
    assert span.attrs == {"note": "a b=", "run_id": "7", "long": "abc"}


def test_two_records_share_a_physical_line() -> None:
    """Records of any kinds that share a line are all read."""
    records, reading = read_text(f"{NEW}{SPAN} note=x~ {NEW}{ANCHOR} {NEW}bind: {PHASE} {NEW}{REPORT_LINE}\n")
    assert [type(record).__name__ for record in records] == ["Span", "ClockAnchor", "BindPhase", "HostOrch"]
    assert records[1] == ClockAnchor(41, 1_000_000, 1_700_000_000_000_000_000)
    assert records[2] == BindPhase("host_orch", 1_500_000, 847_818, "0x29", {"tasks": "47"})
    assert reading.skipped == {}


@pytest.mark.parametrize("text", [SPAN, ANCHOR, PHASE])
def test_marker_cut_anywhere_is_not_taken(text: str) -> None:
    """A record that ends anywhere before its last digit, at the end of the data, is counted and gives no figure."""
    mark = text.index("]") + 1 if text.startswith("[") else len("bind phase=")
    for cut in range(mark, len(text) + 1):
        records, reading = read_text(text[:cut])
        assert records == []
        assert sum(reading.skipped.values()) == 1


def test_record_written_into_another_is_told() -> None:
    """Where another line starts inside a record, a figure that it cut is not taken, and the other line is read."""
    for cut in range(len("[STRACE]"), len(SPAN)):
        records, reading = read_text(SPAN[:cut] + NEW + SPAN + "\n")
        assert EXPECTED._replace(logged_mono_ns=41_110_000) in records
        assert len(records) == 1
        assert reading.skipped == {"torn": 1}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("v=1", "v=2", "unknown_schema"),
        ("v=1 ", "", "torn"),
        ("dur=1520000", "dur=-5", "invalid"),
        ("dur=1520000", "dur=15x", "invalid"),
        ("dur=1520000", "dur=99999999999999999", "invalid"),
        ("dur=1520000", "dur=007", "invalid"),
        ("ts=1190000", "ts=", "torn"),
        ("depth=1", "depth=5000", "invalid"),
        ("pid=41", "pid=0x29", "invalid"),
        ("inv=7", "inv=7 inv=8", "torn"),
    ],
)
def test_bad_spans_are_counted_by_kind(old: str, new: str, kind: str) -> None:
    """A span of another version, negative, absurd or incomplete gives no record and is counted."""
    records, reading = read_text(SPAN.replace(old, new) + "\n" + SPAN + "\n")
    assert records == [EXPECTED]
    assert reading.skipped == {kind: 1}


def test_spans_are_grouped_by_name_and_missing_roots_counted() -> None:
    """Durations are collected by name; invocations without a span of depth 0 are counted."""
    lines = [
        f"[STRACE] v=1 pid={pid} tid=1 inv={inv} hid=a depth={depth} name=n{depth} ts=5 dur={10 * pid + inv + depth}"
        for pid in (1, 2)
        for inv in range(5)
        for depth in ((0, 1) if inv else (1,))
    ]
    summary = analyze(io.BytesIO("\n".join([*lines, ""]).encode())).summary
    assert [(group.name, group.depth, group.dur_ns.count) for group in summary.spans] == [("n0", 0, 8), ("n1", 1, 10)]
    assert summary.spans[1].dur_ns.sum == sum(10 * pid + inv + 1 for pid in (1, 2) for inv in range(5))
    assert summary.rootless_invocations == 2


def test_phases_are_summed_within_a_pass() -> None:
    """A phase that occurs twice in a pass counts once with its sum; arena_h2d closes the pass of its thread only."""
    text = "".join(
        f"[mono_ns=1][T{thread}][TIMING] bind: bind phase={name} start_ns=1 dur_ns={length}\n"
        for thread, name, length in [
            ("0x1", "host_orch", 5),
            ("0x2", "host_orch", 50),
            ("0x1", "graph_upload", 3),
            ("0x1", "graph_upload", 4),
            ("0x1", "sm2_other", 1000),
            ("0x2", "arena_h2d", 70),
            ("0x1", "arena_h2d", 7),
            ("0x1", "host_orch", 9),
        ]
    )
    phases = analyze(io.BytesIO(text.encode())).summary.phases
    assert phases is not None
    assert (phases.passes, phases.open_phases) == (2, 1)
    assert phases.phases["graph_upload"].sum == 7
    assert phases.control_plane_ns is not None
    assert (phases.control_plane_ns.min, phases.control_plane_ns.max) == (5 + 7 + 7, 50 + 70)


def test_anchors_come_from_lines_and_from_openings() -> None:
    """Clock anchors of other producers and of our own opening event are all kept."""
    opening = '{"event":"orchestrator.opened","schema":1,"run_id":"r","pid":3,"mono_ns":10,"wall_ns":20}'
    frames = read_frames(io.BytesIO(f"{ANCHOR}\n{opening}\n".encode()))
    assert frames.anchors == (ClockAnchor(3, 10, 20), ClockAnchor(41, 1_000_000, 1_700_000_000_000_000_000))
    assert frames.opened["r"]["pid"] == 3
