"""A large log read in parts by several processes gives what one process gives."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest

from async_orch.analysis import MAX_LINE_NBYTES, LogFrames, Scanner, StepFrame, _parts, read_frames
from async_orch.analysis._part_file import received, send
from async_orch.logs import encode_line
from tests.unit.step_records import REPORT_LINE, step_record

OPENED = b'{"event":"orchestrator.opened","schema":1,"run_id":"run-b","pid":3,"mono_ns":10,"wall_ns":20}\n'


def same(one: LogFrames, other: LogFrames) -> bool:
    assert one.reading == other.reading
    assert (one.opened, one.anchors) == (other.opened, other.anchors)
    assert len(one.host_orch) == len(other.host_orch)
    assert [one.steps.kinds[kind] for kind in one.steps.kind] == [other.steps.kinds[kind] for kind in other.steps.kind]
    return all((one.steps.column(name) == other.steps.column(name)).all() for name in StepFrame([], []))


@pytest.mark.parametrize(
    "between", [b"", b"noise\n", OPENED, encode_line(step_record(build_ns=-1)), (REPORT_LINE + "\n").encode()]
)
def test_parts_are_the_whole(between: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in a part, and without a last line end, the frames are those of one reader."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(_parts, "cores", lambda: 3)
    lines = [
        encode_line(step_record(seq=seq, run_id="run-a" if seq < 1500 else "run-b", build_ns=seq))
        for seq in range(2000)
    ]
    lines.insert(1100, between)
    text = b"".join(lines)[:-1]
    log = tmp_path / "run.jsonl"
    log.write_bytes(text)
    with _parts.divided(log) as division:
        assert len(division.children) == 2
        assert [part.start for part in division.parts[1:]] == [part.end for part in division.parts[:-1]]
        assert division.parts[0].start == 0
    frames = read_frames(log)
    assert same(frames, read_frames(io.BytesIO(text)))
    assert frames.reading.lines == 2000 + bool(between)


def test_children_read_every_part_that_nobody_else_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children draw parts until none is left and hand over all of them, one each."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(_parts, "cores", lambda: 3)
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(encode_line(step_record(seq=seq)) for seq in range(2000)))
    with _parts.divided(log) as division:
        found = division.collect()
        assert sorted(found) == list(range(len(division.parts)))
    assert sum(len(block.kinds) for part in found.values() for block in part.blocks) == 2000


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b"\n\n\n",
        b"x" * (MAX_LINE_NBYTES + 9) + b"\n",
        b"x" * (1 << 19) + b"\n",
        encode_line(step_record(bubble_ns=-5)),
    ],
    ids=["nothing", "blank", "too long", "long", "other"],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_reading_in_place_is_feeding(
    between: bytes, line_end: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of several megabytes, read where templates look at them, give what the same bytes give piece by piece."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 3 << 20)
    monkeypatch.setattr(_parts, "cores", lambda: 2)
    lines = [encode_line(step_record(seq=seq, build_ns=seq * 37)) for seq in range(7000)]
    lines[4500:4500] = [between]
    text = b"".join(lines).replace(b"\n", line_end)
    log = tmp_path / "run.jsonl"
    log.write_bytes(text)
    in_place = read_frames(log)
    assert same(in_place, read_frames(io.BytesIO(text)))
    assert in_place.reading.steps == 7000


def test_what_a_child_did_not_finish_is_missing(tmp_path: Path) -> None:
    """Of a file that ends anywhere, as when a child was killed, the whole parts are taken, equal to those sent."""
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(encode_line(step_record(seq=seq, slot=seq, submit_ns=seq << 40)) for seq in range(9)))
    scanner = Scanner()
    part = scanner.read_part(log, _parts.Part(0, log.stat().st_size), 3)
    sent = io.BytesIO()
    ends = []
    for _ in range(2):
        send(sent, part)
        ends.append(sent.tell())
    for size in range(ends[-1] + 1):
        with (tmp_path / "output").open("w+b") as file:
            file.write(sent.getvalue()[:size])
            file.flush()
            found = list(received(file))
        assert len(found) == sum(end <= size for end in ends)
        for one in found:
            assert msgspec.structs.replace(one.header, blocks=[]) == part.header
            (block,), (expected,) = one.blocks, part.blocks
            assert block.kinds.tolist() == expected.kinds.tolist()
            for name, values in expected.columns.items():
                assert (block.columns[name].dtype, block.columns[name].tolist()) == (values.dtype, values.tolist())


def test_output_that_is_no_part_ends_what_is_received(tmp_path: Path) -> None:
    """Whatever else a child wrote, behind whole parts or alone, is no part and no error."""
    log = tmp_path / "run.jsonl"
    log.write_bytes(encode_line(step_record()))
    sent = io.BytesIO()
    send(sent, Scanner().read_part(log, _parts.Part(0, log.stat().st_size), 0))
    for before, count in ((b"", 0), (sent.getvalue(), 1)):
        for other in (bytes([4, *bytes(7)]) + b"what is this", b"\xff" * 40):
            with (tmp_path / "output").open("w+b") as file:
                file.write(before + other)
                file.flush()
                assert len(list(received(file))) == count


def test_children_that_fail_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a child cannot be what it should be, its part is read here."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(_parts, "cores", lambda: 2)
    monkeypatch.setattr("sys.executable", "/bin/false")
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(encode_line(step_record(seq=seq)) for seq in range(1500)))
    assert read_frames(log).reading.steps == 1500


def test_small_and_compressed_logs_are_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small log is not worth a process, and a compressed one cannot be divided."""
    log = tmp_path / "log"
    log.write_bytes(b"x\n" * 1000)
    with _parts.divided(log) as division:
        assert (division.parts, division.children) == ([], [])
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1)
    log.write_bytes(b"\x1f\x8b\x08" + b"x\n" * 1_000_000)
    with _parts.divided(log) as division:
        assert (division.parts, division.children) == ([], [])
