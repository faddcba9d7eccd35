"""What the documents show is so: their programs run, their links lead somewhere, no field is left out."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from async_orch.logs import FIELDS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(document: Path) -> list[tuple[str, str]]:
    """Language and text of each fenced block, in order."""
    return FENCE.findall(document.read_text(encoding="utf-8"))


def run(*arguments: str, cwd: Path) -> str:
    """What a Python process prints; fails with all of its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "ASYNC_ORCH_MODE"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tutorial_runs_as_written(tmp_path: Path) -> None:
    """The tutorial's Python blocks run one after the other and print what the text blocks show, and so do its
    commands."""
    blocks = blocks_of(DOCS / "tutorial.md")
    programs = [text for language, text in blocks if language == "python"]
    mark = "~~~ end of block ~~~"
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(f"{text}\nprint({mark!r})\n" for text in programs), encoding="utf-8")
    printed = iter(run(str(script), cwd=tmp_path).split(f"{mark}\n"))
    compared, shown = 0, ""
    for language, text in blocks:
        if language == "python":
            shown = next(printed)
        elif language == "text":
            assert text == shown
            compared += 1
    assert compared == 3
    commands = [text for language, text in blocks if language == "sh"]
    assert commands
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "async-orch"
        assert "verdict: " in run("-m", "async_orch", *arguments, cwd=tmp_path)


def test_qwen3_howto_runs_as_written(tmp_path: Path) -> None:
    """The program of the how-to prints what is shown below it."""
    (_, program), (_, shown) = blocks_of(DOCS / "howto-qwen3.md")
    script = tmp_path / "howto.py"
    script.write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


def test_graphs_howto_runs_as_written(tmp_path: Path) -> None:
    """The program of the how-to prints what is shown below it."""
    (_, program), (_, shown) = blocks_of(DOCS / "howto-graphs.md")
    script = tmp_path / "howto.py"
    script.write_text(program, encoding="utf-8")
    assert run(str(script), cwd=tmp_path) == shown


UNWRITTEN = """
import asyncio
from async_orch import Orchestrator, SlotSpec, StepProgram

def write(output, value):
    output[:] = value

class Program(StepProgram):
    slot = SlotSpec(image_nbytes=0, output_nbytes=1)

    def launch(self, step, slot, stream):
        if step:
            stream.launch(write, slot.output, step)

    def collect(self, step, output):
        return int(output[0])

async def main():
    async with Orchestrator(Program(), backend="host", slots=1) as orch:
        print([result.output async for result in orch.map([7, 0, 9, 0])])

asyncio.run(main())
"""


def test_an_output_that_no_kernel_writes_keeps_its_bytes(tmp_path: Path) -> None:
    """As the architecture says: after a launch that enqueues nothing, collect reads what the step before left."""
    script = tmp_path / "unwritten.py"
    script.write_text(UNWRITTEN, encoding="utf-8")
    assert run(str(script), cwd=tmp_path) == "[7, 7, 9, 9]\n"


def test_log_reference_names_every_field() -> None:
    """Each field of the record has a row of its own in the reference, and no row names a field that is none."""
    text = (DOCS / "reference-log.md").read_text(encoding="utf-8").partition("## `orchestrator.opened`")[0]
    rows = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(FIELDS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link and image of a document exists."""
    text = document.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) + re.findall(r'(?:src|href)="([^"#]+)"', text)
    missing = [t for t in targets if "://" not in t and not (document.parent / t).exists()]
    assert not missing
