"""Reading records out of clean, mixed, damaged and hostile logs."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from async_orch.analysis import MAX_LINE_NBYTES, LogReader, Reading, Record, read, read_frames
from async_orch.cli import main
from async_orch.logs import SCHEMA, HostOrch, StepRecord, encode_line, host_orch_line
from tests.unit.step_records import REPORT_LINE, step_record

REPORT = HostOrch(3_678_950, 107_075_660, 105_716_560, 1_359_100, 66_488_960, 5_543_943, 51, 172)
FIXTURES = Path(__file__).parent.parent / "fixtures"


def read_bytes(data: bytes) -> tuple[list[Record], Reading]:
    reader = read(io.BytesIO(data))
    return list(reader), reader.reading


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "{}\r",
        "[mono_ns=41170000][T0x29][TIMING] bind: [runtime.cpp:812] {}",
        "[2026-08-04 10:00:00.000001][T0x1][INFO] bind: {} and more after it",
        '{{"log":"{}\\n","stream":"stdout"}}',
        "\xff\xfe {}",
    ],
)
def test_host_orch_line_is_found_anywhere(around: str) -> None:
    """Prefixes, suffixes, a container's JSON around it and a foreign encoding do not hide a line."""
    records, reading = read_bytes(around.format(REPORT_LINE).encode("latin-1"))
    assert records == [REPORT]
    assert reading.host_orch_lines == 1
    assert reading.skipped == {}


def test_records_of_both_forms_share_a_file_and_a_line() -> None:
    """Several records on one physical line, of one form or both, are all read, in their order."""
    step = step_record(seq=3, attrs={"text": 'brace } quote " {'})
    line = encode_line(step).strip()
    report = REPORT_LINE.encode()
    records, reading = read_bytes(
        b"\n".join([report + report, line + line, b"x: " + line + report, report + b" " + line, line, b"noise"])
    )
    assert records == [REPORT, REPORT, step, step, step, REPORT, REPORT, step, step]
    assert (reading.steps, reading.host_orch_lines, reading.skipped) == (5, 4, {"foreign": 1})


@pytest.mark.parametrize("cut", range(len("host-orch:"), len(REPORT_LINE)))
def test_host_orch_line_cut_anywhere_is_torn(cut: int) -> None:
    """A line cut off after its mark, be it within the last unit, gives no record and is counted."""
    records, reading = read_bytes(REPORT_LINE[:cut].encode())
    assert records == []
    assert reading.skipped == {"torn": 1}


def test_step_record_cut_anywhere_is_skipped() -> None:
    """A record cut off at any byte gives no record and is counted; what follows on the line is still read."""
    line = encode_line(step_record(attrs={"a": ["}", {"b": "\\"}]})).strip()
    for cut in range(1, len(line)):
        records, reading = read_bytes(line[:cut] + b"\n")
        assert records == []
        assert sum(reading.skipped.values()) == 1
        records, _ = read_bytes(line[:cut] + b" " + REPORT_LINE.encode())
        assert records == [REPORT]


def test_torn_record_before_a_whole_one_costs_only_itself() -> None:
    """A writer that died within a record leaves the next record on the same physical line readable."""
    line = encode_line(step_record(seq=8)).strip()
    for cut in range(len('{"event":"step.'), len(line)):
        records, reading = read_bytes(line[:cut] + line)
        # After a colon or a comma it could be a value of the torn record, so it is not taken.
        assert records == ([] if line[cut - 1 : cut] in b":,[" else [step_record(seq=8)])
        assert reading.skipped == {"torn": 1}


def test_value_inside_a_torn_record_is_no_record() -> None:
    """A record that a caller put into attrs is not taken for a step when the record around it is cut off."""
    inner = encode_line(step_record(seq=1)).strip()
    outer = encode_line(step_record(attrs={"x": 0})).strip().replace(b'{"x":0}', inner)
    assert len(read_bytes(outer)[0]) == 1
    records, reading = read_bytes(outer[: outer.index(inner) + len(inner)])
    assert records == []
    assert reading.skipped == {"torn": 1}


