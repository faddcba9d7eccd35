"""Figures of a log against plain loops over the same records."""

from __future__ import annotations

import io
import itertools
import math
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_orch.analysis import FIGURES, Group, Record, Summary, read, summarize
from async_orch.analysis._host_orch import estimate_allocation
from async_orch.analysis._percentiles import distribution, exact_sum
from async_orch.analysis._units import duration, size
from async_orch.logs import HostOrch, StepRecord, host_orch
from tests.unit.step_records import step_record

REPORT = HostOrch(3_678_950, 107_075_660, 105_716_560, 1_359_100, 66_488_960, 5_543_943, 51, 172)


def group(summary: Summary, name: str) -> Group:
    (found,) = [group for group in summary.groups if group.name == name]
    return found


def plain_percentile(values: list[int], percent: int) -> int:
    """The smallest value that at least `percent` of 100 values do not exceed."""
    for candidate in sorted(values):
        if sum(value <= candidate for value in values) * 100 >= percent * len(values):
            return candidate
    raise AssertionError("no values")


def test_percentiles_of_many_values_are_those_of_sorted_ones() -> None:
    """In columns that are too long to be sorted on the way, each percentile is at its rank."""
    for count in range(300, 3000, 27):
        chance = random.Random(count)
        values = [chance.randrange(2**40) for _ in range(count)]
        ordered = sorted(values)
        found = distribution(np.array(values))
        assert found is not None
        assert [found.p50, found.p90, found.p99] == [ordered[math.ceil(p * count / 100) - 1] for p in (50, 90, 99)]


@pytest.mark.parametrize(
    "values", [[2**62] * 5 + [1], [-(2**53)] * 2048 + [1], [2**62, 2**62 - 1, -5, 2**62, 3], [2**62] * 4, [7] * 3]
)
def test_sums_are_exact_beyond_64_bits(values: list[int]) -> None:
    """The sum is that of Python integers, of large values of either sign, and of values that are all the same."""
    column = np.array(values)
    found = distribution(column)
    assert found is not None
    assert found.sum == exact_sum(column) == sum(values)
    assert exact_sum(column[:0]) == 0


@given(st.lists(st.integers(-(2**53), 2**62) | st.integers(-2, 2), min_size=1, max_size=60), st.booleans())
def test_distribution_equals_a_plain_loop(values: list[int], is_scratch: bool) -> None:
    """Count, percentiles by nearest rank, extremes and the exact sum are those of a loop over Python integers."""
    given = np.array(values, dtype=np.int64)
    found = distribution(given, is_scratch=is_scratch)
    assert is_scratch or given.tolist() == values
    assert found is not None
    assert (found.count, found.min, found.max, found.sum) == (len(values), min(values), max(values), sum(values))
    assert (found.p50, found.p90, found.p99) == tuple(plain_percentile(values, p) for p in (50, 90, 99))
    assert math.isclose(found.mean, sum(values) / len(values))


def test_distribution_of_nothing_is_none() -> None:
    """No values have no percentiles, rather than zeros."""
    assert distribution(np.empty(0, dtype=np.int64)) is None
    assert exact_sum(np.empty(0, dtype=np.int64)) == 0


def random_steps(count: int) -> list[StepRecord]:
    rng = random.Random(7)
    steps: list[StepRecord] = []
    for seq in range(count):
        graph, sm = rng.randrange(10**8), rng.randrange(10**7)
        steps.append(
            step_record(
                seq=seq,
                run_id=rng.choice(["run-a", "run-b"]),
                event=rng.choice(["step.completed"] * 6 + ["step.detached", "step.failed", "step.cancelled"]),
                cold_reason=rng.choice([None, None, None, "first_launch", "each_step"]),
                build_ns=rng.choice([None, rng.randrange(10**7)]),
                h2d_graph_ns=graph,
                h2d_sm_ns=sm,
                h2d_ns=graph + sm,
                alloc_ns=rng.choice([None, 0, rng.randrange(10**8)]),
                copy_nbytes=rng.randrange(10**7),
                accept_ns=seq * 10**8 + rng.randrange(10**7),
                total_ns=rng.randrange(10**8),
                device_start_ns=seq * 10**8,
                device_ns=rng.randrange(12 * 10**7),
            )
        )
    return steps


