"""Figures of steps in columns: some steps at a time, or all of them at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_orch.analysis import (
    FIGURES,
    MISSING,
    Scanner,
    StepFrame,
    Summary,
    _at_p50,
    _distributions,
    _table,
    summarize_frames,
)
from async_orch.analysis._clock import kinds_on_host_clock
from async_orch.analysis._columns import JoinedRows, LineRows, StepRows, added, between, chosen, known_of, rate
from async_orch.analysis._fields import FIGURE_FIELDS
from async_orch.analysis._timeline import device_time, step_intervals
from async_orch.logs import StepRecord
from tests.unit.step_records import step_record

NAMES = sorted({*FIGURES, *FIGURE_FIELDS, "device_end_ns", "end_ns", "no such figure"} - {"step_ns"})
COLUMN = st.lists(st.just(MISSING) | st.integers(0, 2**40), min_size=4, max_size=4) | st.lists(
    st.integers(0, 9), min_size=4, max_size=4
)


def _steps() -> list[StepRecord]:
    """Steps of three runs that alternate, of which some lack some figures; the run "stray" has one stray kernel."""
    random = np.random.default_rng(11)

    def some(figure: int) -> int | None:
        return None if random.random() < 0.2 else figure + int(random.integers(9999))

    steps = [
        step_record(
            seq=seq,
            run_id=run_id,
            program="pq"[seq // 3 % 2],
            device_clock={"host": "host", "stray": "device", "untimed": "none"}[run_id],
            device_start_ns=36_914_000 + seq * 10**8,
            alloc_ns=some(7),
            feed_ns=some(5_000),
            launch_ns=some(10_000),
            starved_ns=some(40_000_000),
            launch_start_ns=36_911_500 + seq * 10**8,
            retire_start_ns=73_715_000 + seq * 10**8,
            accept_ns=1_000_100 + seq * 10**8,
            device_ns=some(36_000_000),
            d2h_ns=some(900),
            sm_nbytes=some(200_000),
        )
        for seq in range(99)
        for run_id in ("host", "stray", "untimed")
    ]
    steps[1] = step_record(seq=0, run_id="stray", program="p", device_clock="device", device_start_ns=1)
    return steps


def _frame(steps: list[StepRecord]) -> StepFrame:
    scanner = Scanner()
    scanner.add(steps)
    return scanner.frames().steps


def _summary(steps: list[StepRecord]) -> Summary:
    scanner = Scanner()
    scanner.add(steps)
    return summarize_frames(scanner.frames())


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames hold seven steps at a time."""
    monkeypatch.setattr(_table, "_BLOCK_ROWS", 7)


@pytest.mark.usefixtures("small_blocks")
def test_parts_have_the_figures_of_the_whole() -> None:
    """Part by part, steps have the figures that they have together, also where one part tells of another's clock."""
    frame = _frame(_steps())
    assert {frame.column(name).dtype for name in FIGURE_FIELDS} == {np.dtype(np.int64)}
    runs = [StepRows(run) for run in frame.split(lambda kind: kind.run_id).values()]
    rows = JoinedRows(runs)
    parts = list(rows.parts())
    assert len(parts) > 9
    assert [len(part) for part in parts] == [len(part.figure("seq")) for part in parts]
    for name in NAMES:
        assert [value for part in parts for value in part.figure(name).tolist()] == rows.figure(name).tolist()


def test_times_between_host_and_device_need_one_clock() -> None:
    """Waits for the device are known of the run on the host's clock, and of none of the one with a stray kernel."""
    runs = _frame(_steps()).split(lambda kind: kind.run_id)
    for name in ("copy_wait_ns", "device_wait_ns", "retire_wait_ns"):
        known = {run_id: len(known_of(StepRows(run).figure(name))) for run_id, run in runs.items()}
        assert known.pop("host") > 50
        assert known == {"stray": 0, "untimed": 0}
        together = StepRows(_frame(_steps())).figure(name).tolist()
        assert together[::3] == StepRows(runs["host"]).figure(name).tolist()
        assert {*together[1::3], *together[2::3]} == {MISSING}


@pytest.mark.parametrize(
    ("start_ns", "length_ns", "is_one"),
    [(100, 400, True), (99, 400, False), (101, 400, False), (500, 0, True), (None, 400, False), (100, None, False)],
)
def test_a_device_clock_is_the_hosts_if_kernels_lie_between_launch_and_end(
    start_ns: int | None, length_ns: int | None, is_one: bool
) -> None:
    """It may start with its launch and end with its retirement, but not a nanosecond off; without one nothing shows."""
    ran = {"launch_start_ns": 100, "retire_start_ns": 500, "device_start_ns": start_ns, "device_ns": length_ns}
    stray = ran | {"retire_start_ns": 1}
    steps = [
        step_record(seq=1, run_id="host", program="p", **stray),
        step_record(seq=2, run_id="host", program="q", **ran),
        step_record(seq=3, run_id="own", device_clock="device", program="p", **ran),
        step_record(seq=4, run_id="own", device_clock="device", program="q", **ran),
        step_record(seq=5, run_id="late", device_clock="device", **stray),
        step_record(seq=6, run_id="own", device_clock="none", **stray),
        step_record(seq=7, run_id="none", device_clock="none"),
    ]
    assert kinds_on_host_clock(_frame(steps)).tolist() == [True, True, is_one, is_one, False, False, False]
    assert kinds_on_host_clock(StepFrame([], [])).tolist() == []


