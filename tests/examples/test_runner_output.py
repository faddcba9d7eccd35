"""The decode runner's output: what it replaces, what it shows, and what it says when nobody can read it."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from examples import decode_runner
from examples.qwen3.figures import ModeRun, StepFacts
from examples.qwen3.output import OutputError, ReaderGone, writing_output
from examples.qwen3.report import table
from examples.qwen3.show import Display
from examples.qwen3.tokenizer import GrowingText, TextCodec
from tests.examples.support import make_checkpoint
from tests.examples.test_figures import step

ROOT = Path(__file__).resolve().parents[2]
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full here")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A random model folder; the working folder is a temporary one, where the default log goes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASYNC_ORCH_MODE", raising=False)
    make_checkpoint(tmp_path / "model", seed=7)
    return tmp_path / "model"


def run(model: Path, *arguments: str) -> int:
    prompt = () if "--prompt" in arguments else ("--prompt", "abc")
    return decode_runner.main(["--model", str(model), "--tokens", "2", "--mode", "ring", *prompt, *arguments])


def shell(model: Path, line: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a line of bash in which ``run`` is the runner; its exit code is that of the runner."""
    command = f'"{sys.executable}" -m examples.decode_runner --model "{model}" --mode ring --prompt abc --tokens 2'
    script = f'set -o pipefail\nrun() {{ {command} --log "{model}/log" "$@"; }}\n{line}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)


