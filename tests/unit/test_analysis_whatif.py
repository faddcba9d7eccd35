"""The model of the pipeline against the engine itself, in virtual time, and its answers in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream
from async_orch.analysis import WhatIfError, read_frames, whatif
from async_orch.cli import main
from async_orch.logs import encode_line
from async_orch.testing import run_virtual
from tests.sharing import share_memory
from tests.unit.step_records import step_record

US = 1_000
STEPS = 120
IMAGE_NBYTES = 1 << 16


class Timed(StepProgram[int, int]):
    """Builds, kernels and collects that take the given times, with some variation from step to step."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, output_nbytes=8)

    def __init__(self, backend: SimBackend, build_us: int, device_us: int, retire_us: int) -> None:
        self.backend = backend
        self.build_us, self.device_us, self.retire_us = build_us, device_us, retire_us

    def _pass_time(self, microseconds: float) -> None:
        # In virtual time an allocation lets the host be busy while the device goes on; here a byte takes 1 ns.
        self.backend.alloc(round(microseconds * US)).free()

    def build(self, step: int, image: Any) -> int:
        self._pass_time(self.build_us * (0.8 + 0.1 * (step % 5)))
        return IMAGE_NBYTES

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(lambda: None, cost_ns=self.device_us * US * (9 + step % 3) // 10)

    def collect(self, step: int, output: ByteArray) -> int:
        self._pass_time(self.retire_us)
        return step


def run_engine(
    path: Path,
    build_us: int,
    copy_us: int,
    device_us: int,
    retire_us: int,
    *,
    image_at: Any = "slot",
    **options: Any,
) -> None:
    """Run steps in virtual time and leave their log at `path`."""

    async def steps() -> None:
        profile = SimProfile("model", copy_bytes_per_s=IMAGE_NBYTES * 1e6 / copy_us, alloc_bytes_per_s=1e9)
        backend = SimBackend(profile, clock="virtual")
        program = Timed(backend, build_us, device_us, retire_us)
        program.slot = dataclasses.replace(program.slot, image_at=image_at)
        if image_at == "shared":
            share_memory(backend)
        async with Orchestrator(program, backend=backend, step_log=path, blocked_warning_s=10, **options) as orch:
            async for _ in orch.map(range(STEPS)):
                pass
        backend.close()

    run_virtual(steps())


# build, copy, device and retire in microseconds: which of them is the slowest differs.
WORKLOADS = {
    "device": (600, 900, 3000, 50),
    "copy": (500, 2800, 1500, 50),
    "build": (3200, 500, 1200, 50),
    "even": (1000, 1000, 1050, 100),
}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"slots": 1, "queue_depth": 1},
    {"slots": 2, "queue_depth": 1},
    {"slots": 3, "queue_depth": 2},
    {"slots": 3, "queue_depth": 2, "max_inflight": 1},
    {"slots": 4, "queue_depth": 4, "max_inflight": 2},
    {"slots": 3, "queue_depth": 2, "mode": "ring"},
)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_prediction_is_what_the_engine_does(workload: str, tmp_path: Path) -> None:
    """From one log, the rate of other settings is predicted within 5 % of what the engine then does with them."""
    times = WORKLOADS[workload]
    base = tmp_path / "base.jsonl"
    run_engine(base, *times, slots=3, queue_depth=2)
    found = whatif(read_frames(base), SETTINGS)
    assert abs(found.error) < 0.05
    for number, (setting, predicted) in enumerate(zip(SETTINGS, found.predictions, strict=True)):
        path = tmp_path / f"{number}.jsonl"
        run_engine(path, *times, **setting)
        actual = whatif(read_frames(path), [{}])
        assert predicted.steps_per_s == pytest.approx(actual.measured_steps_per_s, rel=0.05), setting
        assert actual.as_run.setting == predicted.setting


def test_a_run_that_copies_nothing_can_be_predicted(tmp_path: Path) -> None:
    """And what it would be is predicted from a run that copies, by copies that take no time."""
    copies, shares = tmp_path / "copies", tmp_path / "shares"
    run_engine(copies, *WORKLOADS["copy"], slots=3, queue_depth=2)
    run_engine(shares, *WORKLOADS["copy"], slots=3, queue_depth=2, image_at="shared")
    settings: tuple[dict[str, Any], ...] = ({"slots": 1, "queue_depth": 1}, {"mode": "ring"})
    found = whatif(read_frames(shares), settings)
    assert abs(found.error) < 0.05
    for setting, predicted in zip(settings, found.predictions, strict=True):
        path = tmp_path / f"{predicted.setting.mode}"
        run_engine(path, *WORKLOADS["copy"], image_at="shared", **{"slots": 3, "queue_depth": 2, **setting})
        actual = whatif(read_frames(path), [{}])
        assert predicted.steps_per_s == pytest.approx(actual.measured_steps_per_s, rel=0.05), setting
    (without,) = whatif(read_frames(copies), [{"copy_x": 0}]).predictions
    assert without.steps_per_s == pytest.approx(found.measured_steps_per_s, rel=0.05)


