"""Logs that someone broke on purpose: every command answers each with figures, or with one line and exit code 2."""

from __future__ import annotations

import contextlib
import gzip
import random
from pathlib import Path

import pytest

from async_orch.cli import main
from async_orch.logs import encode_line
from tests.unit.step_records import step_record

PERIOD = 10**8
OPENED = b'{"event":"orchestrator.opened","run_id":"run-a","config":%s}\n'


def steps(count: int = 24) -> list[bytes]:
    """Lines of a sound run: the steps of `step_record`, one after the other."""
    starts = (
        *("submit_ns", "accept_ns", "build_start_ns", "acquire_start_ns"),
        *("h2d_start_ns", "launch_start_ns", "device_start_ns", "retire_start_ns"),
    )
    sound = step_record()
    return [
        encode_line(step_record(seq=seq, **{name: getattr(sound, name) + seq * PERIOD for name in starts}))
        for seq in range(count)
    ]


def logs() -> dict[str, bytes]:
    lines = steps()
    good = b"".join(lines)
    numbers = (b"9223372036854775808", b"1e400", b"NaN", b"-1", b"1.5", b"9" * 400, b"true", b'"7"', b"00", b"1e3")
    return {
        "empty": b"",
        "binary": random.Random(1).randbytes(50_000),
        "sound": OPENED % b'{"slots":3,"queue_depth":2,"mode":"pipelined"}' + good,
        "truncated.gz": gzip.compress(good)[:-100],
        "no.gz": b"\x1f\x8b\x08\x00junkjunkjunk",
        "no.zst": b"\x28\xb5\x2f\xfdjunk",
        "unknown-schema": good.replace(b'"schema":2', b'"schema":9'),
        "twice": good + good,
        "without-ends": b"".join(lines[::3]),
        "two-a-line": lines[0].strip() + lines[1] + lines[2].strip() + b" " + lines[3],
        "nul": b"\x00" * 5000 + b"\n" + lines[0].replace(b"run-a", b"run\x00a") + good,
        "long": b'{"event":"step.completed","attrs":"' + b"x" * 1_100_000 + b'"}\n' + good,
        "deep": b'{"event":"step.completed","attrs":' + b"[" * 90_000 + b"]" * 90_000 + b"}\n" + good,
        "numbers": b"".join(lines[0].replace(b":3678950", b":" + number) for number in numbers) + good,
        "other-clock": good.replace(b'"accept_ns":1000100', b'"accept_ns":4611686018427387904'),
        "no-time": good.replace(b'"total_ns":72715900', b'"total_ns":0').replace(b":36800000", b":0"),
        "odd-opening": OPENED % b'{"slots":"many","mode":7,"build_in":"thread","build_workers":1e99}' + good,
        "opening-list": OPENED % b"[1]" + good,
        "utf-16": good.decode().encode("utf-16"),
        "spans": b"[STRACE] v=1 pid=1 tid=1 inv=7 hid=9 depth=0 name=%00 ts=4611686018427387904 dur=9007199254740992\n"
        b"bind phase=arena_h2d start_ns=0 dur_ns=0\n",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs")
    for name, content in logs().items():
        (path / name).write_bytes(content)
    (path / "folder").mkdir()
    return path


@pytest.mark.parametrize(
    "command",
    [
        "analyze LOG",
        "analyze LOG --format json",
        "analyze LOG --format host-orch",
        "report LOG -o OUT",
        "trace LOG -o OUT",
        "trace LOG --strace -o OUT",
        "compare LOG SOUND",
        "check LOG --max-p99-ms 100 --min-overlap 0.1 --max-missing 0 --max-contradictions 0",
        "whatif LOG --slots 1..3",
    ],
)
def test_a_broken_log_gives_figures_or_one_line(
    command: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No broken log raises; exit code 2 comes with one line that names the log, and 0 or 1 with an answer."""
    names = {"SOUND": str(folder / "sound"), "OUT": str(tmp_path / "out")}
    code: object = None
    for name in [*logs(), "folder", "missing"]:
        arguments = [names.get(word, word) for word in command.split()]
        arguments = [str(folder / name) if word == "LOG" else word for word in arguments]
        code = None
        with contextlib.suppress(SystemExit):
            code = main(arguments)
        captured = capsys.readouterr()
        assert code in (0, 1, 2), (name, captured.err)
        if code == 2:
            assert captured.err.count("\n") == 1, (name, captured.err)
            assert not captured.out, name
        else:
            assert captured.out or "OUT" in command, name
    assert code == 2  # a file that is not there
