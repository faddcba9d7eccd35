"""The README's program, lines and picture are as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_program_prints_what_is_shown(tmp_path: Path) -> None:
    """The program runs as written, in a folder of its own, and prints the text shown below it."""
    [(program, shown)] = re.findall(r"^```python\n(.*?)^```\n```text\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    script = tmp_path / "program.py"
    script.write_text(program, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "ASYNC_ORCH_MODE"}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout == shown


def test_program_is_as_short_as_said() -> None:
    """The number of lines of code, blank ones left out, is the one that the text names, and at most 20."""
    [(said, program)] = re.findall(r"(\d+) lines of code.*?^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) == int(said)
    assert len(lines) <= 20


def test_each_quick_start_line_makes_its_own_environment() -> None:
    """Each begins with a virtual environment and an installation: one decodes, one, marked, runs tests, one serves."""
    lines = re.findall(r"^```sh\n(.*)\n```$", README, re.MULTILINE)
    made = "python3 -m venv .venv && .venv/bin/pip install -q -e "
    assert lines == [
        f"{made}'.[examples]' && .venv/bin/python -m examples.decode_runner",
        f"{made}'.[test]' && .venv/bin/pytest -q",
        f"{made}'.[serve]' && .venv/bin/python -m examples.serve",
    ]
    assert f"<!-- test line -->\n```sh\n{lines[1]}\n```\n<!-- end -->" in README


def test_picture_is_of_the_calibrated_device() -> None:
    """The overlap's picture shows the three modes and says that its figures are calibrated."""
    drawing = (ROOT / "docs" / "images" / "overlap.svg").read_text(encoding="utf-8")
    for mode in ("naive", "ring", "pipelined"):
        assert f">{mode} on sim:a5-report, calibrated to" in drawing
