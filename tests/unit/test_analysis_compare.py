"""Comparing two logs, and holding one against limits."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_orch.analysis import Change, LimitError, check, compare, limits_from, read, read_frames, summarize
from async_orch.analysis._compare import _resampled
from async_orch.analysis._percentiles import rank_index
from async_orch.analysis._pieces import PieceReader
from async_orch.analysis._summary import Analysis
from async_orch.cli import main
from async_orch.logs import StepRecord, encode_line
from tests.unit.step_records import REPORT_LINE, step_record


def steps(seed: int, scale: float = 1.0, count: int = 400, **changes: Any) -> list[StepRecord]:
    rng = random.Random(seed)
    start = 10**9
    records = []
    for seq in range(count):
        device = int(scale * rng.gauss(5_000_000, 300_000))
        records.append(
            step_record(
                run_id=f"run-{seed}",
                seq=seq,
                device_ns=device,
                device_start_ns=start,
                total_ns=device + 10**6,
                accept_ns=start - 10**6,
                **changes,
            )
        )
        start += device
    return records


def log(path: Path, records: list[StepRecord]) -> str:
    path.write_bytes(b"".join(map(encode_line, records)))
    return str(path)


def change(a: list[StepRecord], b: list[StepRecord], figure: str, statistic: str = "p50") -> Change:
    frames = [read_frames(io.BytesIO(b"".join(map(encode_line, records)))) for records in (a, b)]
    (warm,) = [group for group in compare(*frames).groups if group.name == "warm"]
    (found,) = [item for item in warm.changes if (item.figure, item.statistic) == (figure, statistic)]
    return found


@pytest.mark.parametrize(("scale", "word"), [(1.0, "no difference shown"), (1.2, "slower"), (0.8, "faster")])
def test_change_of_a_known_size_is_found(scale: float, word: str) -> None:
    """A device that takes 1.2 times as long is slower, with the factor inside the interval; chance alone is nothing."""
    found = change(steps(1), steps(2, scale), "device_ns")
    assert found.word == word
    assert found.low is not None
    assert found.high is not None
    assert found.low < scale < found.high
    assert found.ratio == found.b / found.a


def test_sizes_are_more_or_less_and_small_changes_nothing() -> None:
    """Bytes have no speed; a change below the least that was asked for is none, however sure."""
    assert change(steps(1), steps(1, copy_nbytes=10**7), "copy_nbytes").word == "more"
    assert change(steps(1), steps(1, alloc_nbytes=10**7), "alloc_nbytes").word == "more"
    assert change(steps(1), steps(1, retire_ns=1005), "retire_ns").word == "no difference shown"
    assert change(steps(1), steps(1, retire_ns=1050), "retire_ns").word == "slower"
    assert change(steps(1, h2d_split="measured"), steps(1, sm_nbytes=300_000), "sm_bw").word == "faster"


def test_few_steps_show_nothing() -> None:
    """Of fewer than five steps a log has no interval, and no difference is claimed."""
    found = change(steps(1, count=4), steps(2, 2.0, count=4), "device_ns")
    assert (found.low, found.high, found.word) == (None, None, "no difference shown")


@pytest.mark.parametrize("percent", [50, 99])
def test_resampling_by_rank_is_resampling(percent: int) -> None:
    """The distribution of a percentile over resamples is that of drawing them in full, within chance."""
    rng = np.random.default_rng(3)
    values = np.sort(rng.integers(0, 10**6, 80))
    quick = _resampled(values, percent, rng)
    full = np.sort(rng.choice(values, (4000, 80)), axis=1)[:, rank_index(percent, 80)]
    for quantile in (0.1, 0.5, 0.9):
        near = np.searchsorted(values, [np.quantile(quick, quantile), np.quantile(full, quantile)])
        assert abs(int(near[0]) - int(near[1])) <= 3


def test_compare_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command shows both logs' figures with the word, cold apart, as a table and as JSON."""
    cold = [step_record(seq=seq, run_id="c", cold_reason="first_launch") for seq in range(6)]
    a, b = log(tmp_path / "a", steps(1) + cold), log(tmp_path / "b", steps(2, 1.5) + cold)
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    (line,) = [
        line for line in out.splitlines() if line.startswith("  device") and " p50 " in line and "slower" in line
    ]
    assert "ms" in line
    assert "cold: 6 steps in A, 6 in B" in out
    assert main(["compare", a, b, "--format", "json"]) == 0
    assert [group["name"] for group in json.loads(capsys.readouterr().out)["groups"]] == ["cold", "warm"]
    assert main(["compare", a, str(tmp_path / "absent")]) == 2


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        ("--max-alloc-nbytes 0 --min-steps 400", 0, "kept: max-alloc-nbytes 0: alloc_nbytes.max is 0 in run run-1"),
        ("--max-p99-ms 1", 1, "violated: max-p99-ms 1: total_ns.p99 is 6."),
        ("--max-p99-ms 7", 0, "kept: max-p99-ms 7"),
        ("--min-overlap 0.5", 0, "kept: min-overlap 0.5: overlap is "),
        ("--max device_ns.p50=1e6", 1, "violated: max device_ns.p50 1e+06: device_ns.p50 is "),
        ("--min device_ns.p50=1e6", 0, "kept: min device_ns.p50"),
        ("--max-p99-ms 7 --max feed_ns.max=5", 1, "unknown: max feed_ns.max 5: feed_ns.max is not in the log"),
        ("--max feed_ns.max=5 --allow-unknown", 0, "unknown: max feed_ns.max 5"),
        ("--max-skipped 0 --max-failed 0 --max-missing 0 --max-idle 0.1 --max-starved 0.1", 0, "kept: max-starved"),
        ("--max-p99-ms 7 --group cold", 1, "unknown: max-p99-ms 7"),
    ],
)
def test_check_command(limits: str, code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each limit gives a line that says what was found, and one that is not kept gives exit code 1."""
    path = log(tmp_path / "run.jsonl", steps(1))
    assert main(["check", path, *limits.split()]) == code
    assert said in capsys.readouterr().out


def test_limits_come_from_toml_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of limits is read under the same names, and an option wins over it."""
    path, file = log(tmp_path / "run.jsonl", steps(1)), tmp_path / "limits.toml"
    file.write_text('max_p99_ms = 1\n[max]\n"device_ns.p99" = 1e9\n')
    assert main(["check", path, "--limits", str(file)]) == 1
    out = capsys.readouterr().out
    assert "violated: max-p99-ms 1" in out
    assert "kept: max device_ns.p99" in out
    assert main(["check", path, "--limits", str(file), "--max-p99-ms", "50"]) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_p98 = 1", "unknown limit 'max_p98'"),
        ("max_p99_ms = 'x'", "must be a number"),
        ("max = 3", "must be a table"),
        ("[max]\ndevice = 3", "give FIGURE.STATISTIC"),
        ("= 3", "is not TOML"),
    ],
)
def test_bad_limits_are_named(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit that cannot be meant is one line on stderr with exit code 2, not a check that passes."""
    path, file = log(tmp_path / "run.jsonl", steps(1, count=3)), tmp_path / "limits.toml"
    file.write_text(text)
    assert main(["check", path, "--limits", str(file)]) == 2
    assert said in capsys.readouterr().err
    assert main(["check", path]) == 2
    assert main(["check", path, "--max", "device_ns.p99"]) == 2


def test_lines_are_checked_where_they_hold_the_figure() -> None:
    """A log of host-orch lines is held against what they state; what they do not state is unknown."""
    frames = read_frames(io.BytesIO(REPORT_LINE.encode()))
    analysis = Analysis(frames.reading, summarize(()))
    assert [finding.held for finding in check(analysis, limits_from({"max_alloc_nbytes": 0}))] == [None]
    whole = Analysis(PieceReader().reading(), summarize(read(io.BytesIO(REPORT_LINE.encode()))))
    (found, overlap) = check(whole, limits_from({"max_alloc_nbytes": 0, "min_overlap": 0.9}))
    assert (found.measured, found.held, overlap.held) == (66_488_960, False, None)
    with pytest.raises(LimitError):
        limits_from({"max_p99_ms": float("nan")})
