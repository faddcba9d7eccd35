"""Logs of many runs, and of many blocks: the work grows with the steps, and each run gets its own."""

from __future__ import annotations

import io
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from async_orch.analysis import StepFrame, _table, analyze, read_frames, summarize_frames
from async_orch.analysis._clock import host_clock
from async_orch.analysis._unique import missing_steps
from async_orch.logs import StepRecord, encode_line
from tests.unit.step_records import step_record


def _frame(steps: list[StepRecord]) -> StepFrame:
    return read_frames(io.BytesIO(b"".join(map(encode_line, steps)))).steps


def _opcodes(count: int, **varying: str) -> int:
    """How many instructions it takes to summarize `count` steps that differ in a text; no clock is asked."""
    texts = [{name: form.format(number) for name, form in varying.items()} for number in range(count)]
    steps = [step_record(seq=seq, device_clock="device", **text) for seq, text in enumerate(texts)]
    frames = read_frames(io.BytesIO(b"".join(map(encode_line, steps))))
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        summarize_frames(frames)
    finally:
        sys.settrace(before)
    return executed


@pytest.mark.parametrize("varying", [{"run_id": "run-{}"}, {"device": "sim:{}"}, {"program": "p{}"}])
def test_the_work_grows_with_the_runs_and_not_with_their_square(varying: dict[str, str]) -> None:
    """Twice the runs, devices or programs of one step each take about twice the instructions."""
    _opcodes(4, **varying)  # what is imported or cached the first time
    few, many = _opcodes(30, **varying), _opcodes(60, **varying)
    assert many < 2.2 * few


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[StepRecord]:
    """Steps of nine runs that alternate at random, over many blocks."""
    monkeypatch.setattr(_table, "_BLOCK_ROWS", 7)
    random = np.random.default_rng(3)
    return [
        step_record(
            seq=seq,
            run_id=f"run-{number}",
            device_clock="device" if number % 2 else "host",
            program="pq"[int(random.integers(2))],
            slot=int(random.integers(5)) if seq % 3 else None,
        )
        for seq, number in enumerate(random.integers(0, 9, 200).tolist())
    ]


def test_a_split_frame_holds_what_a_search_for_its_kind_finds(steps: list[StepRecord]) -> None:
    """Columns, texts and order are those of the rows with that key; its kinds are its own; splits can be split."""
    frame = _frame(steps)
    runs = frame.split(lambda kind: kind.run_id)
    assert list(runs) == list(dict.fromkeys(step.run_id for step in steps))
    for run_id, run in runs.items():
        wanted = [step for step in steps if step.run_id == run_id]
        assert {kind.run_id for kind in run.kinds} == {run_id}
        assert run["seq"].tolist() == [step.seq for step in wanted]
        assert run["slot"].tolist() == [step.slot for step in wanted]
        assert run.texts("program") == [step.program for step in wanted]
        for program, part in run.split(lambda kind: kind.program).items():
            assert part["seq"].tolist() == [step.seq for step in wanted if step.program == program]
            assert set(part.texts("program")) == {program}
    assert StepFrame([], []).split(lambda kind: kind.run_id) == {}


def test_rows_in_any_order_are_gathered_from_their_blocks(steps: list[StepRecord]) -> None:
    """Taking rows by number, repeatedly or backwards, gives what indexing the whole column gives."""
    frame = _frame(steps)
    whole = frame.column("seq")
    random = np.random.default_rng(5)
    for rows in (random.permutation(200), np.array([199, 0, 7, 6, 7]), np.arange(5, 60), np.arange(0, 200, 9)):
        taken = frame.take(rows)
        assert taken.column("seq").tolist() == whole[rows].tolist()
        assert taken.take(np.arange(len(rows))[::-2]).column("seq").tolist() == whole[rows][::-2].tolist()
    assert frame.take(np.zeros(200, np.bool_)).column("seq").tolist() == []
    for rows in (np.arange(3, 99), np.arange(0, 200, 9), np.array([4]), random.permutation(200)):
        parts = list(frame.take(rows).parts())
        assert [seq for part in parts for seq in part.column("seq").tolist()] == rows.tolist()
        assert [len(part) for part in parts] == [len(part.column("slot")) for part in parts]


def test_clocks_and_gaps_are_those_of_each_run_alone(steps: list[StepRecord]) -> None:
    """Judged together, runs get the same answers as each on its own; one stray kernel spoils its own run only."""
    launched = next(step.launch_start_ns for step in steps if step.run_id == "run-3")
    assert launched is not None
    steps.append(step_record(seq=999, run_id="run-3", device_clock="device", device_start_ns=launched - 1))
    frame = _frame(steps)
    runs = frame.split(lambda kind: kind.run_id)
    together = dict(zip(frame["seq"].tolist(), host_clock(frame).tolist(), strict=True))
    apart = {
        seq: held
        for run in runs.values()
        for seq, held in zip(run["seq"].tolist(), host_clock(run).tolist(), strict=True)
    }
    assert together == apart
    assert {run_id for run_id, run in runs.items() if not host_clock(run).any()} == {"run-3"}
    assert missing_steps(frame) == sum(map(missing_steps, runs.values())) > 0
    assert missing_steps(StepFrame([], [])) == 0


OPENED = b'{"event":"orchestrator.opened","schema":2,"run_id":"run-1","config":{"mode":"ring","text":"a}{b"}}'
STEP = encode_line(step_record(seq=0, run_id="run-1")).rstrip()
ANCHOR = b'{"event":"loop.anchor","schema":2,"run_id":"run-1"}'


@pytest.mark.parametrize(
    ("line", "events", "count"),
    [
        (OPENED + STEP, 1, 1),
        (STEP + OPENED, 1, 1),
        (OPENED + OPENED + STEP + STEP.replace(b'"seq":0', b'"seq":1'), 2, 2),
        (b"prefix " + OPENED + b" " + ANCHOR + STEP, 2, 1),
        (ANCHOR + OPENED, 2, 0),
    ],
)
def test_events_that_share_a_line_are_all_read(line: bytes, events: int, count: int) -> None:
    """What opens a run is read where it is glued to steps: its mode is known, and nothing is dropped uncounted."""
    reading = analyze(io.BytesIO(line + b"\n")).reading
    assert (reading.other_events, reading.steps, reading.skipped) == (events, count, {})
    assert reading.modes == {"run-1": "ring"}


def test_a_torn_opening_before_a_step_is_counted() -> None:
    """Cut off before a value or anywhere else outside a text, it is torn, and the step behind it is read."""
    for length in (30, 39, 40, 41, 42):
        reading = analyze(io.BytesIO(OPENED[:length] + STEP + b"\n")).reading
        assert (reading.other_events, reading.steps, reading.skipped) == (0, 1, {"torn": 1}), OPENED[:length]
