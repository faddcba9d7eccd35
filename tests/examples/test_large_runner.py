"""The decode runner with a shape in place of a model: its modes, its figures, and the schedule of its graph."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest

from async_orch import open_backend
from async_orch.graph import Executor, ImageCorrupt, UnrolledTask
from examples.decode_runner import main
from examples.large import runner
from examples.large.program import REPORT, LargeDecode
from examples.large.scheduling import schedule
from examples.large.shape import QWEN3_14B

SMALL = dataclasses.replace(QWEN3_14B, name="small", layers=2, vocab=512)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of two layers under the name small."""
    monkeypatch.setattr(runner, "SHAPES", {"small": SMALL})


def test_every_mode_runs_every_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Each mode gives its figures, and only naive allocates."""
    assert main(["--shape", "small", "--backend", "sim:instant", "--steps", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["naive", "ring", "pipelined", "pipelined + delta"]
    for name, figures in found.items():
        assert figures["steps"] == 6
        assert (figures["alloc_nbytes_per_step"] > 0) == (name == "naive")


def test_the_table_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The table names graph, schedule and how far the figures can be trusted."""
    assert main(["--shape=small", "--backend", "sim:instant", "--steps", "3", "--mode", "pipelined"]) == 0
    out = capsys.readouterr().out
    assert "9 tasks, 2 of them replays of one Definition of 277 tasks with 26 parameters" in out
    assert "sim:instant: tested against a fake; 3 steps a mode" in out


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "sim:a5-report",
            "kernel_ns 36.8 ms, alloc_fixed_ns 0, copy_fixed_ns 0, launch_ns 0, jitter 0; kernel_ns is the device time",
        ),
        ("sim:a2a3-published", "alloc_fixed_ns 0, launch_ns 0, jitter 0"),
        ("sim:instant", None),
    ],
)
def test_assumed_figures_are_said_on_screen(name: str, line: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Above the table stand the figures of the profile that have no source, with their values."""
    assert main(["--shape=small", "--backend", name, "--steps", "2", "--mode", "ring"]) == 0
    lines = [each.removesuffix(" of a step") for each in capsys.readouterr().out.splitlines()]
    said = [each for each in lines if "assumed, not" in each]
    assert said == ([] if line is None else [f"assumed, not published for this device: {line}"])


def test_published_figures_are_a_profile() -> None:
    """The profile a2a3-published opens and says what it is calibrated to."""
    backend = open_backend("sim:a2a3-published")
    assert backend.info.support.startswith("calibrated to published a2a3 figures")
    backend.close()


def test_the_report_has_room_for_the_graph() -> None:
    """With the report's sizes the image is padded, and of the bytes only the graph's count as the task table."""
    program = LargeDecode(SMALL, REPORT)
    built = program.build(0, np.zeros(5_543_943, np.uint8))
    assert built.nbytes == 5_543_943
    assert built.sm_nbytes == program.graph_nbytes


def test_a_damaged_step_is_refused() -> None:
    """The device side checks every image; one that names memory beyond a region is refused without any memory."""
    program = LargeDecode(SMALL)
    check = Executor(program.table).check
    sizes = program.graph.region_nbytes
    assert check(program.probe, sizes, definitions=program.content) == 2 * 277 + 6 + 128
    with pytest.raises(ImageCorrupt, match=r"regions.nbytes\[3\] is \d+, must be at most 5, the bytes of 'weights'"):
        check(program.probe, {**sizes, "weights": 5}, definitions=program.content)
    damaged = program.content.copy()
    damaged[-1] ^= 1
    with pytest.raises(ImageCorrupt, match=r"fingerprint"):
        check(program.probe, sizes, definitions=damaged)


def test_a_schedule_fills_the_cores() -> None:
    """Calls start when their producers are done and a core is free; the longest chain bounds any number of cores."""
    calls = [UnrolledTask("k", (), frozenset(after), 0) for after in ((), (), (), (0,), (3,))]
    found = schedule(calls, [1, 2, 3, 1, 1], 2)
    assert (found.makespan, found.work, found.critical) == (4, 8, 3)
    assert schedule(calls, [1, 2, 3, 1, 1], 1).makespan == 8
    assert schedule(calls, [1, 2, 3, 1, 1], 9).makespan == 3


def test_help_names_a_command_that_shows_the_options_of_a_shape(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What --help says to type gives the usage of the same command, with the options that --shape has."""
    monkeypatch.setattr(runner, "SHAPES", {"qwen3-14b": QWEN3_14B})
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    found = re.search(r"its options: (--shape \S+ --help)", " ".join(capsys.readouterr().out.split()))
    assert found is not None
    with pytest.raises(SystemExit) as ended:
        main(found[1].split())
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: decode_runner [-h] --shape {qwen3-14b}")
    assert "--steps N" in shown
