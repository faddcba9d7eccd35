"""``async-orch bench``: that its figures come from runs that did their work, and from no others."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from async_orch import _bench
from async_orch._bench import FIGURES, CheckFailed, Shape, _checks, _figures, engine_cost, measure_feed, measure_overlap
from async_orch._bench._overlap import TimedSteps
from async_orch.abc import ByteArray
from async_orch.cli import main
from tests.bench import growth, lag
from tests.unit.test_layering import imports_of


def test_quick_run_shows_every_figure() -> None:
    """--quick --json gives each figure with its spread and the machine, in one object, and exits 0."""
    command = [sys.executable, "-m", "async_orch", "bench", "--quick", "--rounds", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [figure["name"] for figure in document["figures"]] == [recipe.name for recipe in FIGURES]
    for figure in document["figures"]:
        assert figure["value"] > 0, figure
        assert figure["least"] <= figure["value"] <= figure["most"]
        assert figure["why_not"] is None
    assert document["machine"]["cores"] >= 1


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_failed_check_shows_no_figure(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure whose run failed its check is not shown; the reason is, and the exit code is 1."""

    async def fails(size: float) -> Any:
        raise CheckFailed("of 10 steps 9 came out")

    recipe = FIGURES[0]._replace(measure=fails)
    monkeypatch.setattr(_figures, "FIGURES", (recipe,))
    assert main(["bench", *(["--json"] if form == "json" else [])]) == 1
    out = capsys.readouterr().out
    assert "of 10 steps 9 came out" in out
    if form == "json":
        assert json.loads(out)["figures"][0]["value"] is None


@pytest.mark.parametrize("rounds", ["0", "-1", "many", "2.5", "100000"])
def test_bad_rounds_are_one_line_and_exit_2(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number of rounds that cannot be is named in one line."""
    assert main(["bench", "--rounds", rounds]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "--rounds" in err


async def test_lost_work_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose data does not come back make a run fail its check."""

    def build(self: TimedSteps, step: int, image: ByteArray) -> None:
        image[:8].view("i8")[0] = 7

    monkeypatch.setattr(TimedSteps, "build", build)
    with pytest.raises(CheckFailed, match="came out, or not in order"):
        await measure_overlap(Shape(0.01, 0.01, 0.01), 20)
    with pytest.raises(CheckFailed, match="came out, or not in order"):
        await measure_feed(20, device_ms=0.01)


async def test_dropped_records_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step log that dropped a record gives no figure."""
    monkeypatch.setattr("async_orch._records.BUFFER_RECORDS", 1)
    with pytest.raises(CheckFailed, match="dropped"):
        await engine_cost(500, log=tmp_path / "run.jsonl")


@pytest.mark.parametrize(
    ("spans", "said"),
    [
        ([(0, 10), (9, 10)], "overlap by 1 ns"),
        ([(0, 10), (10, 9)], "took 9 ns, its device takes 10 ns"),
        ([(0, None)], "without times"),
    ],
)
def test_streams_that_break_physics_are_noticed(spans: list[tuple[int, int | None]], said: str) -> None:
    """Operations of one stream that overlap, or are shorter than their device takes, fail the check."""
    _checks.check_intervals("copy", [(0, 10), (10, 10)], least_ns=10)
    with pytest.raises(CheckFailed, match=said):
        _checks.check_intervals("copy", spans, least_ns=10)


def test_slots_that_do_not_cycle_are_noticed() -> None:
    """A slot that never took part, or a generation out of turn, fails the check."""
    uses: Any = [SimpleNamespace(slot=0, generation=0), SimpleNamespace(slot=1, generation=0)]
    _checks.check_slots(uses, 2)
    with pytest.raises(CheckFailed, match="2 of 3 slots"):
        _checks.check_slots(uses, 3)
    with pytest.raises(CheckFailed, match="generation 0, should be 1"):
        _checks.check_slots([*uses, uses[0]], 2)


def test_results_of_a_threaded_run_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device of threads whose operations overlap gives no figure."""

    def fails(name: str, spans: Any, **limits: int) -> None:
        assert len(list(spans)) > 20
        raise CheckFailed(f"operations of the {name} stream overlap")

    monkeypatch.setattr("async_orch._bench._wakeups.check_intervals", fails)
    with pytest.raises(CheckFailed, match="copy stream overlap"):
        asyncio.run(_bench.threaded_cost(20))


def _lag_run() -> tuple[list[Any], list[dict[str, Any]], Any]:
    """Four steps that did their work on two streams: results, log and counts."""
    ms = 1_000_000
    results = [SimpleNamespace(output=i, slot=i % 3, generation=i // 3) for i in range(4)]
    log = [
        {
            "event": "step.completed", "seq": i, "build_ns": 8 * ms, "h2d_start_ns": 10 * ms * i, "h2d_ns": ms,
            "device_start_ns": 10 * ms * i, "device_ns": 10 * ms,
        }
        for i in range(4)
    ]  # fmt: skip
    counted = SimpleNamespace(submitted=4, completed=4, step_path_allocs=0, slots_leased=0, records_dropped=0)
    return results, log, counted


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (lambda results, log, counted: None, None),
        (lambda results, log, counted: log.pop(), "in order"),
        (lambda results, log, counted: log[2].update(device_ns=9_000_000), "its device takes"),
        (lambda results, log, counted: log[2].update(h2d_start_ns=10_000_000), "overlap"),
        (lambda results, log, counted: setattr(results[3], "generation", 0), "generation"),
        (lambda results, log, counted: setattr(counted, "records_dropped", 1), "dropped"),
        (lambda results, log, counted: log[1].update(event="step.failed"), "complete"),
    ],
)
def test_what_the_bench_of_builds_checks(breaks: Any, said: str | None) -> None:
    """Lost records, slots out of turn, and device operations that overlap or are too short give no figure."""
    results, log, counted = _lag_run()
    breaks(results, log, counted)
    data = b"\n".join(json.dumps(line).encode() for line in log)
    if said is None:
        assert lag.check(results, data, counted) == 8_000_000
    else:
        with pytest.raises(CheckFailed, match=said):
            lag.check(results, data, counted)


def test_growth_is_told_from_a_disturbance() -> None:
    """A step that gets dearer shows in the late windows' median; the first window, and a slow spell, do not count."""
    window_us = [99.0, *[10.0] * 59, *[30.0] * 40, *[10.0] * 800, *[12.0] * 60, *[40.0] * 40]
    found = growth.tenths(window_us)
    assert (found["tenth_1_us"], found["tenth_5_us"], found["tenth_10_us"]) == (10.0, 10.0, 12.0)


def test_it_measures_what_users_have() -> None:
    """The bench uses public names only, so that its figures are those of a user's program."""
    for path in Path(_bench.__file__).parent.glob("*.py"):
        assert {name for name in imports_of(path) if name.startswith("_")} <= {"_bench"}, path
