"""The engine examples are short, run as programs, and are what the how-to shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / "examples" / "engines"
HOWTO = (ROOT / "docs" / "howto-existing-engine.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^<!-- examples/engines/(\w+)\.py -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^<!-- output of examples\.engines\.(\w+) -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMES = ("captured_graphs", "persistent_inputs", "serving_loop")
PRINTED = {
    "captured_graphs": "captured batches of 1, 2, 4, 8\n",
    "persistent_inputs": "step 0 buffers 0: [0] -> [1]\n",
    "serving_loop": "tokens: 107 114 121 128 135 142 149 156\n",
}


def printed_by(name: str) -> str:
    """What the example prints when it is run as a module."""
    environment = {key: value for key, value in os.environ.items() if key != "ASYNC_ORCH_MODE"}
    done = subprocess.run(
        [sys.executable, "-m", f"examples.engines.{name}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_examples_are_short() -> None:
    """An engine fits behind the orchestrator in at most 80 lines; what is no fake is an example."""
    files = {path.stem: path for path in ENGINES.glob("*.py") if not path.stem.startswith(("fake_", "__"))}
    assert sorted(files) == list(NAMES)
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in files.items()}
    assert {name: count for name, count in lines.items() if count > 80} == {}


@pytest.mark.parametrize("name", NAMES)
def test_example_runs_as_a_program(name: str) -> None:
    """It prints a few lines that begin as expected, and the how-to shows the same where it shows any."""
    text = printed_by(name)
    assert text.startswith(PRINTED[name])
    assert len(text.splitlines()) <= 8
    shown = re.findall(
        rf"<!-- output of examples\.engines\.{name} -->\n```text\n(.*?)^```$", HOWTO, re.MULTILINE | re.DOTALL
    )
    assert all(each == text for each in shown)


def test_howto_shows_the_files() -> None:
    """Each Python block of the how-to names its file and is a part of it; the parts come in the file's order."""
    blocks = BLOCK.findall(HOWTO)
    assert len(blocks) == HOWTO.count("```python")
    assert {name for name, _ in blocks} == set(NAMES)
    for name in NAMES:
        source = (ENGINES / f"{name}.py").read_text(encoding="utf-8")
        at = 0
        for block in (text for each, text in blocks if each == name):
            assert block in source[at:], f"a block of {name}.py differs from the file:\n{block}"
            at = source.index(block, at) + len(block)
        assert source[at:].strip() == 'if __name__ == "__main__":\n    asyncio.run(main())'
