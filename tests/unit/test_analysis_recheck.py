"""Figures at the edges of what is read, and the same answer however a log comes in."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from async_orch.analysis import _distributions as distributions_module
from async_orch.analysis import _parts as parts_module
from async_orch.analysis import _report_data as report_data
from async_orch.analysis import analyze, compare, read, read_frames, summarize_frames, whatif
from async_orch.logs import StepRecord, encode_line
from tests.unit.step_records import pipelined, step_record


def text_of(*records: StepRecord) -> bytes:
    return b"".join(map(encode_line, records))


def changed(field: str, value: object, **changes: Any) -> bytes:
    """A step's line with any value at all in a field."""
    record = step_record(**changes)
    old = f'"{field}":{getattr(record, field)}'.encode()
    line = encode_line(record)
    assert line.count(old) == 1
    return line.replace(old, f'"{field}":{value}'.encode())


@pytest.mark.parametrize("value", [-(2**63), -(2**63) - 1, 2**63, 2**64, -1])
@pytest.mark.parametrize("field", ["build_ns", "seq", "total_ns", "pid"])
def test_what_no_figure_can_be_is_invalid(field: str, value: int) -> None:
    """A value out of bounds costs its line, also the one that stands for a missing figure in columns."""
    text = changed(field, value, seq=77) + text_of(step_record(seq=1))
    frames = read_frames(io.BytesIO(text))
    assert (frames.reading.steps, frames.reading.skipped) == (1, {"invalid": 1})
    assert len(list(read(io.BytesIO(text)))) == 1


@pytest.mark.parametrize("damage", [b"\xe9", b"\\ud800", b"[" * 100_000 + b"]" * 100_000])
@pytest.mark.parametrize("before", [b"", b"text before it: "])
def test_damage_in_the_event_that_opens_a_run(before: bytes, damage: bytes) -> None:
    """An orchestrator.opened that does not decode in a field that nothing depends on never raises; it is torn."""
    quoted = damage if damage.startswith(b"[") else b'"' + damage + b'"'
    opened = b'{"event":"orchestrator.opened","schema":2,"run_id":"run-a","other":' + quoted + b"}\n"
    text = before + opened + text_of(step_record())
    reader = read(io.BytesIO(text))
    assert len(list(reader)) == 1
    for reading in (reader.reading, read_frames(io.BytesIO(text)).reading):
        assert (reading.steps, reading.other_events, reading.skipped) == (1, 0, {"torn": 1})


def test_starved_time_does_not_wrap() -> None:
    """The starved time of a run is exact where it does not fit 64 bits."""
    steps = [
        step_record(seq=seq, starved_ns=2**53, bubble_ns=2**53, device_start_ns=2**61 + seq, device_ns=1)
        for seq in range(1100)
    ]
    (run,) = analyze(io.BytesIO(text_of(*steps))).summary.runs
    assert run.device_starved_ns == 1100 * 2**53


@pytest.mark.parametrize("stray", ["step.completed", "step.failed"])
def test_clocks_are_one_in_all_of_a_run_or_in_none(stray: str) -> None:
    """One kernel that ends after the host saw its end says for cold and warm steps alike that the clocks are two."""
    steps = [
        step_record(seq=seq, device_clock="device", cold_reason="slot_grown" if seq < 5 else None) for seq in range(20)
    ]
    waits = ("copy_wait_ns", "device_wait_ns", "retire_wait_ns")
    groups = analyze(io.BytesIO(text_of(*steps))).summary.groups
    assert all(name in group.figures for group in groups for name in waits)
    steps[12] = step_record(seq=12, device_clock="device", device_start_ns=2**50, event=stray)
    groups = analyze(io.BytesIO(text_of(*steps))).summary.groups
    assert [group.name for group in groups] == ["cold", "warm"]
    assert not any(name in group.figures for group in groups for name in waits)