# -- the step log ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"my notes\n", b"\n", b"\xff\xfe", b'{"event": "notes.taken"}\n', b'{"event": 1}\n', b"[1]\n", b"[" * 99_999],
)
def test_a_file_that_is_no_step_log_is_kept(model: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """`--log` with a file of another kind ends with code 2 and one line, and the file is as it was."""
    Path("notes").write_bytes(content)
    assert run(model, "--log", "notes") == 2
    printed = capsys.readouterr()
    assert printed.err == (
        "decode_runner: error: notes exists and is no step log, so it is not replaced; pass --log another name\n"
    )
    assert Path("notes").read_bytes() == content


def test_a_step_log_is_replaced_and_help_says_so(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The log of a run before, and an empty file, give way to the new log; a link is followed."""
    Path("steps").touch()
    Path("link").symlink_to("steps")
    for name in ("steps", "steps", "link"):
        assert run(model, "--log", name) == 0
        events = [json.loads(line)["event"] for line in Path("steps").read_text(encoding="utf-8").splitlines()]
        assert events.count("orchestrator.opened") == 1
        assert events.count("step.completed") == 4
    assert Path("link").is_symlink()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(model, "--help")
    assert "one that is there is replaced, any other file is refused" in " ".join(capsys.readouterr().out.split())


# -- what is shown -----------------------------------------------------------------------------------------


def test_characters_that_the_output_lacks_are_replaced(model: Path) -> None:
    """With an ASCII output the run ends well: text with ?, the table with lines of ASCII."""
    done = shell(model, "run --prompt Zoë", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.isascii()
    assert "\nZo?" in done.stdout


def test_a_terminal_without_the_characters_is_redrawn(model: Path) -> None:
    """The growing text and the bar, too, reach an ASCII terminal, and only the terminal's own controls do."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    text = GrowingText(TextCodec(model, 259))
    with writing_output(stream) as (output, check):
        console = Console(file=output, force_terminal=True, markup=False)
        with Display(console, "ring", 2, ["Zoë\x1b]0;title\x07"], [text]) as display:
            for token in "ë\x1bc".encode():
                text.push(token_of(model, token))
            display.step_done()
        check()
        shown = stream.buffer.getvalue().decode("ascii") if isinstance(stream.buffer, io.BytesIO) else ""
    assert r"Zo?\x1b]0;title\x07" in shown
    assert r"?\x1bc" in shown
    assert "\x1b]" not in shown
    assert "\x1bc" not in shown


def test_loading_shows_on_a_terminal_until_it_is_done(model: Path) -> None:
    """While weights are loaded a bar says how far; before and afterwards there is none."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    display = Display(console, "ring", 2, ["abc"], [GrowingText(TextCodec(model, 259))])

    def shown() -> str:
        with console.capture() as capture:
            console.print(display._render())
        return capture.get()

    assert "loading" not in shown()
    display.loaded(30_000_000, 60_000_000)
    assert "loading" in shown()
    assert "30.0/60.0 MB" in shown()
    display.loaded(60_000_000, 60_000_000)
    assert "loading" not in shown()


def token_of(model: Path, byte: int) -> int:
    """The id of the token that stands for a byte, in the tests' byte-level vocabulary."""
    codec = TextCodec(model, 259)
    return next(token for token in range(256) if codec.token_bytes(token) == bytes([byte]))


def test_nothing_of_the_user_controls_the_terminal(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt's and a file name's control characters are written out, their brackets are no markup."""
    assert run(model, "--prompt", "\x1b[31m[red]a :fox:\nb\r", "--log", "steps[bold]\x1b[2J") == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\r" not in printed
    assert "\\x1b[31m[red]a :fox:\nb\\r" in printed
    assert r"step log: steps[bold]\x1b[2J" in printed


def test_one_is_singular(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One prompt with one token is said so; the part of the table without a step is left out."""
    assert run(model, "--tokens", "1", "--prompt", "a") == 0
    printed = capsys.readouterr().out
    assert "; 1 prompt x 1 token, --memory natural" in printed
    assert "warm" not in printed
    assert printed.count("tokens/s") == 1


def headings(*runs: ModeRun) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    console.print(table(runs))
    assert isinstance(console.file, io.StringIO)
    return re.findall(r"^ {2}((?:warm|cold).*?) *$", console.file.getvalue(), re.MULTILINE)


def test_steps_are_called_what_the_analyser_calls_them() -> None:
    """Naive's steps are cold (each_step), and named only where naive ran; other reasons are those that occurred."""

    def of(mode: str, *reasons: str | None) -> ModeRun:
        facts: list[StepFacts] = [step(10 * n, 10, reason) for n, reason in enumerate(reasons)]
        return ModeRun(mode, [], steps=facts)

    naive, ring = of("naive", "first_launch", "each_step"), of("ring", "first_launch", None)
    threaded = of("pipelined", "worker_start", "first_launch", None)
    assert headings(naive) == ["cold (each_step)", "cold (first_launch)"]
    assert headings(ring) == ["warm", "cold (first_launch)"]
    assert headings(naive, ring) == ["warm; naive: cold (each_step)", "cold (first_launch)"]
    assert headings(threaded) == ["warm", "cold (worker_start, first_launch)"]
    assert naive.cold_reasons == {"first_launch": 1, "each_step": 1}


def test_the_idle_share_says_over_which_steps_it_is(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table's last line names them, and the JSON counts cold steps by reason."""
    assert run(model) == 0
    assert "device idle share: over the steps of each part, but not a run's first" in capsys.readouterr().out
    assert run(model, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ring"]["cold_reasons"] == {"first_launch": 1}


# -- output that nobody can read ---------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "unbuffered"), [("--json", ""), ("", "1"), ("--help", ""), ("--help", "1")])
def test_a_reader_that_leaves_ends_the_run_quietly(model: Path, options: str, unbuffered: str) -> None:
    """As with `| head`: no word, exit code 141."""
    done = shell(model, f"run {options} | true", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (141, "")


@FULL
@pytest.mark.parametrize(
    ("options", "variable"),
    [
        ("--json", "PYTHONUNBUFFERED"),
        ("", "PYTHONUNBUFFERED"),
        ("", "FORCE_COLOR"),
        ("--help", ""),
        ("--help", "PYTHONUNBUFFERED"),
    ],
)
def test_an_output_that_is_full_is_named(model: Path, options: str, variable: str) -> None:
    """One line that names standard output, exit code 1; also while a terminal would be redrawn."""
    done = shell(model, f"run {options} > /dev/full", **({variable: "1"} if variable else {}))
    wanted = "standard output cannot be written: No space left on device; make room, or redirect it to another file"
    assert (done.returncode, done.stderr) == (1, f"decode_runner: error: {wanted}\n")


@pytest.mark.parametrize("options", ["--json", "", "--help"])
def test_a_closed_output_is_refused(model: Path, options: str) -> None:
    """Nothing runs whose result could not be seen: one line, exit code 2, no log."""
    done = shell(model, f"run {options} >&-")
    assert (done.returncode, done.stderr) == (
        2,
        "decode_runner: error: standard output is closed; redirect it to a file, or to /dev/null\n",
    )
    assert not (model / "log").exists()


def test_errors_never_go_to_standard_output(model: Path) -> None:
    """With stderr closed an error is silent, and its exit code remains."""
    done = shell(model, "run --backend nowhere 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


class _Failing(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._failure = error

    def write(self, _: str) -> int:
        raise self._failure


def test_the_first_failure_of_the_output_is_told_once() -> None:
    """Writing never raises; the check does, unless another exception is on its way, which goes first."""
    with pytest.raises(ReaderGone), writing_output(_Failing(BrokenPipeError())) as (output, check):
        assert output.write("text") == 4
        check()
    full = _Failing(OSError(28, "no room"))
    with pytest.raises(OutputError, match="output cannot be written: no room"), writing_output(full) as (output, _):
        output.write("text")
        output.write("more")
    with pytest.raises(LookupError), writing_output(full) as (output, _):
        output.write("text")
        raise LookupError