def _without(name: str) -> bytes:
    line = encode_line(step_record())
    return line.replace(f'"{name}"'.encode(), f'"{name}_"'.encode())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (_without("h2d_ns"), "invalid"),
        (_without("step_id"), "invalid"),
        (encode_line(step_record(build_ns=-5)), "invalid"),
        (encode_line(step_record(build_ns=2**60)), "invalid"),
        (encode_line(step_record(build_ns="7")), "invalid"),
        (encode_line(step_record(h2d_split="thirds")), "invalid"),
        (encode_line(step_record(schema=SCHEMA + 1)), "unknown_schema"),
        (_without("h2d_ns").replace(b'"schema":2', b'"schema":3'), "unknown_schema"),
        (_without("schema"), "unknown_schema"),
        (b"x" + encode_line(step_record(schema=SCHEMA + 1)), "unknown_schema"),
        (b"x" + encode_line(step_record(build_ns=-5)), "invalid"),
        (REPORT_LINE.replace("66488960", "9" * 17).encode(), "invalid"),
        (REPORT_LINE.replace("66488960", "9" * 5000).encode(), "invalid"),
        (REPORT_LINE.replace("66488960", "-66488960").encode(), "torn"),
        (REPORT_LINE.replace("66488960", "0x3f").encode(), "torn"),
        (REPORT_LINE.replace("66488960", "").encode(), "torn"),
        (REPORT_LINE.replace("66488960", "066488960").encode(), "torn"),
        ("host-orch: orch=- ns H2D=- ns (graph=- ns sm=- ns) alloc=- B copy=- B bw=- MB/s sm_bw=- MB/s", "invalid"),
        (b"FATAL: Graph Heap Exhausted!", "foreign"),
        (b'{"message":"hello","level":"info"}', "foreign"),
        (b"[1, 2, 3]", "foreign"),
        (b'{"eve', "torn"),
        (b"\x80\x81 \xff", "undecodable"),
        (b"\x00" * 40, "foreign"),
        (b"a" * (MAX_LINE_NBYTES + 1), "too_long"),
        (b'{"event":' * 50_000, "torn"),
        (b'{"event":"step.' * 50_000, "torn"),
        (b'"\\' * 300_000, "foreign"),
    ],
    ids=range(28),
)
def test_what_cannot_be_read_is_counted_by_kind(line: bytes | str, kind: str) -> None:
    """A line that gives no record is counted under what is wrong with it, and the lines around it are read."""
    data = line.encode() if isinstance(line, str) else line
    records, reading = read_bytes(REPORT_LINE.encode() + b"\n" + data.rstrip(b"\n") + b"\n" + REPORT_LINE.encode())
    assert records == [REPORT, REPORT]
    assert list(reading.skipped) == [kind]
    assert reading.lines == 3


def test_our_other_events_are_passed_over() -> None:
    """Events that are no step's end are counted apart from what could not be read; blank lines are nothing."""
    _, reading = read_bytes(b'{"event":"orchestrator.opened","schema":1}\n\n  \n{"event":"ring.grown"}\n')
    assert (reading.lines, reading.other_events, reading.skipped, reading.records) == (4, 2, {}, 0)


def test_fields_added_by_the_caller_do_not_hide_a_record() -> None:
    """A structlog processor may add keys and reorder them; a record with a line to itself is read all the same."""
    line = encode_line(step_record()).strip()
    reordered = (
        b'{"request":"r1",' + line[1:-1].replace(b'"event":"step.completed",', b"") + b',"event":"step.completed"}'
    )
    assert read_bytes(reordered)[0] == [step_record()]


@pytest.mark.parametrize(
    ("printed", "altered", "complaint"),
    [
        ("bw=51", "bw=52", "bw=52 MB/s, but copy x 1000 / H2D = 51 MB/s"),
        ("H2D=107075660", "H2D=107075661", "H2D=107075661 ns, but graph + sm = 107075660 ns"),
        ("sm_bw=172", "sm_bw=9000", "sm_bw=9000 MB/s means at least 12231900 B for sm, but copy=5543943 B"),
    ],
)
def test_line_that_disagrees_with_itself_is_reported(printed: str, altered: str, complaint: str) -> None:
    """Figures that follow from others on the line are checked, and a mismatch is reported with its line number."""
    data = f"noise\n{REPORT_LINE}\n{REPORT_LINE.replace(' ' + printed, ' ' + altered)}\n"
    records, reading = read_bytes(data.encode())
    assert len(records) == 2
    assert reading.contradictions == 1
    assert [(item.line_number, item.text) for item in reading.first_contradictions] == [(3, complaint)]


def test_only_the_first_contradictions_are_kept() -> None:
    """A log full of contradictions is counted in full, in bounded memory."""
    _, reading = read_bytes((REPORT_LINE.replace("bw=51", "bw=50") + "\n").encode() * 100)
    assert reading.contradictions == 100
    assert [item.line_number for item in reading.first_contradictions] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("start", "word"),
    [(b"\xff\xfeh\x00", "UTF-16"), (b"\xfe\xff\x00h", "UTF-16"), (b"plain", None)],
)
def test_recoded_file_is_named(start: bytes, word: str | None) -> None:
    """The first bytes of a file that cannot be read as it is tell what to do with it."""
    _, reading = read_bytes(start + b"\x00\x81\n")
    assert reading.hint is None if word is None else word in (reading.hint or "")


