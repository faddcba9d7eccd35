"""A large log read in parts by several processes gives what one process gives."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from async_orch.analysis import LogFrames, StepFrame, _parts, read_frames
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
    assert sum(part.header.rows for part in found.values()) == 2000


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
