"""The async-orch command: its output, its errors in one line, its exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from async_orch.cli import main
from async_orch.logs import encode_line, host_orch_line
from tests.unit.step_records import REPORT_LINE, step_record

FIXTURES = Path(__file__).parent.parent / "fixtures"
ROOT = Path(__file__).parent.parent.parent
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


class _Stdin(io.TextIOWrapper):
    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))


def test_report_line_gives_the_report_figures(capsys: pytest.CaptureFixture[str]) -> None:
    """A log of the report's line shows the report's figures and the verdict."""
    assert main(["analyze", str(FIXTURES / "host-orch.log")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = dict(re.findall(r"^  (\S+)  +(\S.*)$", out, re.MULTILINE))
    assert rows["orch"] == "3.68 ms"
    assert rows["H2D"] == "107.08 ms (105.72 + 1.36)"
    assert rows["alloc"] == "66.49 MB"
    assert rows["copy"] == "5.54 MB"
    assert rows["bw"] == "51 MB/s"
    assert rows["sm_bw"] == "172 MB/s"
    assert "verdict: allocation bound" in out


def test_other_values_come_out_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The figures shown are the ones on the line, whatever they are."""
    log = tmp_path / "other.log"
    log.write_text(
        "bind: host-orch: orch=12345678 ns H2D=30000000 ns (graph=10000000 ns sm=20000000 ns) "
        "alloc=0 B copy=3000000000 B bw=100000 MB/s sm_bw=149000 MB/s\n"
    )
    assert main(["analyze", str(log)]) == 0
    out = capsys.readouterr().out
    for shown in ("12.35 ms", "30.00 ms (10.00 + 20.00)", "0 B", "3000.00 MB", "100000 MB/s", "149000 MB/s"):
        assert shown in out
    assert "verdict: copy bound" in out


