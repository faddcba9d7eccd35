"""Logs with known answers: what was put in comes out, to the nanosecond and to the digit."""

from __future__ import annotations

import io
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from async_orch.analysis import MISSING, analyze, read_frames, summarize, summarize_frames
from async_orch.logs import StepRecord, encode_line
from tests.unit.step_records import step_record


@dataclass
class Known:
    """A run as it was made up: a pipeline's schedule, with bubbles and starvation where we put them."""

    run_id: str
    records: list[StepRecord] = field(default_factory=list)
    bubbles: list[int] = field(default_factory=list)
    starved: int = 0
    busy: int = 0
    ends: list[int] = field(default_factory=list)
    cold: int = 0


def make_run(run_id: str, pid: int, steps: int, seed: int) -> Known:
    """Steps whose kernels follow each other with chosen gaps; some of a gap is before acceptance, some after."""
    rng = random.Random(seed)
    known = Known(run_id)
    device_end = 10**12 + rng.randrange(10**9)
    for seq in range(steps):
        build, copy, device, retire = (rng.randrange(1_000, 6_000_000) for _ in range(4))
        bubble = rng.choice([0, 0, rng.randrange(1, 3_000_000)])
        starved = rng.randrange(bubble + 1) if bubble else 0
        start = device_end + bubble
        accept = device_end + starved if starved else start - build - copy - rng.randrange(10**6) - 10**7
        cold = rng.random() < 0.1
        if seq:
            known.bubbles.append(bubble)
            known.starved += starved
        known.busy += device
        known.cold += cold
        end = start + device + 50_000 + retire
        known.ends.append(end)
        known.records.append(
            step_record(
                run_id=run_id,
                pid=pid,
                seq=seq,
                step_id=f"s{seq}",
                accept_ns=accept,
                submit_ns=accept - 100,
                build_start_ns=accept + 10,
                build_ns=build,
                acquire_start_ns=accept + 10 + build,
                acquire_wait_ns=7,
                h2d_start_ns=accept + 30 + build,
                h2d_ns=copy,
                h2d_graph_ns=copy - copy // 3,
                h2d_sm_ns=copy // 3,
                launch_start_ns=min(start, accept + 40 + build),
                device_start_ns=start,
                device_ns=device,
                retire_start_ns=start + device + 50_000,
                retire_ns=retire,
                total_ns=end - accept,
                bubble_ns=bubble if seq else None,
                starved_ns=starved if seq else None,
                cold_reason="slot_grown" if cold else None,
            )
        )
        device_end = start + device
    return known


@pytest.fixture(scope="module")
def runs() -> list[Known]:
    return [make_run(f"run-{index}", 100 + index % 2, 400, index) for index in range(3)]


def log_of(runs: list[Known]) -> bytes:
    """The runs' records interleaved, as processes that share a file write them, between noise."""
    rng = random.Random(5)
    queues = [[encode_line(record) for record in run.records] for run in runs]
    text = b""
    while any(queues):
        queue = rng.choice([queue for queue in queues if queue])
        text += queue.pop(0)
        if rng.random() < 0.05:
            text += b"scheduler summary: loops=743\n"
    return text


def test_bubbles_starvation_and_overlap_are_found(runs: list[Known]) -> None:
    """Device window, busy and starved time, bubbles and times from step to step are the ones that were put in."""
    summary = analyze(io.BytesIO(log_of(runs))).summary
    assert [run.run_id for run in sorted(summary.runs, key=lambda run: run.run_id)] == ["run-0", "run-1", "run-2"]
    for known in runs:
        (run,) = [run for run in summary.runs if run.run_id == known.run_id]
        assert run.device_busy_ns == known.busy
        assert run.device_window_ns == known.busy + sum(known.bubbles)
        assert run.device_starved_ns == known.starved
        assert run.missing_steps == 0
        groups = {group.name: group for group in run.groups}
        assert groups["cold"].steps == known.cold
        assert groups["cold"].cold_reasons == {"slot_grown": known.cold}
        bubbles = [group.figures["bubble_ns"] for group in run.groups]
        assert sum(figure.sum for figure in bubbles) == sum(known.bubbles)
        assert max(figure.max for figure in bubbles) == max(known.bubbles)
        steps = [group.figures["step_ns"] for group in run.groups]
        assert sum(figure.sum for figure in steps) == max(known.ends) - min(known.ends)


def plain_loop(text: bytes, name: str) -> dict[str, list[int]]:
    """A figure's values by run, by json and a loop."""
    values: dict[str, list[int]] = {}
    for line in text.splitlines():
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        if record[name] is not None and record["cold_reason"] is None:
            values.setdefault(record["run_id"], []).append(record[name])
    return values


