"""The loop of the how-to: it is short, what the document shows is what the file holds, and no sequence is hurt."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from async_orch import Orchestrator
from async_orch.testing import leak_check
from examples.engine_loop import IN_FLIGHT, STOP, Engine, Sequence
from examples.toy_decoder import ROWS, ToyDecoder

ROOT = Path(__file__).resolve().parents[2]
SOURCE = (ROOT / "examples" / "engine_loop.py").read_text("utf-8")
HOWTO = (ROOT / "docs" / "howto-serving.md").read_text("utf-8")


def alone(first: int, most: int) -> list[int]:
    """What a sequence gives by itself."""
    tokens = [first]
    while len(tokens) < most and tokens[-1] != STOP:
        tokens.append(tokens[-1] // 2)
    return tokens


def test_the_loop_is_at_most_80_lines() -> None:
    """It can be read at a sitting."""
    assert len(SOURCE.splitlines()) <= 80


def test_the_howto_shows_the_loop_as_it_is() -> None:
    """The block is the file's class, and the output is what the program prints."""
    shown = re.search(
        r"<!-- examples/engine_loop.py: class Engine -->\n```python\n(.*?)^```$", HOWTO, re.MULTILINE | re.DOTALL
    )
    assert shown is not None
    assert shown[1].strip() in SOURCE
    assert shown[1].startswith("class Engine:")
    printed = subprocess.run(
        [sys.executable, "-m", "examples.engine_loop"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    output = re.search(r"<!-- output of examples.engine_loop -->\n```text\n(.*?)^```$", HOWTO, re.MULTILINE | re.DOTALL)
    assert output is not None
    assert output[1] == printed


@pytest.mark.parametrize("backend", ["host", "sim:instant", "sim:adversary"])
@pytest.mark.parametrize("mode", ["pipelined", "ring", "naive"])
async def test_every_sequence_gets_what_it_gives_alone(backend: str, mode: Any) -> None:
    """Whatever joins and leaves beside it, in every mode, and on a device where memory reused too early shows."""
    lengths, most = [2, 3, 5, 9], 12 if backend == "sim:adversary" else 26
    alones = [alone(first, lengths[first % 4]) for first in range(2, most) if 13 not in alone(first, 9)]
    sequences = [Sequence(tokens[:1], len(tokens)) for tokens in alones]
    with leak_check():
        async with Orchestrator(
            ToyDecoder(), backend, mode=mode, max_inflight=IN_FLIGHT, policy="discard_dependents"
        ) as orch:
            engine = Engine(orch, sequences)
            await engine.run()
    assert [s.tokens for s in sequences] == alones
    assert not engine.window


async def test_a_failed_step_ends_only_what_it_carried() -> None:
    """Sequences that were not in the step, though in the one built on it, go on from their last known token."""
    doomed, long = Sequence([26], 6), [Sequence([1 << 20], most) for most in (8, 9, 10)]
    late = [Sequence([1 << 18], 5) for _ in range(ROWS)]
    async with Orchestrator(ToyDecoder(), max_inflight=IN_FLIGHT, policy="discard_dependents") as orch:
        await Engine(orch, [doomed, *long, *late]).run()
        statistics = orch.statistics()
    assert doomed.tokens == [26, 13]
    assert {s.error for s in (doomed, *long)} == {" LaunchError"}
    assert [s.tokens for s in late] == [alone(1 << 18, 5)] * ROWS
    assert not any(s.error for s in late)
    assert statistics.failed == 2, "the step, and the one built on it"