def test_a_summary_does_not_depend_on_how_steps_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of any size, and computed in threads or not, the summary is the same in every figure and word."""
    steps = _steps()
    whole = _summary(steps)
    assert len(whole.runs) == 3
    assert {verdict.bound for run in whole.runs for group in run.groups if (verdict := group.verdict)} == {
        "copy",
        "starved",
    }
    for block_rows, rows_for_threads in ((1, 10**6), (7, 0), (50, 0)):
        monkeypatch.setattr(_table, "_BLOCK_ROWS", block_rows)
        monkeypatch.setattr(_distributions, "_ROWS_FOR_THREADS", rows_for_threads)
        assert _summary(steps) == whole


def test_no_rows_have_no_figures() -> None:
    """Without a step every figure is an empty column, and there are no parts with any."""
    for rows in (StepRows(StepFrame([], [])), LineRows(), JoinedRows([])):
        assert [len(rows.figure(name)) for name in NAMES] == [0] * len(NAMES)
        assert sum(len(part) for part in rows.parts()) == 0


@given(COLUMN, COLUMN, st.lists(st.booleans(), min_size=4, max_size=4))
def test_arithmetic_of_columns_is_that_of_a_loop(first: list[int], second: list[int], mask: list[bool]) -> None:
    """Sums, times, rates and choices are those of a plain loop, missing where a value is, and leave columns alone."""
    a, b = np.array(first, np.int64), np.array(second, np.int64)
    pairs = [None if MISSING in pair else pair for pair in zip(first, second, strict=True)]
    assert added(a, b).tolist() == [MISSING if pair is None else sum(pair) for pair in pairs]
    assert between(a, b).tolist() == [
        MISSING if pair is None or pair[1] < pair[0] else pair[1] - pair[0] for pair in pairs
    ]
    assert rate(a, b).tolist() == [
        MISSING if pair is None or not pair[1] else pair[0] * 1000 // pair[1] for pair in pairs
    ]
    assert known_of(a).tolist() == [value for value in first if value != MISSING]
    assert chosen(a, np.array(mask)).tolist() == [value for value, wanted in zip(first, mask, strict=True) if wanted]
    assert (a.tolist(), b.tolist()) == (first, second)


@pytest.mark.parametrize(
    ("kernels", "window_ns", "busy_ns"),
    [
        ([(0, 100), (10, 5)], 100, 100),
        ([(0, 100), (10, 5), (50, 60)], 110, 110),
        ([(50, 60), (10, 5), (0, 100)], 110, 110),
        ([(0, 10), (10, 5), (20, 5)], 25, 20),
        ([(0, 10), (None, 5), (20, None), (30, 1)], 31, 11),
    ],
)
def test_kernels_that_overlap_count_once(
    kernels: list[tuple[int | None, int | None]], window_ns: int, busy_ns: int
) -> None:
    """Also one inside another, in whatever order they are logged; those without a start or a length do not count."""
    steps = [
        step_record(seq=seq, device_start_ns=start_ns, device_ns=length_ns)
        for seq, (start_ns, length_ns) in enumerate(kernels)
    ]
    rows = StepRows(_frame(steps))
    assert device_time([rows]) == (window_ns, busy_ns)
    parts = [StepRows(_frame([step])) for step in steps]
    assert device_time(parts) == (window_ns, busy_ns)
    assert device_time(parts[:1]) is None


def test_intervals_go_to_the_group_of_the_step_that_ends_them() -> None:
    """Steps of two groups take turns, and the end of one is not known."""
    ends = [(0, 10), (1, 30), (0, None), (1, 31), (0, 100)]
    groups: list[list[StepRecord]] = [[], []]
    for seq, (group, end_ns) in enumerate(ends):
        groups[group].append(step_record(seq=seq, accept_ns=0, total_ns=end_ns))
    assert [found.tolist() for found in step_intervals([StepRows(_frame(steps)) for steps in groups])] == [
        [69],
        [20, 1],
    ]


@given(st.lists(st.just(MISSING) | st.integers(0, 5), max_size=30))
def test_the_step_at_the_p50_is_the_one_that_a_stable_sort_puts_there(values: list[int]) -> None:
    """Of steps that have the same value too; none if no step has one."""
    rows = sorted((row for row, value in enumerate(values) if value != MISSING), key=lambda row: values[row])
    expected = rows[(len(rows) + 1) // 2 - 1] if rows else None
    assert _at_p50._step_at_p50(np.array(values, np.int64)) == expected