def test_groups_equal_a_plain_loop() -> None:
    """Each figure of the cold and the warm group is that of a loop over the completed and detached steps."""
    steps = [msgspec.structs.replace(step, run_id="run-a") for step in random_steps(400)]
    summary = summarize(steps)
    whole = [step for step in steps if step.event in ("step.completed", "step.detached")]
    for name, members in (
        ("cold", [step for step in whole if step.cold_reason is not None]),
        ("warm", [step for step in whole if step.cold_reason is None]),
    ):
        found = group(summary, name)
        assert found.steps == len(members)
        columns = {
            "orch_ns": [step.build_ns for step in members],
            "alloc_ns": [step.alloc_ns for step in members],
            "device_ns": [step.device_ns for step in members],
            **{
                field: [getattr(host_orch(step), field) for step in members]
                for field in ("h2d_ns", "graph_ns", "sm_ns", "alloc_nbytes", "copy_nbytes", "bw", "sm_bw")
            },
        }
        for figure, values in columns.items():
            known = [value for value in values if value is not None]
            assert found.figures[figure].count == len(known)
            assert found.figures[figure].sum == sum(known)
            assert found.figures[figure].p99 == plain_percentile(known, 99)
        assert found.figures.keys() <= set(FIGURES)
    assert sum(summary.events.values()) == 400


def test_step_intervals_and_device_time_equal_a_plain_loop() -> None:
    """Times from step to step and the device's idle share are those of a loop over each run in order of time."""
    steps = random_steps(300)
    summary = summarize(random.Random(1).sample(steps, len(steps)))
    for run in summary.runs:
        intervals: dict[bool, list[int]] = {True: [], False: []}
        of_run = [step for step in steps if step.run_id == run.run_id]
        whole = [step for step in of_run if step.event in ("step.completed", "step.detached")]
        ends = sorted((int(s.accept_ns or 0) + int(s.total_ns or 0), s.cold_reason is not None) for s in whole)
        for (before, _), (end, cold) in itertools.pairwise(ends):
            intervals[cold].append(end - before)
        kernels = sorted((int(s.device_start_ns or 0), int(s.device_ns or 0)) for s in of_run)
        busy, covered = 0, 0
        for start, length in kernels:
            busy += max(0, start + length - max(start, covered))
            covered = max(covered, start + length)
        assert run.steps == len(of_run)
        assert run.device_busy_ns == busy
        assert run.device_window_ns == covered - kernels[0][0]
        assert run.device_idle_share == 1 - busy / (covered - kernels[0][0])
        for part in run.groups:
            found, expected = part.figures["step_ns"], intervals[part.name == "cold"]
            assert (found.count, found.sum) == (len(expected), sum(expected))
            assert found.p50 == plain_percentile(expected, 50)


def test_runs_are_kept_apart() -> None:
    """Each run has groups of its own, equal to those of a log of that run alone; nothing joins runs."""
    steps = random_steps(200)
    summary = summarize(steps)
    for run in summary.runs:
        alone = summarize(step for step in steps if step.run_id == run.run_id)
        assert run.groups == alone.groups
        assert alone.runs == (run,)
    assert summary.groups == ()
    assert summary.group("warm") is None


def test_programs_of_a_run_are_kept_apart() -> None:
    """Cold and warm steps of each program are groups of their own; the times from step to step are those of the run."""
    steps = [
        step_record(seq=seq, program="prefill" if seq % 4 == 0 else "decode", build_ns=seq, accept_ns=10**9 * (seq + 1))
        for seq in range(20)
    ]
    summary = summarize(steps)
    (run,) = summary.runs
    assert [(part.program, part.name, part.steps) for part in run.groups] == [
        ("prefill", "warm", 5),
        ("decode", "warm", 15),
    ]
    assert [part.figures["orch_ns"].max for part in run.groups] == [16, 19]
    assert {part.figures["step_ns"].p50 for part in run.groups} == {10**9}
    assert summary.group("warm") is None