def test_predictions_tell_settings_apart(tmp_path: Path) -> None:
    """Over the workloads and settings the rates span more than 3x, and each of three resources bounds some."""
    rates, critical = [], set()
    for workload, times in WORKLOADS.items():
        path = tmp_path / f"{workload}.jsonl"
        run_engine(path, *times, slots=3, queue_depth=2)
        found = whatif(read_frames(path), SETTINGS)
        rates += [item.steps_per_s for item in found.predictions]
        critical |= {item.critical for item in found.predictions}
    assert max(rates) / min(rates) > 3
    assert critical == {"loop", "copy stream", "compute stream"}


def test_factors_and_recommendation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of half the time is predicted from the log alone; the least setting near the best is recommended."""
    log, faster = tmp_path / "log", tmp_path / "faster"
    run_engine(log, *WORKLOADS["copy"], slots=3, queue_depth=2)
    run_engine(faster, 500, 1400, 1500, 50, slots=3, queue_depth=2)
    (half,) = whatif(read_frames(log), [{"copy_x": 0.5}]).predictions
    actual = whatif(read_frames(faster), [{}])
    assert half.steps_per_s == pytest.approx(actual.measured_steps_per_s, rel=0.05)
    assert half.critical == "compute stream"
    assert main(["whatif", str(log), "--slots", "1..6", "--queue-depth", "1,2", "--copy-x", "0.5"]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "<- recommended" in line]
    assert "copy x 0.5" in line
    assert "slots 6" not in line
    assert main(["whatif", str(log), "--slots", "2", "--mode", "ring", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["predictions"][0]["setting"]["mode"] == "ring"


def test_settings_are_compared_over_the_same_steps(tmp_path: Path) -> None:
    """Where nothing but the device counts, more slots change nothing, though its steps become slower in the run."""
    log = tmp_path / "log"
    run_engine(log, *WORKLOADS["device"], slots=3, queue_depth=2)
    lines = log.read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    steps = [record for record in records if record["event"] == "step.completed"]
    for number, record in enumerate(steps):
        record["device_ns"] += 50_000 * number
    log.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    predictions = whatif(read_frames(log), [{"slots": slots} for slots in range(3, 9)]).predictions
    assert len({round(item.steps_per_s, 1) for item in predictions}) == 1


def test_what_needs_another_device_is_not_recommended_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A faster copy that gains nothing is not recommended, and that nothing helps is said."""
    log = tmp_path / "log"
    run_engine(log, *WORKLOADS["device"], slots=3, queue_depth=2)
    assert main(["whatif", str(log), "--slots", "3", "--copy-x", "0.1,1"]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if "<- recommended" in line]
    assert "copy x" not in line
    assert "none of these settings is 1 % faster than the run as it was" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--slots 0", "slots=0 must be a whole number from 1 to 4096"),
        ("--slots a", "'a' is not N, A..B or a list"),
        ("--slots 5..2", "empty range"),
        ("--copy-x -1", "copy_x=-1.0 must be a factor"),
        ("--copy-x x", "is not a list of factors"),
        ("--slots 1..40 --queue-depth 1..40", "1600 combinations"),
        ("--run other", "no run 'other' in the log"),
    ],
)
def test_settings_that_cannot_be_are_named(
    arguments: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong setting is one line on stderr that says what is allowed, with exit code 2."""
    log = tmp_path / "log"
    run_engine(log, *WORKLOADS["even"], slots=3, queue_depth=2)
    assert main(["whatif", str(log), *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_log_without_what_a_prediction_needs(tmp_path: Path) -> None:
    """A log without the opening event, or with too few steps, is said to lack it."""
    log = tmp_path / "log"
    log.write_bytes(b"".join(encode_line(step_record(seq=seq)) for seq in range(50)))
    with pytest.raises(WhatIfError, match=r"lacks the run's orchestrator\.opened"):
        whatif(read_frames(log), [{}])
    log.write_bytes(encode_line(step_record()))
    with pytest.raises(WhatIfError, match="at least 20 are needed"):
        whatif(read_frames(log), [{}])
    log.write_bytes(b"")
    with pytest.raises(WhatIfError, match="no step records"):
        whatif(read_frames(log), [{}])
