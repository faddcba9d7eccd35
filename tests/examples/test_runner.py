"""The decode runner's command line: its JSON, its table, its log, and what it says to bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from examples import decode_runner
from examples.qwen3 import options
from examples.qwen3.decode import Mode
from examples.qwen3.program import SlotMemory
from examples.qwen3.tokenizer import TextCodec
from tests.examples.support import make_checkpoint, serial_decode

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "backends" / "async_orch_backends" / "profiles"
KEYS = {
    "ms_per_step_p50",
    "tokens_per_s",
    "alloc_nbytes_per_step",
    "alloc_ms_per_step",
    "copy_mb_per_s",
    "device_idle_share",
    "build_ms_p50",
    "copy_nbytes_per_step",
    "device_ms_p50",
    "open_ms",
    "tokens",
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random model folder; the working folder is a temporary one, where the default log goes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASYNC_ORCH_MODE", raising=False)
    make_checkpoint(tmp_path / "model", seed=7)
    return tmp_path / "model"


def run(model: Path, *arguments: str) -> int:
    prompt = () if "--prompt" in arguments else ("--prompt", "abc")
    return decode_runner.main(["--model", str(model), "--tokens", "5", *prompt, *arguments])


@pytest.mark.parametrize("backend", ["host", "sim:instant", "sim:a5-report"])
def test_json_is_one_object_with_every_mode(model: Path, backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints one object: for each mode the figures and the tokens of a serial run; nothing else."""
    assert run(model, "--json", "--backend", backend, "--prompt", "abc", "--prompt", "Zoë") == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert printed.out.count("\n") == 1
    assert printed.err == ""
    assert list(document) == list(get_args(Mode))
    codec = TextCodec(model, 259)
    expected, _ = serial_decode(model, [codec.encode("abc"), codec.encode("Zoë")], 5)
    for figures in document.values():
        assert figures.keys() >= KEYS
        assert figures["open_ms"] > 0
        assert figures["tokens"] == expected
    assert document["naive"]["alloc_nbytes_per_step"] > 0
    assert document["ring"]["alloc_nbytes_per_step"] == 0
    assert document["pipelined"]["alloc_nbytes_per_step"] == 0


