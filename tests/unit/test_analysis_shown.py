"""Texts of a log cannot act on a terminal, break a line or a table, or pose as output of ours."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from async_orch.cli import main
from async_orch.logs import encode_line
from tests.unit.step_records import step_record

HOSTILE = "x\x1b[2J\x07\n\x9bverdict: fine\u202e|<img src=x>\u2028"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log in which every text is hostile: steps that contradict themselves, an opening, a span and a phase."""
    texts = dict.fromkeys(("run_id", "host", "device", "program"), HOSTILE)
    path = tmp_path / "run.jsonl"
    lines = [
        step_record(seq=seq, submit_ns=2_000_000 * (seq + 1), cold_reason=None if seq else HOSTILE, **texts)
        for seq in range(30)
    ]
    other = step_record(seq=0, **texts | {"program": HOSTILE + "2"})
    span = b"[STRACE] v=1 pid=1 tid=1 inv=7 hid=9 depth=0 name=a%1b%5b2J%0ab ts=1 dur=2\n"
    path.write_bytes(
        b'{"event":"orchestrator.opened","run_id":"x\\u001b[2J","config":{"mode":"\\u001b[2J"}}\n'
        + b"".join(map(encode_line, [*lines, other]))
        + span
    )
    return path


def printable(text: str) -> bool:
    return all(character.isprintable() for line in text.split("\n") for character in line)


@pytest.mark.parametrize(
    "arguments",
    [
        "analyze LOG",
        "analyze LOG --format markdown",
        "analyze LOG --format csv",
        "analyze LOG --format json",
        "analyze LOG --format host-orch",
        "compare LOG LOG",
        "compare LOG LOG --format json",
        "check LOG --max-p99-ms 1 --max-overlap 1",
        "check LOG --max-p99-ms 1 --min-overlap 1",
        "whatif LOG --slots 2",
        "whatif LOG --run x",
        "trace LOG",
        "trace LOG --strace",
        "report LOG -o -",
    ],
)
def test_nothing_unprintable_comes_out(arguments: str, log: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """Whatever the texts of a log are, every output is printable text and none of its lines is theirs."""
    with contextlib.suppress(SystemExit):
        main(arguments.replace("LOG", str(log)).split())
    captured = capfdbinary.readouterr()
    for output in (captured.out, captured.err):
        text = output.decode()
        assert printable(text), [line for line in text.split("\n") if not line.isprintable()][:3]
        assert not any(line.startswith("verdict: fine") for line in text.split("\n"))


def test_markdown_and_html_hold_no_markup_of_the_log(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names cannot open an element, nor end a cell of a table."""
    assert main(["analyze", str(log), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "<img" not in text
    assert main(["report", str(log), "-o", "-"]) == 0
    assert "<img" not in capsys.readouterr().out
