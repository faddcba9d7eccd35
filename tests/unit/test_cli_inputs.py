"""The async-orch command and its inputs and outputs: what it never overwrites, and what it does without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from async_orch._commands import COMMANDS
from async_orch.cli import main
from async_orch.logs import encode_line
from tests.unit.step_records import step_record

WRITERS = (["report"], ["trace"], ["trace", "--strace"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of three steps."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join(encode_line(step_record(seq=seq)) for seq in range(3)))
    return path


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("way", ["same", "relative", "symlink", "hard link", "second input"])
def test_an_input_is_never_overwritten(
    command: list[str],
    way: str,
    log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever name or link leads there, one line says so and the log stays as it is."""
    monkeypatch.chdir(tmp_path)
    before, inputs, output = log.read_bytes(), [str(log)], str(log)
    match way:
        case "relative":
            output = "./" + log.name
        case "symlink":
            (tmp_path / "link").symlink_to(log)
            output = "link"
        case "hard link":
            (tmp_path / "hard").hardlink_to(log)
            output = "hard"
        case "second input":
            (tmp_path / "other.jsonl").write_bytes(before)
            inputs = ["other.jsonl", str(log)]
        case _:
            pass
    assert main([*command, *inputs, "-o", output]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"async-orch: -o {output} is the input ")
    assert err.endswith("itself; pass -o another file\n")
    assert err.count("\n") == 1
    assert log.read_bytes() == before


@pytest.mark.parametrize("command", WRITERS)
def test_standard_streams_that_are_one_file_count_too(command: list[str], log: Path) -> None:
    """A log that is piped in by ``<`` is not the output, nor is one that standard output appends to."""
    before = log.read_bytes()
    python = [sys.executable, "-m", "async_orch", *command]
    with log.open("rb") as given:
        done = subprocess.run([*python, "-", "-o", str(log)], stdin=given, capture_output=True, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    with log.open("ab") as appended:
        done = subprocess.run([*python, str(log), "-o", "-"], stdout=appended, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert log.read_bytes() == before


@pytest.mark.parametrize("command", WRITERS)
def test_another_file_is_written_also_beside_a_device(command: list[str], log: Path, tmp_path: Path) -> None:
    """A new file, and an old one that is no input, are written as before."""
    output = tmp_path / "out"
    for _ in range(2):
        assert main([*command, str(log), "-o", str(output)]) == 0
        assert output.stat().st_size > 100
    assert main([*command, str(log), os.devnull, "-o", os.devnull]) == 0


def _unreadable(kind: str, tmp_path: Path) -> Path:
    path = tmp_path / f"bad {kind}"
    if kind == "directory":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "file below a file":
        path.touch()
        path /= "below"
    return path


@pytest.mark.parametrize("kind", ["missing", "directory", "loop", "file below a file"])
@pytest.mark.parametrize("first", [True, False])
def test_the_rest_is_analysed_where_an_input_cannot_be_opened(
    kind: str, first: bool, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is named on stderr and counted in the output, whatever the command and the order."""
    bad = str(_unreadable(kind, tmp_path))
    files = [bad, str(log)] if first else [str(log), bad]
    output = str(tmp_path / "out")
    for command in (
        ["analyze", "--format", "json"],
        ["analyze"],
        ["analyze", "--format", "csv"],
        ["analyze", "--format", "host-orch"],
        ["check", "--max-skipped", "0"],
        ["report", "-o", output],
        ["trace", "-o", output],
    ):
        assert main([*command, *files]) == 0, command
        out, err = capsys.readouterr()
        assert err.startswith(f"async-orch: cannot read {bad}: "), command
        assert err.endswith("; left out, 1 of 2 inputs\n"), command
        assert err.count("\n") == 1, command
        if command[-1] == "json":
            reading = json.loads(out)["reading"]
            assert reading["steps"] == 3
            assert [bad in why for why in reading["unread"]] == [True]
        elif command == ["analyze"]:
            assert f"left out: cannot read {bad}: " in out


def test_nothing_usable_in_any_input_is_an_error_in_one_line(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 where all inputs are missing, or the others hold nothing; two of three missing is no error."""
    empty = tmp_path / "empty"
    empty.touch()
    for form in ("table", "host-orch"):
        command = ["analyze", "--format", form]
        assert main([*command, "no-a", "no-b"]) == 2
        assert main([*command, "no-a", str(empty)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 2
        assert "cannot read no-a" in err or form == "host-orch"
        assert main([*command, "no-a", str(log), "no-b"]) == 0
        assert capsys.readouterr().err.count("left out, 2 of 3 inputs\n") == 2


@pytest.mark.parametrize("command", [*COMMANDS, "--help", "--version"])
def test_a_closed_standard_output_is_one_line(command: str, log: Path) -> None:
    """Every command says so before it does anything; with stderr closed as well it says nothing, to nobody."""
    line = f'"$0" -m async_orch {command} "$1"'
    for closed, lines in ((">&-", 1), (">&- 2>&-", 0)):
        done = subprocess.run(
            ["/bin/sh", "-c", f"{line} {closed}", sys.executable, str(log)], capture_output=True, check=False
        )
        assert done.returncode == 2
        assert done.stdout == b""
        assert done.stderr.count(b"\n") == lines
        assert not lines or done.stderr.startswith(b"async-orch: standard output is closed; ")


def test_errors_do_not_go_to_standard_output_where_stderr_is_closed(log: Path) -> None:
    """What is piped on is the result and nothing else."""
    line = '"$0" -m async_orch analyze no-such-file 2>&-'
    done = subprocess.run(["/bin/sh", "-c", line, sys.executable], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "a", "b", "--least-change", "nan"], "nan must be a finite number of percent from 0"),
        (["compare", "a", "b", "--least-change", "inf"], "inf must be a finite number of percent from 0"),
        (["compare", "a", "b", "--least-change=-1"], "-1 must be a finite number of percent from 0"),
        (["compare", "a", "b", "--least-change", "x"], "'x' is not a number of percent"),
        (["whatif", "a", "--slots", "1..1000000"], "1..1000000 goes beyond 4096, the most that is modelled"),
        (["whatif", "a", "--slots", "4097"], "4097 goes beyond 4096"),
        (["whatif", "a", "--slots", "9" * 5000], "goes beyond 4096"),
        (["whatif", "a", "--slots", "x"], "'x' is not N, A..B or a list of them"),
        (["analyze", "a", "--interval", "x"], "'x' is not a number of seconds"),
        (["backends", "--nbytes", "x"], "'x' is not a whole number of bytes"),
    ],
)
def test_a_wrong_number_is_refused_in_words(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says what the value must be, never the name of a function of ours."""
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert "_size" not in err
