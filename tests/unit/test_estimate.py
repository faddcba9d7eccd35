"""`async_orch.analysis.estimate` and ``async-orch estimate``: what overlap would bring."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram, open_backend
from async_orch.abc import ByteArray, Stream
from async_orch.analysis import EstimateError, Setting, StepCost, StepSizes, estimate
from async_orch.analysis._model import simulate
from async_orch.analysis._render_estimate import percent
from async_orch.analysis._whatif import _fill as fill
from async_orch.analysis._whatif import _prediction as prediction
from async_orch.cli import main

MS = 1_000_000
REPORT = ["--build-ms", "3.7", "--h2d-ms", "32", "--launch-ms", "0.2", "--device-ms", "36.8"]


def cost(build: float = 0, copy: float = 0, launch: float = 0, device: float = 0, alloc: float = 0) -> StepCost:
    """Times in milliseconds."""
    build, alloc, copy, launch, device = (round(value * MS) for value in (build, alloc, copy, launch, device))
    return StepCost(build, alloc, copy, launch, device, 0, 0)


def test_three_percent_is_called_three_percent(capsys: pytest.CaptureFixture[str]) -> None:
    """1.2 ms of preparation beside 39 ms on the device are 3 % of a step, and are said to be little."""
    assert main(["estimate", "--build-ms", "1.1", "--h2d-ms", "0", "--launch-ms", "0.1", "--device-ms", "39"]) == 0
    out = capsys.readouterr().out
    assert "Overlap gains little: 3 % of a serial step (1.20 ms)." in out
    assert "The bound is the device, 39.00 ms a step" in out


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (0.0004, "0 %"),
        (0.003, "0.3 %"),
        (0.0299, "3 %"),
        (0.034, "3.4 %"),
        (0.483, "48 %"),
        (0.9999, "99.9 %"),
    ],
)
def test_percent_has_no_more_digits_than_an_estimate(share: float, text: str) -> None:
    """Shares are rounded to what they are worth, and 100 % is never claimed for less."""
    assert percent(share) == text


@pytest.mark.parametrize(
    ("step", "setting", "bound", "expected_ms"),
    [
        (cost(2, 3, 0, 5), Setting(), "device", 5),
        (cost(2, 7, 0, 5), Setting(), "copy stream", 7),
        (cost(6, 1, 0.5, 5), Setting(), "event loop", 6.5),
        (cost(6, 1, 0, 5), Setting(build_workers=1), "build workers", 6),
        (cost(6, 1, 0, 5), Setting(build_workers=2), "device", 5),
        (cost(2, 3, 0, 5), Setting(slots=1), "device", 8),
        (cost(2, 3, 0, 5), Setting(max_inflight=1), "device", 10),
    ],
)
def test_the_slowest_resource_is_the_bound(step: StepCost, setting: Setting, bound: str, expected_ms: float) -> None:
    """A step takes as long as the busiest of device, copy, loop and workers; longer where slots are few."""
    found = estimate(step, setting)
    assert found.bound == bound
    assert found.overlapped_ns == pytest.approx(expected_ms * MS, rel=1e-3)
    assert found.bound_ns <= found.overlapped_ns * 1.000001
    assert found.saved_share == pytest.approx(1 - found.overlapped_ns / found.serial_ns)


@pytest.mark.parametrize("mode", ["ring", "naive"])
def test_serial_sums_are_what_the_model_says(mode: Any) -> None:
    """The sums shown for the serial ways are the times that the simulated serial modes take."""
    step = cost(2, 3, 0, 5, alloc=4)
    found = estimate(step)
    ended = simulate([step] * 20, Setting(mode=mode)).ended
    assert (ended[-1] - ended[-11]) / 10 == (found.naive_ns if mode == "naive" else found.serial_ns)


class _Sized(StepProgram[int, None]):
    slot = SlotSpec(image_nbytes=4096, workspace_nbytes=8192, output_nbytes=4096, feed_nbytes=4096)

    def build(self, step: int, image: ByteArray) -> None:
        """Nothing."""

    def collect(self, step: int, output: ByteArray) -> None:
        """Nothing."""

    def feed(self, step: int, previous: object, feed: ByteArray) -> None:
        """Nothing."""

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        """Nothing."""


async def test_memory_is_what_opening_allocates() -> None:
    """Device memory and staging of the estimate are what an orchestrator with these slots allocates."""
    sizes = StepSizes(image_nbytes=4096, workspace_nbytes=8192, output_nbytes=4096, feed_nbytes=4096)
    found = estimate(cost(1, 1, 1, 1), Setting(slots=5, build_workers=2), sizes)
    backend = open_backend("host")
    try:
        async with Orchestrator(_Sized(), backend, slots=5, build_in="thread", build_workers=2) as orch:
            assert found.device_nbytes == backend.allocated_nbytes
            assert found.staging == orch.statistics().staging_total
    finally:
        backend.close()
    assert found.pinned_nbytes == found.staging * 4096 + 5 * 8192


def test_report_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """The times of the a5 report give serial against overlapped, the cold gain apart, and the memory it costs."""
    sizes = ["--image-nbytes", "5543943", "--workspace-nbytes", "66488960"]
    assert main(["estimate", *REPORT, "--alloc-ms", "75", *sizes]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"allocated each step 147\.70 ms .* allocated once 72\.70 ms .* inline builds 36\.80 ms", out)
    assert "a gain at the start, and none later" in out
    assert "1.98 times the steps" in out
    assert "3 x 72.03 MB = 216.10 MB on the device, 144.07 MB more than a single slot" in out
    assert "By a model, not measured" in out


def test_advice_names_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Where slots or the event loop hold the device up, the text says what the next better setting brings."""
    assert (
        main(["estimate", "--build-ms", "2", "--h2d-ms", "3", "--launch-ms", "0", "--device-ms", "5", "--slots", "1"])
        == 0
    )
    assert "With 3 slots: 5.00 ms a step." in capsys.readouterr().out
    assert main(["estimate", "--build-ms", "6", "--h2d-ms", "1", "--launch-ms", "1", "--device-ms", "5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "With the build off the event loop (--build-workers 1): 6.00 ms a step" in out
    assert 'if it does not hold the GIL; a build that is Python code does, and needs build_in="process" for it.' in out


def test_json_is_one_object_in_ns_and_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """--json prints the attributes of the estimate."""
    assert main(["estimate", *REPORT, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document["cost"]["build_ns"] == 3_700_000
    assert (document["bound"], document["bound_ns"], document["serial_ns"]) == ("device", 36_800_000, 72_700_000)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--build-ms", "nan"], "--build-ms: nan must be from 0 to 3600000 ms"),
        (["--build-ms", "inf"], "--build-ms: inf must be from 0"),
        (["--device-ms", "-1"], "--device-ms: -1 must be from 0"),
        (["--device-ms", "1e9"], "--device-ms: 1e9 must be from 0"),
        (["--h2d-ms", "three"], "'three' is not a number of milliseconds"),
        (["--slots", "0"], "--slots: 0 must be from 1 to 4096"),
        (["--slots", "2.5"], "'2.5' is not a whole number"),
        (["--image-nbytes", "-1"], "--image-nbytes: -1 must be from 0"),
    ],
)
def test_bad_figures_are_one_line_and_exit_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A figure that cannot be is named in one line, before anything is computed."""
    assert main(["estimate", *REPORT, *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


def test_steps_that_take_no_time_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """All times zero say nothing about overlap, and are refused rather than divided by."""
    assert main(["estimate", "--build-ms", "0", "--h2d-ms", "0", "--launch-ms", "0", "--device-ms", "0"]) == 2
    assert "at least one must take time" in capsys.readouterr().err
    with pytest.raises(EstimateError, match="slots=0"):
        estimate(cost(1), Setting(slots=0))
    with pytest.raises(EstimateError, match="device=-1"):
        estimate(StepCost(0, 0, 0, 0, -1, 0, 0))


@pytest.mark.parametrize(
    ("step", "setting"),
    [
        (cost(8, 1, 1, 10), Setting()),
        (cost(0, 0, 9.9, 10), Setting()),
        (cost(19.2, 14.1, 0, 19.5), Setting(slots=2)),
        (cost(0, 0.9, 15.6, 0), Setting(slots=4, queue_depth=3, build_workers=1)),
    ],
)
def test_overlapped_is_never_below_the_bound(step: StepCost, setting: Setting) -> None:
    """Steps whose queues fill slowly, or whose launches come in bursts, are not said to beat the busiest resource."""
    found = estimate(step, setting)
    assert found.overlapped_ns >= found.bound_ns


def test_whatif_is_never_faster_than_the_device() -> None:
    """A prediction from few steps whose queues fill slowly does not beat the time that the device needs for each."""
    step, setting = cost(8, 1, 1, 10), Setting()
    assert prediction(setting, simulate([step] * 150, setting), fill([setting], 150)).steps_per_s <= 100
