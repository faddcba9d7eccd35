"""docs/reliability.md says what is so: its tests exist, and its fault matrix is what happens."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.faults.fault_matrix import table

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text("utf-8")
NODE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions_of(path: Path) -> set[str]:
    """Names of all functions and methods in a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_named_test_exists() -> None:
    """A promise names tests that are there, and there is one for each promise."""
    nodes = NODE.findall(TEXT)
    missing = [f"{file}::{name}" for file, name in nodes if name not in functions_of(ROOT / file)]
    assert missing == []
    for promise in range(1, 15):
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| {promise} |"))
        assert NODE.search(row), f"promise {promise} names no test"


async def test_the_fault_matrix_is_what_happens() -> None:
    """Every hook, fault and policy of the table is tried, and the outcome is the one in the document."""
    begin, end = "<!-- fault matrix: python -m tests.faults.fault_matrix -->\n", "\n<!-- end of fault matrix -->"
    shown = TEXT[TEXT.index(begin) + len(begin) : TEXT.index(end)]
    assert await table() == shown
