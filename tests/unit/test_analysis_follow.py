"""A log that grows while it is read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from async_orch.analysis._follow import Follower
from async_orch.cli import main
from async_orch.logs import encode_line
from tests.unit.step_records import step_record

ROOT = Path(__file__).parent.parent.parent


def test_growth_is_read_once_and_whole_lines_only(tmp_path: Path) -> None:
    """Each look reads what is new; a line counts when its end is there; a rotated file is read from its start."""
    log = tmp_path / "run.jsonl"
    first, second, third = (encode_line(step_record(seq=seq)) for seq in range(3))
    log.write_bytes(first + second[:100])
    follower = Follower(log)
    assert follower.poll()
    assert follower.analysis().reading.steps == 1
    assert not follower.poll()
    with log.open("ab") as file:
        file.write(second[100:])
    assert follower.poll()
    analysis = follower.analysis()
    assert (analysis.reading.steps, analysis.reading.skipped) == (2, {})
    log.unlink()
    log.write_bytes(third)
    assert follower.poll()
    assert follower.analysis().reading.steps == 3


@pytest.mark.parametrize(
    "arguments", [["-", "--follow"], ["a", "b", "--follow"], ["a", "--follow", "--format", "json"]]
)
def test_follow_takes_one_file_as_a_table(arguments: list[str]) -> None:
    """What cannot be followed is refused in one line."""
    assert main(["analyze", *arguments]) == 2


@pytest.mark.parametrize("seconds", ["0", "x", "nan"])
def test_interval_must_be_a_time(seconds: str) -> None:
    """An interval that is no sensible number of seconds is refused."""
    assert main(["analyze", "a", "--follow", "--interval", seconds]) == 2


def test_follow_shows_growth_until_it_is_interrupted(tmp_path: Path) -> None:
    """The command shows the table again when the log grew, and an interrupt ends it with exit code 0."""
    log = tmp_path / "run.jsonl"
    log.write_bytes(encode_line(step_record(seq=0)))
    command = [sys.executable, "-m", "async_orch", "analyze", str(log), "--follow", "--interval", "0.01"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert "1 step record read" in process.stdout.readline()
        with log.open("ab") as file:
            file.write(encode_line(step_record(seq=1)))
        while "2 step records read" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == 0