def test_failed_and_cancelled_steps_are_counted_and_left_out() -> None:
    """Steps that did not run to their end are counted by event; a log of nothing else has no group."""
    summary = summarize(
        [step_record(event="step.failed"), step_record(event="step.cancelled", seq=2), step_record(seq=1)]
    )
    assert summary.events == {"step.cancelled": 1, "step.completed": 1, "step.failed": 1}
    assert [(found.name, found.steps) for found in summary.groups] == [("warm", 1)]
    assert summarize([step_record(event="step.failed")]).groups == ()
    assert summarize([]) == Summary(events={}, groups=(), runs=())


def test_cold_reasons_are_counted() -> None:
    """The cold group says which one-time costs its steps paid, the most frequent first."""
    reasons = ["each_step", "first_launch", "each_step", None]
    summary = summarize(step_record(seq=seq, cold_reason=reason) for seq, reason in enumerate(reasons))
    assert group(summary, "cold").cold_reasons == {"each_step": 2, "first_launch": 1}
    assert group(summary, "warm").cold_reasons == {}
    assert summary.group("cold") == group(summary, "cold")
    assert summary.group("unmarked") is None


@pytest.mark.parametrize("clock", ["none", None])
def test_device_without_a_clock_has_no_device_time(clock: str | None) -> None:
    """Where the backend has no clock for kernels, device time and idle share are unknown, not zero."""
    steps = [step_record(seq=seq, device_clock=clock, device_start_ns=0, device_ns=0) for seq in range(3)]
    summary = summarize(steps)
    assert summary.runs[0].device_idle_share is None
    assert "device_ns" not in group(summary, "warm").figures


def test_one_timed_step_has_no_idle_share() -> None:
    """A single kernel fills its own window, which says nothing about idling."""
    assert summarize([step_record()]).runs[0].device_idle_share is None


def test_h2d_at_p50_is_one_step() -> None:
    """The bracket beside H2D shows graph and sm of the very step at p50, so that they add up."""
    lines: list[Record] = [REPORT._replace(h2d_ns=g + s, graph_ns=g, sm_ns=s) for g, s in ((10, 1), (5, 7), (2, 30))]
    assert group(summarize(lines), "unmarked").h2d_at_p50 == (12, 5, 7)


def test_bandwidth_is_computed_not_believed() -> None:
    """A printed bw that does not fit its line is replaced by the quotient; sm_bw is all the line has, and stays."""
    figures = group(summarize([REPORT._replace(bw=9999)]), "unmarked").figures
    assert figures["bw"].p50 == 51
    assert figures["sm_bw"].p50 == 172


def test_report_line_is_allocation_bound() -> None:
    """The report's line gives the report's verdict: the graph's copy at sm_bw explains 30.87 of its 105.72 ms."""
    verdict = group(summarize([REPORT]), "unmarked").verdict
    assert verdict is not None
    # 172 MB/s over 1,359,100 ns are at least 233,766 B; 5,543,943 - 233,766 = 5,310,177 B at 172 MB/s.
    assert verdict.parts == {"build": 3_678_950, "allocation": 74_843_437, "copy": 30_873_123 + 1_359_100}
    assert (verdict.bound, verdict.estimated, verdict.steps) == ("allocation", True, 1)
    assert round(verdict.share, 4) == 0.6758
    for figure in ("allocation bound", "5.31 MB", "172 MB/s", "30.87 ms", "74.84 ms", "105.72 ms", "67.6 %"):
        assert figure in verdict.text


