"""A large log read in parts by several processes gives what one process gives."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import numpy as np
import pytest

from async_orch.analysis import MAX_LINE_NBYTES, LogFrames, Scanner, StepFrame, _parts, _sort, read_frames
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
    "between",
    [
        b"",
        b"noise\n",
        OPENED,
        encode_line(step_record(build_ns=-1)),
        encode_line(step_record(schema=99)),
        (REPORT_LINE + "\n").encode(),
    ],
    ids=["nothing", "noise", "a run", "a negative time", "another schema", "a report"],
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
        assert division is not None
        assert len(division.children) == 2
        assert [part.start for part in division.parts[1:]] == [part.end for part in division.parts[:-1]]
        assert division.parts[0].start == 0
    frames = read_frames(log)
    assert same(frames, read_frames(io.BytesIO(text)))
    assert frames.reading.lines == 2000 + bool(between)


def test_only_the_first_part_has_the_start_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte order mark is taken off the log's first line, and one that another part begins with tells nothing."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(_parts, "cores", lambda: 2)
    lines = [encode_line(step_record(seq=seq)) + b"\xff\xfe\n" for seq in range(1500)]
    text = b"\xef\xbb\xbf" + b'{"schema":2,"event":"ring.grown"}\n' + b"".join(lines)
    log = tmp_path / "run.jsonl"
    log.write_bytes(text)
    with _parts.divided(log) as division:
        assert division is not None
        assert all(text[part.start :].startswith(b"\xff\xfe") for part in division.parts[1:])
    frames = read_frames(log)
    assert same(frames, read_frames(io.BytesIO(text)))
    assert (frames.reading.other_events, frames.reading.hint) == (1, None)


@pytest.mark.parametrize("stranger", [None, 700])
def test_children_read_every_part_that_nobody_else_draws(
    stranger: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children draw parts until none is left and hand over all of them, one each, but one with more than steps."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(_parts, "cores", lambda: 3)
    lines = [encode_line(step_record(seq=seq)) for seq in range(2000)]
    if stranger is not None:
        lines[stranger] = REPORT_LINE.encode() + b"\n"
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(lines))
    before = len(b"".join(lines[:stranger]))
    with _parts.divided(log) as division:
        assert division is not None
        found = division.collect(mapped=True)
        wanted = [
            number
            for number, part in enumerate(division.parts)
            if stranger is None or not part.start <= before < part.end
        ]
        assert sorted(found) == wanted
        assert len(wanted) == len(division.parts) - (stranger is not None)
    for number in wanted:
        held = [seq for block in found[number].blocks for seq in block.columns["seq"].tolist()]
        start, end = division.parts[number]
        assert held == [json.loads(line)["seq"] for line in log.read_bytes()[start:end].splitlines()]


def test_a_part_of_no_number_of_ours_is_not_taken(tmp_path: Path) -> None:
    """What a child hands over under a number that no part has is left."""
    log = tmp_path / "run.jsonl"
    log.write_bytes(encode_line(step_record()))
    whole = _parts.Part(0, log.stat().st_size)
    with (
        log.open("rb", buffering=0) as source,
        (tmp_path / "output").open("w+b") as file,
        subprocess.Popen([sys.executable, "-c", ""]) as process,
    ):
        for number in (-1, 0, 1):
            send(file, Scanner().read_part(source, whole, number))
        division = _parts.Division(source, [whole], [_parts.Child(process, file)], -1)
        assert list(division.collect(mapped=False)) == [0]


@pytest.mark.parametrize(
    "between",
    [
        b"",
        b"\n\n\n",
        b"x" * (MAX_LINE_NBYTES + 9) + b"\n",
        b"x" * (2 * MAX_LINE_NBYTES + 9) + b"\n",
        b"x" * (1 << 19) + b"\n",
        encode_line(step_record(bubble_ns=-5)),
    ],
    ids=["nothing", "blank", "too long", "far too long", "long", "other"],
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
    lines[500:500] = [between]
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
    with log.open("rb", buffering=0) as source:
        part = scanner.read_part(source, _parts.Part(0, log.stat().st_size), 3)
    sent = io.BytesIO()
    ends = []
    for _ in range(2):
        send(sent, part)
        ends.append(sent.tell())
    for size in range(ends[-1] + 1):
        with (tmp_path / "output").open("w+b") as file:
            file.write(sent.getvalue()[:size])
            file.flush()
            found = list(received(file, mapped=bool(size % 2)))
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
    with log.open("rb", buffering=0) as source:
        send(sent, Scanner().read_part(source, _parts.Part(0, log.stat().st_size), 0))
    for before, count in ((b"", 0), (sent.getvalue(), 1)):
        for other in (bytes([4, *bytes(7)]) + b"what is this", b"\xff" * 40):
            with (tmp_path / "output").open("w+b") as file:
                file.write(before + other)
                file.flush()
                assert len(list(received(file, mapped=True))) == count
                assert len(list(received(file, mapped=False))) == count


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
        assert division is None
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1)
    log.write_bytes(b"\x1f\x8b\x08" + b"x\n" * 1_000_000)
    with _parts.divided(log) as division:
        assert division is None


@pytest.mark.parametrize(
    "text",
    [b"x\n" * (1 << 20) + b"x" * (3 << 20) + b"\nx\n", b"x\n" * (1 << 21) + b"x" * (MAX_LINE_NBYTES + 1)],
    ids=["inside", "at the end"],
)
def test_a_log_that_cannot_be_cut_between_lines_is_not_divided(
    text: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a line is too long to look for its end, the log is read as a whole."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 21)
    monkeypatch.setattr(_parts, "cores", lambda: 2)
    log = tmp_path / "log"
    log.write_bytes(text)
    with _parts.divided(log) as division:
        assert division is None
    log.write_bytes(b"x\n" * (1 << 21))
    with _parts.divided(log) as division:
        assert division is not None
        assert [len(division.parts), len(division.children)] == [2, 1]


def out_of(error: int) -> Callable[..., NoReturn]:
    """Something that fails, whatever it is given."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(error, os.strerror(error))

    return fail