def test_one_mode_of_one_prompt(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--mode` restricts the run to one mode; slots and queues may be as small as one."""
    arguments = ("--json", "--mode", "pipelined", "--prompt", "a", "--slots", "1", "--queue-depth", "1")
    assert run(model, *arguments) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["pipelined"]


def test_text_table_and_log(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal the texts, one table and the log's name are printed without control sequences."""
    assert run(model, "--prompt", "abc", "--log", "steps.jsonl", "--memory", "report") == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    for words in ("naive:\nabc", "ms a step (p50)", "copy MB/s", "device idle share", "warm", "cold", "measured on"):
        assert words in printed
    assert printed.count("5,543,943") >= 3
    lines = [json.loads(line) for line in Path("steps.jsonl").read_text(encoding="utf-8").splitlines()]
    events = [line["event"] for line in lines]
    assert events.count("step.completed") == 3 * (3 - 1 + 5)


def test_the_simulated_device_says_calibrated(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of the report's profile are labelled as calibrated, not as measured."""
    assert run(model, "--backend", "sim:a5-report", "--mode", "ring") == 0
    printed = capsys.readouterr().out
    assert "calibrated to" in printed
    assert "assumed, not published for this device: kernel_ns 36.8 ms, " in printed
    assert "measured" not in printed


def one_line_error(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--backend", "nowhere"), "no backend 'nowhere'; installed: ascend"),
        (("--prompt", "abc", "--prompt", ""), "prompt 2 is empty"),
        (("--log", "."), "cannot write the step log .: Is a directory; pass --log another file"),
        (("--log", "/etc/passwd/log"), "cannot write the step log /etc/passwd/log: Not a directory"),
        (("--slots", "100000000"), "slots=100000000 must be <= 4096"),
        (("--queue-depth", "1000000"), "queue_depth=1000000 must be <= 4096"),
        (("--backend", "\x1b[2J"), r"no backend '\x1b[2J'"),
        (("--prompt", "x" * 60), "prompt 1 is too long: 60 tokens and 5 to generate, but the model has 64"),
    ],
)
def test_bad_values_get_one_line_and_code_2(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """A value that cannot work ends the run with code 2 and one line that says why."""
    assert run(model, *arguments, "--json") == 2
    assert message in one_line_error(capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--slots", "0"), "argument --slots: '0' must be a whole number of at least 1"),
        (("--queue-depth", "-1"), "argument --queue-depth: '-1' must be"),
        (("--tokens", "many"), "argument --tokens: 'many' must be"),
        (("--mode", "fast"), "argument --mode: invalid choice: 'fast'"),
        (("--speed", "9"), "unrecognized arguments: --speed 9"),
        (("--spe\x1bed\n9",), r"unrecognized arguments: --spe\x1bed 9"),
        (("--log", ""), "argument --log: it is empty; give a path"),
        (("--log", "-"), "argument --log: '-' names no file, and the log cannot go to standard output"),
        (("--model", ""), "argument --model: it is empty; give a path"),
    ],
)
def test_bad_options_get_one_line_and_code_2(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """An option that is unknown or has no possible value ends the run with code 2 and one line."""
    with pytest.raises(SystemExit) as exit_info:
        run(model, *arguments)
    assert exit_info.value.code == 2
    assert message in one_line_error(capsys)


def test_bad_model_folders_get_one_line_and_code_2(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that lacks a file, and a checkpoint that disagrees with its config, end the run with code 2."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps({**config, "intermediate_size": 41}), encoding="utf-8")
    assert run(model) == 2
    assert "mlp.gate_proj.weight has shape [40, 24], but config.json asks for [41, 24]" in one_line_error(capsys)
    (model / "tokenizer.json").unlink()
    assert run(model) == 2
    assert "has no tokenizer.json" in one_line_error(capsys)


def test_an_image_larger_than_the_slot_gets_numbers(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that does not fit the slot's image ends the run with code 2 and both sizes."""
    monkeypatch.setitem(options.MEMORY, "report", SlotMemory(image_nbytes=1000))
    assert run(model, "--memory", "report") == 2
    error = one_line_error(capsys)
    assert "image needs" in error
    assert "has 1000 B" in error


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one line has what is needed, for what, what is free and what to lower; nothing was allocated."""
    profile = json.loads((PROFILES / "instant.json").read_text(encoding="utf-8"))
    for free_nbytes, remedy in ((150_000, "have fewer slots"), (20_000, "its weights alone do not fit")):
        Path("small.json").write_text(json.dumps({**profile, "memory_nbytes": free_nbytes}), encoding="utf-8")
        assert run(model, "--backend", "sim:small.json") == 2
        error = one_line_error(capsys)
        assert f"{free_nbytes / 1024:.1f} KiB are free; " in error
        for words in ("the model needs ", "KiB: weights ", "key-value cache", "slots and staging", remedy):
            assert words in error


def test_an_environment_that_overrides_the_mode_is_refused(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ASYNC_ORCH_MODE set, other modes' figures cannot be shown; that mode's can."""
    monkeypatch.setenv("ASYNC_ORCH_MODE", "ring")
    assert run(model) == 2
    assert "ASYNC_ORCH_MODE=ring is set and overrides --mode" in one_line_error(capsys)
    assert run(model, "--mode", "ring", "--json") == 0


@pytest.mark.parametrize("command", [["-m", "examples.decode_runner"], ["examples/decode_runner.py"]])
def test_it_starts_as_module_and_as_file(model: Path, command: list[str]) -> None:
    """Both ways of starting it work from the checkout."""
    arguments = [
        "--model",
        str(model),
        "--tokens",
        "2",
        "--prompt",
        "a",
        "--mode",
        "ring",
        "--json",
        "--log",
        os.devnull,
    ]
    done = subprocess.run([sys.executable, *command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["ring"]["tokens"][0]) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")
def test_a_log_that_could_not_be_written_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A full disk does not pass for a written log: one line, exit code 1, the figures all the same."""
    assert run(model, "--json", "--mode", "ring", "--log", "/dev/full") == 1
    printed = capsys.readouterr()
    assert "ring" in json.loads(printed.out)
    assert printed.err.count("\n") == 1
    assert "step records could not be written to /dev/full" in printed.err


def test_a_mode_variable_that_names_no_mode_says_unset_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The remedy is one that works: --mode takes no such value."""
    monkeypatch.setenv("ASYNC_ORCH_MODE", "foo")
    assert run(model) == 2
    assert "unset it: it names no mode" in capsys.readouterr().err
