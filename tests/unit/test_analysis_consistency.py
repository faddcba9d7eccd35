"""Step records whose figures cannot all be true are counted by kind and named; true ones are left in peace."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream
from async_orch.analysis import LogFrames, analyze, read_frames
from async_orch.cli import main
from async_orch.logs import encode_line
from tests.unit.step_records import step_record


def frames_of(**changes: Any) -> LogFrames:
    return read_frames(io.BytesIO(encode_line(step_record(**changes))))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"submit_ns": 2_000_000}, "accept_ns before submit_ns"),
        ({"build_start_ns": 5}, "build_start_ns before accept_ns"),
        ({"retire_start_ns": 36_911_499}, "retire_start_ns before launch_start_ns"),
        ({"total_ns": 3_000_000}, "build_ns longer than total_ns"),
        ({"total_ns": 72_715_899}, "retire_start_ns + retire_ns after the step's end"),
        ({"launch_ns": 2**53}, "launch_ns longer than total_ns"),
        ({"h2d_sm_ns": 1}, "h2d_graph_ns + h2d_sm_ns is not h2d_ns"),
        ({"starved_ns": 7, "bubble_ns": -3}, "starved_ns longer than bubble_ns"),
        ({"sm_nbytes": 5_543_944}, "sm_nbytes more than copy_nbytes"),
        ({"alloc_nbytes": 1}, "alloc_nbytes without an allocation"),
    ],
)
def test_contradiction_is_counted_and_named(changes: dict[str, Any], kind: str) -> None:
    """The step is counted under what cannot be, and shown with the figures that say so; it is still a step."""
    reading = frames_of(**changes).reading
    assert (reading.steps, reading.skipped) == (1, {})
    found = reading.step_contradictions
    assert found.steps == 1
    assert found.kinds[kind] == 1
    (text,) = found.first
    assert text.startswith("step 0 of run run-a: ")


def test_true_and_partial_records_do_not_contradict() -> None:
    """A usual step, and one that lacks figures, is no contradiction."""
    assert frames_of().reading.step_contradictions.steps == 0
    bare = dict.fromkeys(("submit_ns", "total_ns", "h2d_ns", "sm_nbytes", "alloc_count", "retire_start_ns"))
    assert frames_of(**bare).reading.step_contradictions.steps == 0


def test_only_the_first_are_shown_and_all_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log full of them gives the count by kind, five examples, and a violated limit."""
    log = tmp_path / "run.jsonl"
    log.write_bytes(b"".join(encode_line(step_record(seq=seq, submit_ns=2_000_000)) for seq in range(9)))
    assert main(["analyze", str(log)]) == 0
    text = capsys.readouterr().out
    assert "warning: 9 step records disagree with themselves" in text
    assert "(9 x accept_ns before submit_ns)" in text
    assert text.count(" of run run-a: accept_ns before") == 5
    assert main(["check", str(log), "--max-contradictions", "0"]) == 1
    assert "violated: max-contradictions 0: contradictions is 9" in capsys.readouterr().out


class Chain(StepProgram[int, int]):
    slot = SlotSpec(image_nbytes=64, output_nbytes=8, feed_nbytes=8)

    def build(self, step: int, image: Any) -> None:
        if step % 7 == 3:
            raise ValueError("no such step")

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(lambda: None)

    def feed(self, step: int, previous: Any, feed: Any) -> None: ...

    def collect(self, step: int, output: ByteArray) -> int:
        return step


@pytest.mark.parametrize("options", [{}, {"mode": "naive"}, {"mode": "ring"}, {"build_in": "thread"}])
def test_the_engine_does_not_contradict_itself(options: dict[str, Any], tmp_path: Path) -> None:
    """Records of real runs, with failures, cancels and feeds among them, hold all that is held against them."""
    log = tmp_path / "run.jsonl"

    async def run() -> None:
        async with Orchestrator(Chain(), backend="host", step_log=log, **options) as orch:
            previous = None
            for step in range(40):
                handle = await orch.submit(step, after=previous if step % 7 not in (0, 3, 4) else None)
                if step % 11 == 5:
                    handle.cancel()
                previous = handle if step % 11 != 5 else None
            await orch.drain()

    asyncio.run(run())
    analysis = analyze(log)
    assert sum(analysis.summary.events.values()) == 40
    assert analysis.reading.step_contradictions.steps == 0, analysis.reading.step_contradictions