@pytest.mark.parametrize(
    ("figure", "stated"),
    [
        ("orch_ns", "build_ns"),
        ("copy_ns", "h2d_ns"),
        ("device_ns", "device_ns"),
        ("retire_ns", "retire_ns"),
        ("total_ns", "total_ns"),
        ("bubble_ns", "bubble_ns"),
        ("starved_ns", "starved_ns"),
        ("copy_nbytes", "copy_nbytes"),
    ],
)
def test_figures_equal_a_plain_loop(runs: list[Known], figure: str, stated: str) -> None:
    """p50, p90, p99, max and sum of each figure are those of a loop over the same file, to the digit."""
    text = log_of(runs)
    summary = analyze(io.BytesIO(text)).summary
    for run_id, values in plain_loop(text, stated).items():
        (run,) = [run for run in summary.runs if run.run_id == run_id]
        (warm,) = [group for group in run.groups if group.name == "warm"]
        found = warm.figures[figure]
        ordered = sorted(values)
        ranks = [ordered[-(-percent * len(ordered) // 100) - 1] for percent in (50, 90, 99)]
        assert [found.p50, found.p90, found.p99] == ranks
        assert (found.count, found.max, found.sum) == (len(values), max(values), sum(values))


def test_both_ways_of_reading_agree(runs: list[Known]) -> None:
    """Columns read by the block and records taken one at a time give one and the same summary."""
    text = log_of(runs[:1])
    frames = read_frames(io.BytesIO(text))
    assert summarize_frames(frames) == summarize(runs[0].records)
    assert frames.steps.texts("run_id") == ["run-0"] * 400
    for name in ("build_ns", "bubble_ns", "after", "seq", "generation"):
        expected = [getattr(record, name) for record in runs[0].records]
        assert frames.steps.column(name).tolist() == [MISSING if value is None else value for value in expected]
        assert frames.steps[name].tolist() == expected


def test_queue_waits_are_the_gaps_between_stages(runs: list[Known]) -> None:
    """What a step waited before each stage is the gap that the schedule left there."""
    summary = analyze(io.BytesIO(log_of(runs[:1]))).summary
    (warm,) = [group for group in summary.groups if group.name == "warm"]
    waits = {name: warm.figures[f"{name}_wait_ns"].p50 for name in ("submit", "build", "acquire", "copy")}
    assert waits == {"submit": 100, "build": 10, "acquire": 7, "copy": 13}
    assert warm.figures["retire_wait_ns"].p50 == 50_000 - 900  # less the output's copy


def test_steps_without_an_end_are_counted() -> None:
    """Gaps in seq are steps whose end is not in the log."""
    frames = [step_record(seq=seq) for seq in (3, 4, 8, 9, 11)]
    (run,) = summarize(frames).runs
    assert run.missing_steps == 4


def test_figures_beyond_64_bits_cost_their_line_only() -> None:
    """Absurd and negative figures are counted as invalid, and the lines around them are read."""
    good = encode_line(step_record(seq=1, build_ns=11))
    text = good
    for seq, value in enumerate((b"-5", b"9007199254740993", b"99999999999999999999999999"), 2):
        text += encode_line(step_record(seq=seq)).replace(b'"build_ns":3678950', b'"build_ns":' + value)
    text += encode_line(step_record(seq=9, build_ns=2**53))
    frames = read_frames(io.BytesIO(b"x\n" + text))
    assert frames.reading.skipped == {"invalid": 3, "foreign": 1}
    assert frames.steps["build_ns"].tolist() == [11, 2**53]
    assert frames.reading.steps == 2


@pytest.mark.parametrize("gap_ns", [0, 2_000_000, 20_000_000])
def test_starved_verdict(gap_ns: int) -> None:
    """A device that mostly waits for the caller is starved; with a smaller share of that, its largest part bounds."""
    records = []
    for seq in range(50):
        start = 10**9 + seq * (36_800_000 + gap_ns)
        records.append(
            step_record(
                seq=seq,
                accept_ns=start - 10,
                device_start_ns=start,
                total_ns=36_900_000,
                bubble_ns=gap_ns if seq else None,
                starved_ns=gap_ns - 10 if seq and gap_ns else 0,
            )
        )
    (warm,) = summarize(records).groups
    assert warm.verdict is not None
    assert warm.verdict.bound == ("starved" if gap_ns > 4_000_000 else "device")
    assert warm.verdict.text.startswith(warm.verdict.bound)