@pytest.fixture
def divided_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of 1500 steps that three processes read in parts."""
    monkeypatch.setattr(_parts, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(_parts, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(_parts, "cores", lambda: 3)
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(encode_line(step_record(seq=seq, build_ns=seq)) for seq in range(1500)))
    return log


@pytest.mark.parametrize("missing", ["subprocess.Popen", "os.pipe", "os.memfd_create"])
def test_no_room_for_children_costs_nothing(missing: str, divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes, descriptors or places for files have run out, this process reads the log."""
    monkeypatch.setattr(missing, out_of(errno.EMFILE), raising=False)
    monkeypatch.setattr("tempfile.TemporaryFile", out_of(errno.ENOSPC))
    assert same(read_frames(divided_log), read_frames(io.BytesIO(divided_log.read_bytes())))


def test_no_room_for_what_children_read_costs_nothing(divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be mapped is missing, as if no child had read it."""
    monkeypatch.setattr("async_orch.analysis._part_file.mmap.mmap", out_of(errno.ENOMEM))
    with _parts.divided(divided_log) as division:
        assert division is not None
        assert division.collect(mapped=True) == {}


def test_an_interpreter_that_is_not_there_costs_nothing(divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where sys.executable names no file, as in a program that embeds Python, this process reads the log."""
    monkeypatch.setattr("sys.executable", str(divided_log.with_name("nothing")))
    assert read_frames(divided_log).reading.steps == 1500


def test_children_load_nothing_from_the_working_directory(divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with modules of our names is one to analyse logs in: no child imports them."""
    here = divided_log.parent
    for name in ("msgspec", "async_orch", "numpy"):
        (here / f"{name}.py").write_text("open('loaded', 'w').close()\nraise ImportError\n")
    monkeypatch.chdir(here)
    with _parts.divided(divided_log) as division:
        assert division is not None
        assert len(division.collect(mapped=False)) == len(division.parts)
    assert not (here / "loaded").exists()


def test_a_log_that_is_replaced_is_read_as_it_was(divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that is rotated while it is read, all parts are the old file's, whatever has its name by then."""
    text = divided_log.read_bytes()
    start = cast(Callable[..., subprocess.Popen[bytes]], subprocess.Popen)

    def rotate(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        other = divided_log.with_name("new")
        other.write_bytes(text.replace(b'"build_ns":', b'"build_ns":7'))
        other.replace(divided_log)
        return start(*arguments, **options)

    monkeypatch.setattr("subprocess.Popen", rotate)
    assert same(read_frames(divided_log), read_frames(io.BytesIO(text)))


def test_a_log_that_is_cut_off_while_it_is_read(divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a log that becomes shorter, the line in which it ends then is counted as torn."""
    text = divided_log.read_bytes()
    size = len(text) // 2 + 100
    start = cast(Callable[..., subprocess.Popen[bytes]], subprocess.Popen)

    def cut_off(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        os.truncate(divided_log, size)
        return start(*arguments, **options)

    monkeypatch.setattr("subprocess.Popen", cut_off)
    frames = read_frames(divided_log)
    assert frames.reading.skipped == {"torn": 1}
    assert same(frames, read_frames(io.BytesIO(text[:size])))


def test_what_follows_the_last_line_end_is_no_first_line(divided_log: Path) -> None:
    """A byte order mark before the last line, which has no end, says nothing of the log, in parts as in one piece."""
    text = divided_log.read_bytes() + b"\xff\xfe" + encode_line(step_record(seq=1500))[:-1]
    divided_log.write_bytes(text)
    assert same(read_frames(divided_log), read_frames(io.BytesIO(text)))


def test_many_logs_keep_few_descriptors(divided_log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What children read is mapped for the first logs, and copied for more of them: it is the same."""
    asked: list[bool] = []
    monkeypatch.setattr("async_orch.analysis._scan._MAX_MAPPED", 2)
    collect = _parts.Division.collect

    def noted(self: _parts.Division, *, mapped: bool) -> Any:
        asked.append(mapped)
        return collect(self, mapped=mapped)

    monkeypatch.setattr(_parts.Division, "collect", noted)
    frames = read_frames(divided_log, divided_log)
    assert asked == [True, False]
    assert (frames.reading.steps, frames.reading.skipped) == (1500, {"duplicate": 1500})


@pytest.mark.parametrize("nbytes", [0, 1, 100, _sort._NEAR_NBYTES - 1, _sort._NEAR_NBYTES, 10_000])
def test_whole_lines_end_with_the_last_line_end(nbytes: int) -> None:
    """They are found near the end or far from it; without a line end there are none."""
    for text in (b"", b"x", b"\n", b"ab\n", b"a\nb\n", b"y" * 9000 + b"\n"):
        codes = np.frombuffer(text + b"x" * nbytes, np.uint8)
        assert _sort._whole_lines(codes) == text.rfind(b"\n") + 1