def test_byte_order_mark_is_no_part_of_the_first_line() -> None:
    """A UTF-8 file that an editor saved with a byte order mark reads like one without."""
    assert read_bytes(b"\xef\xbb\xbf" + encode_line(step_record()))[0] == [step_record()]
    assert read_bytes(b"\xef\xbb\xbf")[1].skipped == {}


class _Dripping(io.BytesIO):
    """Gives few bytes at a time, as a pipe may."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(7)


@pytest.mark.parametrize("kind", [io.BytesIO, _Dripping])
def test_chunks_do_not_matter(kind: Callable[[bytes], io.BytesIO]) -> None:
    """The same records come out whatever pieces the bytes arrive in, with or without a last line end."""
    data = encode_line(step_record()) + REPORT_LINE.encode() + b"\n" + b"z" * 100 + b"\n" + REPORT_LINE.encode()
    reader = LogReader(kind(data))
    assert list(reader) == [step_record(), REPORT, REPORT]
    assert reader.reading.skipped == {"foreign": 1}


@pytest.mark.parametrize("length", [MAX_LINE_NBYTES, MAX_LINE_NBYTES + 1, 3 * MAX_LINE_NBYTES + 5])
@pytest.mark.parametrize("ended", [True, False])
def test_long_line_is_dropped_as_a_whole(length: int, ended: bool) -> None:
    """A line over the bound is skipped from its first to its last byte; the next line is read."""
    long_line = b"y" * (length - len(REPORT_LINE)) + REPORT_LINE.encode()
    records, reading = read_bytes(long_line + (b"\n" + REPORT_LINE.encode() if ended else b""))
    fits = length <= MAX_LINE_NBYTES
    assert len(records) == fits + ended
    assert reading.skipped == ({} if fits else {"too_long": 1})


def test_own_lines_read_back_with_their_figures() -> None:
    """A step as a host-orch line reads back as the same figures, unknown ones included."""
    for record in (step_record(), step_record(h2d_split="bytes"), step_record(alloc_ns=None, build_ns=None)):
        (line,), reading = read_bytes(host_orch_line(record).encode())
        assert isinstance(line, HostOrch)
        assert line.line() == host_orch_line(record)
        assert reading.contradictions == 0


def test_path_is_opened_when_iterated(tmp_path: Path) -> None:
    """A path that cannot be opened raises from the iteration, as open itself does."""
    reader = read(tmp_path / "absent.jsonl")
    with pytest.raises(FileNotFoundError):
        list(reader)
    log = tmp_path / "run.jsonl"
    log.write_bytes(encode_line(step_record()))
    (record,) = read(str(log))
    assert isinstance(record, StepRecord)


def test_fixture_with_everything_in_it() -> None:
    """A log as it occurs in the field: whole records of both forms among noise, torn and foreign lines."""
    reader = read(FIXTURES / "mixed.log")
    records = list(reader)
    assert [type(record).__name__ for record in records] == [
        "HostOrch",
        "StepRecord",
        "HostOrch",
        "HostOrch",
        "StepRecord",
    ]
    assert reader.reading.skipped == {"foreign": 3, "torn": 2, "undecodable": 1}
    assert reader.reading.other_events == 1


def test_a_line_of_the_first_schema_reads_with_the_later_fields_unknown() -> None:
    """Logs written before `staging_copy_ns` and `delta_ns` existed give the same records, with None for both."""
    line = encode_line(step_record(schema=1)).replace(b',"staging_copy_ns":null,"delta_ns":null', b"")
    records, reading = read_bytes(line)
    assert records == [step_record(schema=1)]
    assert not reading.skipped


def test_steps_of_both_schemas_share_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines of schema 1 and 2 are read by the block alike; what only schema 2 has is shown for its steps."""
    new = [encode_line(step_record(seq=seq, staging_copy_ns=7_000_000 + seq, delta_ns=3)) for seq in range(4)]
    later = b',"staging_copy_ns":null,"delta_ns":null'
    old = [encode_line(step_record(seq=seq, schema=1, run_id="run-b")).replace(later, b"") for seq in range(3)]
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join([*old, *new]))
    frames = read_frames(log)
    assert (frames.reading.steps, frames.reading.skipped) == (7, {})
    assert frames.steps["staging_copy_ns"].tolist() == [None] * 3 + [7_000_000 + seq for seq in range(4)]
    assert main(["analyze", str(log)]) == 0
    text = capsys.readouterr().out
    assert len(re.findall(r"^  staging copy +4 ", text, re.MULTILINE)) == 1
    assert len(re.findall(r"^  delta +4 ", text, re.MULTILINE)) == 1