def test_steps_are_shown_cold_and_warm_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """A mixed log shows a table for each group, what was skipped, and how long the device was idle."""
    assert main(["analyze", str(FIXTURES / "mixed.log")]) == 0
    out = capsys.readouterr().out
    assert "2 step records and 3 host-orch lines read from 12 lines, 1 other event passed over" in out
    assert "6 skipped (3 foreign, 2 torn, 1 undecodable)" in out
    assert "cold: 1 step (1 first_launch)" in out
    assert "warm: 1 step\n" in out
    assert "unmarked: 3 steps" in out
    assert re.search(r"^ +n +p50 +p90 +p99 +max$", out, re.MULTILINE)
    assert "run run-a on sim:instant: 2 steps, device idle" in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_runs_are_shown_apart_with_their_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log of several runs, one a mode as the decode runner writes it, has a table for each, never their blend."""
    log = tmp_path / "modes.jsonl"
    opened = '{{"event":"orchestrator.opened","schema":1,"run_id":"{0}","config":{{"mode":"{0}"}}}}\n'
    with log.open("wb") as file:
        for mode, alloc_ns in (("naive", 90_000_000), ("pipelined", 0)):
            file.write(opened.format(mode).encode())
            for seq in range(3):
                file.write(encode_line(step_record(seq=seq, run_id=mode, alloc_ns=alloc_ns)))
    assert main(["analyze", str(log)]) == 0
    naive, pipelined = capsys.readouterr().out.split("run ")[1:]
    assert naive.startswith("naive on sim:instant, naive: 3 steps")
    assert "verdict: allocation bound" in naive
    assert pipelined.startswith("pipelined on sim:instant, pipelined: 3 steps")
    assert "verdict: device bound" in pipelined
    assert main(["analyze", str(log), "--format", "json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["mode"], run["groups"][0]["steps"]) for run in runs] == [("naive", 3), ("pipelined", 3)]


def test_contradiction_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A printed bandwidth that does not fit is reported beside the one that does."""
    log = tmp_path / "odd.log"
    log.write_text(REPORT_LINE.replace("bw=51", "bw=510") + "\n")
    assert main(["analyze", str(log)]) == 0
    out = capsys.readouterr().out
    assert "warning: 1 host-orch line disagrees with itself" in out
    assert "line 1: bw=510 MB/s, but copy x 1000 / H2D = 51 MB/s" in out
    assert re.search(r"^  bw +51 MB/s$", out, re.MULTILINE)


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """--format json prints one object with integers in ns and bytes."""
    assert main(["analyze", str(FIXTURES / "mixed.log"), "--format", "json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    document = json.loads(out)
    assert [group["name"] for group in document["groups"]] == ["cold", "warm", "unmarked"]
    assert document["groups"][0]["figures"]["h2d_ns"]["p50"] == 107_075_660
    assert document["groups"][0]["verdict"]["bound"] == "allocation"
    assert document["reading"]["skipped"] == {"foreign": 3, "torn": 2, "undecodable": 1}
    assert document["events"] == {"step.completed": 2}
    assert 0 < document["runs"][0]["device_idle_share"] < 1


def test_host_orch_output_reads_back_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps printed as host-orch lines, read again, give the same figures, digit by digit."""
    records = [
        step_record(seq=seq, build_ns=seq * 1000, alloc_ns=seq**3, h2d_sm_ns=seq * 7, h2d_graph_ns=seq * 11)
        for seq in range(1, 40)
    ]
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(map(encode_line, [*records, step_record(event="step.failed")])))
    assert main(["analyze", str(log), "--format", "host-orch"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == [host_orch_line(record) for record in records]
    assert main(["analyze", str(log), "--format", "json"]) == 0
    ours = json.loads(capsys.readouterr().out)["groups"][0]["figures"]
    monkeypatch.setattr(sys, "stdin", _Stdin(printed.encode()))
    assert main(["analyze", "-", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    theirs = document["groups"][0]["figures"]
    assert {name: ours[name] for name in theirs} == theirs
    assert set(theirs) == {"orch_ns", "h2d_ns", "graph_ns", "sm_ns", "alloc_nbytes", "copy_nbytes", "bw", "sm_bw"}
    assert document["reading"]["contradictions"] == 0
    monkeypatch.setattr(sys, "stdin", _Stdin(printed.encode()))
    assert main(["analyze", "-", "--format", "host-orch"]) == 0
    assert capsys.readouterr().out == printed


def test_host_orch_output_keeps_notes_apart(capsys: pytest.CaptureFixture[str]) -> None:
    """What was skipped goes to stderr there, so that stdout holds nothing but lines."""
    assert main(["analyze", str(FIXTURES / "mixed.log"), "--format", "host-orch"]) == 0
    out, err = capsys.readouterr()
    assert all(line.startswith("host-orch: ") for line in out.splitlines())
    assert len(out.splitlines()) == 5
    assert "6 skipped" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory; give the path of a log"),
        (b"", "it is empty; give a log that step_log= wrote"),
        (b"\n\n", "in its 2 lines (all blank)"),
        (b"hello\nworld\n", "in its 2 lines (2 foreign)"),
        (b"\xff\xfe\x00h\x00\n", "iconv"),
        (b"\x1f\x8b\x08\x00\xff", "the gzip data breaks off after 0 bytes of text"),
        (b"\x80\n" * 3, "(3 undecodable)"),
        (REPORT_LINE[:-1].encode(), "in its 1 line (1 torn)"),
        (b'{"event":"orchestrator.opened"}\n', "(1 other event)"),
    ],
)
@pytest.mark.parametrize("form", ["table", "json", "host-orch"])
def test_unusable_log_is_one_line_and_exit_2(
    content: bytes | None, said: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A log that holds nothing of use gets one line on stderr that says what to give instead, and nothing on stdout."""
    log = tmp_path / "bad.log"
    if content is not None:
        log.write_bytes(content)
    assert main(["analyze", str(log), "--format", form]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("async-orch: ")
    assert said in err


def test_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory in place of a log is named as such."""
    assert main(["analyze", str(tmp_path)]) == 2
    assert re.fullmatch(r"async-orch: cannot read .*: Is a directory; give a file in it\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["analyze"], "FILE"),
        (["analyze", "x.log", "--fromat", "json"], "--fromat"),
        (["analyze", "x.log", "--form", "json"], "--form"),
        (["analyze", "x.log", "--format", "xml"], "table"),
        (["analyze", "x.log", "y.log"], "cannot read x.log"),
        (["analyze", "x\ny.log"], r"'x\ny.log'"),
        (["analyze", "x.log", "--odd\noption"], "--odd option"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong argument is named in one line that says where to look, without a usage text before it."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("async-orch: ")
    assert said in err


def test_log_of_failures_only_is_analysed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run in which every step failed is a finding, not a bad log; it only has no lines to print."""
    log = tmp_path / "failed.jsonl"
    log.write_bytes(encode_line(step_record(event="step.failed", error="boom", stage="build")))
    assert main(["analyze", str(log)]) == 0
    assert "steps: 1 failed" in capsys.readouterr().out
    assert main(["analyze", str(log), "--format", "host-orch"]) == 2
    assert "no step ran to its end" in capsys.readouterr().err


def test_closed_stdin_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without standard input is told so when it asks to read from it."""
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["analyze", "-"]) == 2
    assert "standard input is closed" in capsys.readouterr().err


def test_version_and_help_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the distribution's version, --help the commands and options."""
    for arguments, said in (
        (["--version"], r"async-orch \d+\.\d+"),
        (["--help"], "analyze"),
        (["analyze", "--help"], "host-orch"),
    ):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 0
        assert re.search(said, capsys.readouterr().out)


def test_module_runs_as_the_command() -> None:
    """python -m async_orch is the command, with its exit code and without a traceback."""
    command = [sys.executable, "-m", "async_orch", "analyze"]
    good = subprocess.run([*command, "-"], input=REPORT_LINE, capture_output=True, text=True, cwd=ROOT, check=False)
    assert good.returncode == 0
    assert good.stdout.startswith("standard input: 1 host-orch line read")
    bad = subprocess.run([*command, "absent.log"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("arguments", ["analyze {} --format host-orch", "analyze {}", "--help", "--version"])
def test_reader_that_goes_away_is_no_error(arguments: str, tmp_path: Path) -> None:
    """A closed pipe, as with head, ends the command silently with the code of SIGPIPE."""
    log = tmp_path / "long.log"
    log.write_text((REPORT_LINE + "\n") * 3000)
    command = [sys.executable, "-m", "async_orch", *arguments.format(log).split(" ")]
    receive, send = os.pipe()
    os.close(receive)
    try:
        done = subprocess.run(command, stdout=send, stderr=subprocess.PIPE, cwd=ROOT, env=BUFFERED, check=False)
    finally:
        os.close(send)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["table", "host-orch"])
def test_full_disk_is_one_line(form: str, tmp_path: Path) -> None:
    """Output that cannot be written is said to be that, not blamed on the log, and ends with exit code 2."""
    log = tmp_path / "long.log"
    log.write_text((REPORT_LINE + "\n") * 3000)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "async_orch", "analyze", str(log), "--format", form],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=BUFFERED,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "async-orch: cannot write the output: No space left on device; send it elsewhere\n"
