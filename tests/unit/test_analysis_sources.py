"""Logs as they come: compressed, in several files, broken off, from a pipe."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path
from typing import Any

import pytest

from async_orch.analysis import LogFrames, Source, analyze, read, read_frames
from async_orch.logs import encode_line
from tests.unit.step_records import REPORT_LINE, step_record

STEPS = [step_record(seq=seq, step_id=seq, build_ns=1000 + seq) for seq in range(300)]
TEXT = b"".join(map(encode_line, STEPS))


def compressed_zstd(data: bytes) -> bytes:
    """With the library of Python 3.14, or the package that stands in for it before."""
    zstd: Any
    try:
        zstd = __import__("compression.zstd", fromlist=["compress"])
    except ImportError:
        zstd = pytest.importorskip("zstandard")
    compressed: bytes = zstd.compress(data)
    return compressed


def build_sum(frames: LogFrames) -> int:
    return int(frames.steps["build_ns"].sum())


@pytest.mark.parametrize("pack", [gzip.compress, compressed_zstd, bytes])
@pytest.mark.parametrize("size", [1, 17, 1 << 20])
def test_compressed_logs_read_like_text(pack: Any, size: int) -> None:
    """gzip and zstd are told by their first bytes, whatever the file is called and however the bytes arrive."""

    class Dripping(io.BytesIO):
        def read(self, wanted: int | None = -1, /) -> bytes:
            return super().read(min(size, wanted or 0))

    packed = pack(TEXT)
    if size == 1 and len(packed) > 50_000:
        packed = pack(TEXT[: TEXT.index(b"\n") + 1])
    frames = read_frames(Dripping(packed))
    assert frames.reading.skipped == {}
    assert frames.reading.steps in (300, 1)
    if frames.reading.steps == 300:
        assert build_sum(frames) == sum(1000 + seq for seq in range(300))


@pytest.mark.parametrize("pack", [gzip.compress, compressed_zstd])
def test_several_members_are_one_log(pack: Any) -> None:
    """Files of several compressed members, as concatenation makes them, are read to their end."""
    half = TEXT.index(b"\n", len(TEXT) // 2) + 1
    assert read_frames(io.BytesIO(pack(TEXT[:half]) + pack(TEXT[half:]))).reading.steps == 300


@pytest.mark.parametrize("pack", [gzip.compress, compressed_zstd])
def test_truncated_compression_is_named_and_the_rest_used(pack: Any) -> None:
    """A compressed log that breaks off is said to, and what came before is analysed."""
    text = b"".join(encode_line(step_record(seq=s, attrs={"x": random.Random(s).random()})) for s in range(2000))
    packed = pack(text)
    frames = read_frames(io.BytesIO(packed[: len(packed) * 2 // 3]))
    assert 0 < frames.reading.steps < 2000
    (said,) = frames.reading.damaged
    assert "breaks off" in said
    assert build_sum(frames) == 3_678_950 * frames.reading.steps


def test_corrupt_gzip_is_named() -> None:
    """Damage inside a compressed log ends its reading, and is named."""
    packed = bytearray(gzip.compress(TEXT))
    packed[len(packed) // 2] ^= 0xFF
    reading = read_frames(io.BytesIO(bytes(packed))).reading
    assert len(reading.damaged) == 1


@pytest.mark.parametrize("last", [1, 8])
def test_what_stands_before_corrupt_gzip_data_is_used(last: int) -> None:
    """Damage in the trailer, a wrong check sum or length, is named and costs nothing that was compressed before it."""
    packed = bytearray(gzip.compress(TEXT))
    packed[-last] ^= 0xFF
    frames = read_frames(io.BytesIO(bytes(packed)))
    assert frames.reading.steps == 300
    (said,) = frames.reading.damaged
    assert f"corrupt after {len(TEXT)} bytes of text" in said


def test_several_logs_are_joined(tmp_path: Path) -> None:
    """Paths and streams of different kinds are one log; a last line without an end is not glued to the next."""
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_bytes(TEXT.rstrip(b"\n"))
    packed.write_bytes(gzip.compress(b"".join(encode_line(step_record(seq=s, run_id="other")) for s in range(5))))
    sources: list[Source] = [plain, str(packed), io.BytesIO(REPORT_LINE.encode())]
    frames = read_frames(*sources)
    assert (frames.reading.steps, frames.reading.host_orch_lines, frames.reading.skipped) == (305, 1, {})
    sources[2] = io.BytesIO(REPORT_LINE.encode())
    assert len(list(read(*sources))) == 306
    sources[2] = io.BytesIO(REPORT_LINE.encode())
    assert [run.steps for run in analyze(*sources).summary.runs] == [300, 5]


def test_second_record_of_a_step_is_dropped_and_counted() -> None:
    """The same log given twice gives each step once; the repetitions are counted as skipped."""
    frames = read_frames(io.BytesIO(TEXT), io.BytesIO(TEXT[: 10 * len(encode_line(STEPS[0]))]))
    assert len(frames.steps) == 300
    assert frames.reading.steps == 300
    assert frames.reading.skipped["duplicate"] >= 9
    assert frames.steps["seq"].tolist() == list(range(300))
