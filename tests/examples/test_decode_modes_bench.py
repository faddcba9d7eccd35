"""The bench of end-to-end modes: the modes that it runs, and what it refuses to give a figure for."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from async_orch import open_backend
from examples.large.runner import SETTINGS, Setting
from examples.qwen3.figures import ModeRun
from tests.bench import decode_modes
from tests.bench._kit import CheckFailed
from tests.examples.support import make_checkpoint

MODES = ["naive", "ring", "pipelined", "pipelined + delta"]


def test_every_mode_is_run_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table and raw figures have all four modes, each with a run for each round, and ratios to pipelined."""
    make_checkpoint(tmp_path, seed=1)
    monkeypatch.setattr(decode_modes, "CHECKPOINT", tmp_path)
    path = tmp_path / "raw.json"
    monkeypatch.setattr(
        sys, "argv", ["decode_modes", "--rounds=2", "--tokens=6", "--backend=sim:instant", f"--json={path}"]
    )
    decode_modes.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(tuple(MODES))]
    assert len(rows) == 4
    figures = json.loads(path.read_text("utf-8"))["figures"]
    assert list(figures["modes"]) == MODES
    assert figures["ratio_to_pipelined"]["pipelined"] == [1.0, 1.0]
    for name, runs in figures["modes"].items():
        assert len(runs) == 2
        assert all((run["steady"]["alloc_nbytes_per_step"] > 0) == (name == "naive") for run in runs)
    whole, delta = (figures["modes"][name][0]["steady"]["copy_nbytes_per_step"] for name in MODES[2:])
    assert delta < whole


def test_tokens_that_differ_give_no_figure(tmp_path: Path) -> None:
    """A mode that chooses other tokens fails the check by name, in the round where it does."""
    make_checkpoint(tmp_path, seed=1)
    backend = open_backend("sim:instant")
    run = decode_modes.checkpoint_runs(tmp_path, backend, 3)

    def wrong(setting: Setting) -> ModeRun:
        found = run(setting)
        return dataclasses.replace(found, tokens=[[1]]) if setting == SETTINGS[3] else found

    with pytest.raises(CheckFailed, match=r"round 0: mode pipelined \+ delta chose other tokens"):
        decode_modes.measure(wrong, 1)
    backend.close()