@given(
    graph=st.integers(0, 2**40),
    sm=st.integers(1, 2**40),
    sm_nbytes=st.integers(0, 2**40),
    graph_nbytes=st.integers(0, 2**40),
)
def test_allocation_is_never_overestimated(graph: int, sm: int, sm_nbytes: int, graph_nbytes: int) -> None:
    """If graph and sm were copied at one rate, the estimate is at most what was left for allocation."""
    line = HostOrch(1, graph + sm, graph, sm, 1, graph_nbytes + sm_nbytes, 0, sm_nbytes * 1000 // sm)
    estimate = estimate_allocation(line)
    if line.sm_bw == 0:
        assert estimate is None
    else:
        assert estimate is not None
        assert estimate.graph_copy_ns + estimate.alloc_ns == graph
        # graph_nbytes at the true rate sm_nbytes / sm, as a fraction, against graph.
        assert estimate.alloc_ns * sm_nbytes <= max(0, graph * sm_nbytes - graph_nbytes * sm)


@pytest.mark.parametrize(
    ("records", "bound", "said"),
    [
        ([step_record(alloc_ns=90_000_000)], "allocation", "allocation takes 90.00 ms"),
        ([step_record()], "device", "device takes 36.80 ms"),
        ([step_record(build_ns=80_000_000)], "build", "build takes 80.00 ms"),
        ([step_record(device_ns=None)], "copy", "copy takes 32.23 ms"),
        ([step_record(alloc_ns=None)], "device", "What allocation took is not known"),
        ([REPORT._replace(sm_bw=None)], "allocation or copy", "does not tell allocation from copy"),
        ([REPORT._replace(sm_bw=0)], "allocation or copy", "does not tell allocation from copy"),
        ([REPORT._replace(alloc_nbytes=0)], "copy", "allocation 0.00 ms"),
        ([REPORT._replace(orch_ns=10**9)], "build", "build takes 1000.00 ms"),
        ([REPORT, REPORT._replace(sm_bw=None)], "allocation", "From the 1 of 2 steps"),
        ([REPORT, REPORT._replace(sm_bw=200)], "allocation", "at each step's sm_bw"),
    ],
)
def test_verdict_names_the_largest_part(records: list[Record], bound: str, said: str) -> None:
    """The verdict is the largest part of the mean step, with its figure and with what it could not know."""
    (found,) = summarize(records).groups
    assert found.verdict is not None
    assert found.verdict.bound == bound
    assert found.verdict.text.startswith(f"{bound} bound: ")
    assert said in found.verdict.text


@pytest.mark.parametrize(
    "record",
    [
        step_record(build_ns=None),
        step_record(build_ns=0, h2d_ns=0, device_ns=0, launch_ns=0),
        REPORT._replace(h2d_ns=None, graph_ns=None, sm_ns=None),
    ],
)
def test_no_verdict_without_figures(record: Record) -> None:
    """Where build or copy is unknown, or all took no time, there is no verdict rather than a wrong one."""
    (found,) = summarize([record]).groups
    assert found.verdict is None


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0.00 ms"),
        (3_678_950, "3.68 ms"),
        (107_075_660, "107.08 ms"),
        (995_000, "1.00 ms"),
        (994_999, "0.995 ms"),
        (847_818, "0.848 ms"),
        (99_499, "0.0995 ms"),
        (50, "0.0001 ms"),
        (1_005_000, "1.01 ms"),
        (-2_500_000, "-2.50 ms"),
        (2**53, "9007199254.74 ms"),
    ],
)
def test_duration_is_rounded_half_up(nanoseconds: int, text: str) -> None:
    """Milliseconds are rounded by integer arithmetic, with more decimals below one millisecond."""
    assert duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (99_999, "99999 B"), (100_000, "0.10 MB"), (5_543_943, "5.54 MB"), (66_488_960, "66.49 MB")],
)
def test_size_is_decimal(nbytes: int, text: str) -> None:
    """Megabytes are decimal, and small sizes are shown whole."""
    assert size(nbytes) == text


def test_columns_take_the_largest_figures_a_line_can_hold() -> None:
    """The bounds of a record's figures are such that no sum, bandwidth or end leaves 64 bits."""
    most = 2**53
    steps: list[Record] = [
        step_record(
            **dict.fromkeys(("build_ns", "h2d_graph_ns", "alloc_ns", "copy_nbytes", "total_ns", "device_ns"), most),
            h2d_ns=1,
            h2d_sm_ns=0,
            accept_ns=2**62,
            device_start_ns=2**62,
            seq=seq,
        )
        for seq in range(3)
    ]
    steps.append(HostOrch(most, 1, most, most, most, most, most, most))
    steps.append(HostOrch(most, 1, 0, 1, most, most, most, 1))
    summary = summarize(steps)
    assert group(summary, "unmarked").figures["bw"].max == most * 1000
    assert group(summary, "warm").figures["graph_ns"].sum == 6 * most


def test_reader_feeds_summarize() -> None:
    """A reader is an iterable of records, so selecting among them is a generator expression."""
    data = (REPORT.line() + "\n" + REPORT._replace(orch_ns=1).line()).encode()
    summary = summarize(
        record for record in read(io.BytesIO(data)) if isinstance(record, HostOrch) and record.orch_ns == 1
    )
    assert group(summary, "unmarked").steps == 1