def test_the_first_contradictions_are_the_first_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that disagree with themselves are named in the order of the log, by one process and by several."""
    steps = [step_record(seq=seq) for seq in range(1500)]
    steps[3] = step_record(seq=3, sm_nbytes=2**40)
    steps[700] = step_record(seq=700, accept_ns=0)
    text = text_of(*steps)
    log = tmp_path / "run.jsonl"
    log.write_bytes(text)
    one = read_frames(log).reading.step_contradictions
    monkeypatch.setattr(parts_module, "_LEAST_NBYTES", 1 << 20)
    monkeypatch.setattr(parts_module, "_PART_NBYTES", 1 << 18)
    monkeypatch.setattr(parts_module, "cores", lambda: 2)
    assert read_frames(log).reading.step_contradictions == one
    assert [shown.split()[1] for shown in one.first] == ["3", "700"]


def test_runs_are_in_the_order_of_the_log() -> None:
    """Runs come in the order of their first steps, whichever of their lines are read many at a time."""
    first = [step_record(run_id="a", seq=seq) for seq in range(1500)]
    odd = [step_record(run_id='with "quotes"', seq=0)]
    last = [step_record(run_id="c", seq=seq) for seq in range(900)]
    text = text_of(*first, *odd, *last)
    whole = summarize_frames(read_frames(io.BytesIO(text)))
    assert [run.run_id for run in whole.runs] == ["a", 'with "quotes"', "c"]


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system allows no further thread, figures are computed without."""
    text = text_of(*(step_record(seq=seq, build_ns=seq) for seq in range(100)))
    expected = analyze(io.BytesIO(text))

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(distributions_module, "_ROWS_FOR_THREADS", 1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert analyze(io.BytesIO(text)) == expected


@pytest.mark.filterwarnings("error")
def test_interval_of_a_figure_that_is_often_zero() -> None:
    """A ratio to what may as well be 0 has no upper bound; it is infinite, not undefined, and nobody is warned."""
    often = read_frames(io.BytesIO(text_of(*(step_record(seq=i, feed_ns=5 * (i > 47)) for i in range(100)))))
    never = read_frames(io.BytesIO(text_of(*(step_record(seq=i, feed_ns=3) for i in range(100)))))
    (group,) = compare(often, never).groups
    p50 = next(change for change in group.changes if (change.figure, change.statistic) == ("feed_ns", "p50"))
    assert (p50.ratio, p50.low, p50.high, p50.word) == (0.6, 0.6, np.inf, "no difference shown")


def test_starved_share_of_a_run_in_which_some_steps_have_no_end() -> None:
    """Steps whose end is not in the log do not make the whole last longer, or less long, than it did."""
    opened = b'{"event":"orchestrator.opened","schema":2,"run_id":"run-a","config":{"mode":"pipelined","slots":3}}\n'
    steps = pipelined("run-a", starved_ns=1000)
    whole = whatif(read_frames(io.BytesIO(opened + text_of(*steps))), [{"slots": 2}])
    lines = text_of(*steps).splitlines(keepends=True)
    lines[30] = lines[30].replace(b'"total_ns":', b'"total_ns":null,"was":')
    some = whatif(read_frames(io.BytesIO(opened + b"".join(lines))), [{"slots": 2}])
    assert 0 < some.starved_share == pytest.approx(whole.starved_share)


def test_occupancy_of_a_long_run_in_which_most_steps_have_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that got no slot do not thin out the moments that are kept of those that did."""
    monkeypatch.setattr(report_data, "_MAX_CHANGES", 30)
    steps = pipelined("run-a")
    steps = [
        step_record(
            **{name: getattr(step, name) for name in step.__struct_fields__ if getattr(step, name) is not None}
            | {"slot": None if step.seq % 3 else 1}
        )
        for step in steps
    ]
    occupancy = report_data.charts_of(read_frames(io.BytesIO(text_of(*steps))).steps, 3).data["occupancy"]
    assert len(occupancy["at"]) == 30
