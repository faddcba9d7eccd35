"""The drawing of a step log's overlap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.draw_timeline import main

MS = 1_000_000


def record(seq: int, start_ms: int, **fields: int) -> dict[str, Any]:
    """A step that built for 10 ms, copied for 10 and ran for 20, from ``start_ms`` on."""
    times = {
        "build_start_ns": start_ms * MS,
        "build_ns": 10 * MS,
        "acquire_start_ns": (start_ms + 10) * MS,
        "acquire_wait_ns": 0,
        "alloc_ns": 0,
        "h2d_start_ns": (start_ms + 10) * MS,
        "h2d_ns": 10 * MS,
        "device_start_ns": (start_ms + 20) * MS,
        "device_ns": 20 * MS,
    }
    return {"event": "step.completed", "run_id": "r", "seq": seq, **times, **fields}


def write_log(path: Path, *records: dict[str, Any]) -> str:
    opened = {"event": "orchestrator.opened", "run_id": "r", "device": "d", "support": "not run"}
    lines = [{**opened, "config": {"mode": "ring"}}, *records]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_each_lane_shows_which_step_held_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each character is the step that held the lane for most of its time, and the window begins with the step asked
    for."""
    log = write_log(tmp_path / "log", record(0, 100), record(1, 140))
    assert main([log, "--first", "1", "--window-ms", "80"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ring on d, not run",
        f"  build  {'1' * 10}{'.' * 70}",
        f"  copy   {'.' * 10}{'1' * 10}{'.' * 60}",
        f"  device {'.' * 20}{'1' * 20}{'.' * 40}",
        "",
        "one character is 1 ms",
    ]


def test_an_allocation_is_the_end_of_the_wait_for_a_slot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A slot's allocation is drawn between build and copy, in a lane that other runs do not have."""
    step = record(0, 0, acquire_wait_ns=20 * MS, alloc_ns=15 * MS, h2d_start_ns=30 * MS, device_start_ns=40 * MS)
    assert main([write_log(tmp_path / "log", step), "--first", "0", "--window-ms", "80"]) == 0
    assert f"  alloc  {'.' * 15}{'0' * 15}{'.' * 50}" in capsys.readouterr().out.splitlines()


def test_the_drawing_has_a_bar_for_each_part(tmp_path: Path) -> None:
    """The SVG holds one bar for each lane and step, and the background."""
    log, drawing = write_log(tmp_path / "log", record(0, 0), record(1, 40)), tmp_path / "overlap.svg"
    assert main([log, "--first", "0", "--window-ms", "80", "--svg", str(drawing)]) == 0
    text = drawing.read_text(encoding="utf-8")
    assert text.count("<rect ") == 1 + 2 * 3
    assert text.startswith("<svg ")
    assert text.endswith("</svg>\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "cannot read"), ("", "no step 20"), ("no log\n", "not a step log"), ("[]\n", "not a step log")],
)
def test_what_is_no_log_is_said_in_one_line(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is missing, empty or something else gives one line and exit code 2."""
    log = tmp_path / "log"
    if content is not None:
        log.write_text(content, encoding="utf-8")
    with pytest.raises(SystemExit) as exit_info:
        main([str(log)])
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
