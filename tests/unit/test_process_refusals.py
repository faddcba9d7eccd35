"""What cannot be built in worker processes is refused at open, with what to change, before any step starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from async_orch import EngineProgram, Orchestrator, _process_programs
from async_orch.exceptions import ConfigurationError
from async_orch.testing import leak_check
from tests.process_programs import Refuses
from tests.process_support import worker_pids
from tests.programs import Square

ROOT = Path(__file__).resolve().parents[2]
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


class Holds(Square):
    """Has something in its state."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what


class Engine(EngineProgram[int, int]):
    """An engine of the caller's."""

    def prepare(self, step: int, slot_index: int) -> Any:
        return step

    def dispatch(self, prepared: Any) -> Any:
        return prepared

    def reclaim(self, pending: Any, timeout_s: float) -> int:
        return int(pending)


def local() -> Square:
    """A program of a class that no other process can find."""

    class Local(Square):
        pass

    return Local()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A refusal leaves nothing behind."""
    with leak_check():
        yield
    assert worker_pids() == set()


@linux_only
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            local,
            r"program 'default' \(local\.<locals>\.Local\) cannot be made in a worker process: .*top level of a module",
        ),
        (
            lambda: Holds(lambda: 1),
            r"\(Holds\) cannot be made in a worker process: .*lambda.*__getstate__ or __reduce__",
        ),
        (Engine, r"\(Engine\) cannot be made in a worker process: prepare\(\) of an EngineProgram .*build_in='thread'"),
        (
            Refuses,
            r"'default' \(Refuses\) cannot be made in a worker process: RuntimeError: no licence in this process",
        ),
    ],
)
async def test_a_program_that_no_worker_can_make_is_refused_at_open(make: Callable[[], Any], message: str) -> None:
    """The error names the program, why, and what to change; a failure in the worker comes with its traceback."""
    with pytest.raises(ConfigurationError, match=message) as caught:
        async with Orchestrator(make(), "sim:instant", build_in="process"):
            raise AssertionError("opened")
    if make is Refuses:
        assert "process_programs.py" in caught.value.__cause__.__notes__[0]  # type: ignore[union-attr]


async def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off Linux there is no nameless memory to inherit; the message says what to use instead."""
    monkeypatch.setattr(_process_programs, "PLATFORM", "darwin")
    with pytest.raises(ConfigurationError, match=r"build_in='process' needs Linux .* is darwin; use build_in='thread'"):
        async with Orchestrator(Square(), "sim:instant", build_in="process"):
            raise AssertionError("opened")


@linux_only
async def test_a_python_without_memfd_create_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Linux the message says that it is this Python that lacks memfd_create, and what to change."""
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ConfigurationError, match=r"needs os\.memfd_create .* Python was built without.*another build"):
        async with Orchestrator(Square(), "sim:instant", build_in="process"):
            raise AssertionError("opened")


SCRIPT = """
import asyncio
from dataclasses import dataclass
from tests.programs import Square
from async_orch import Orchestrator

@dataclass
class Order:
    value: int

class Mine(Square):
    def build(self, step, image):
        image.value[0] = step.value
    def launch(self, step, slot, stream):
        return super().launch(step.value, slot, stream)

async def main():
    async with Orchestrator(Mine(), "sim:instant", build_in="process") as orch:
        print([result.output async for result in orch.map([Order(3), Order(4)])])
"""
GUARDED = SCRIPT + "\nif __name__ == '__main__':\n    asyncio.run(main())\n"
UNGUARDED = SCRIPT + "\nasyncio.run(main())\n"
BEHIND_GUARD = """
import asyncio
from tests.programs import Square
from async_orch import Orchestrator

if __name__ == "__main__":
    class Order(int):
        pass
    class Mine(Square):
        pass
    async def main(program):
        async with Orchestrator(program, "sim:instant", build_in="process") as orch:
            await orch.run(Order(3))
    for program in (Mine(), Square()):
        try:
            asyncio.run(main(program))
        except Exception as error:
            print(error.__cause__ if type(program) is Square else error)
"""
GUARDED_BESIDE = UNGUARDED + "\nif __name__ == '__main__':\n    print('too late')\n"


def run(*arguments: str, cwd: Path, script: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{cwd}"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        input=script,
    )


@linux_only
@pytest.mark.parametrize("how", ["script", "module"])
def test_a_guarded_script_may_define_program_and_steps(how: str, tmp_path: Path) -> None:
    """What is defined in __main__ is found, run as a file or with -m, whatever its arguments are."""
    (tmp_path / "guarded.py").write_text(GUARDED, encoding="utf-8")
    no_text = os.fsdecode(b"\xff")
    done = run(*(["guarded.py"] if how == "script" else ["-m", "guarded"]), no_text, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[9, 16]\n"), done.stderr


@linux_only
def test_a_script_without_a_guard_is_refused_and_not_run_again(tmp_path: Path) -> None:
    """A worker would run all of it, so none is started; where the guard is beside what matters, the worker refuses."""
    (tmp_path / "plain.py").write_text(UNGUARDED, encoding="utf-8")
    done = run("plain.py", cwd=tmp_path)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "async_orch.exceptions.ConfigurationError: program 'default' (Mine) cannot be made in a worker"
    )
    assert "plain.py, which has no 'if __name__ == \"__main__\":'" in last

    done = run("-c", UNGUARDED, cwd=tmp_path)
    assert "defined in __main__, which has no file that a worker process could import" in done.stderr.splitlines()[-1]

    done = run(cwd=tmp_path, script=GUARDED)  # python < script.py
    assert "defined in __main__, which has no file that a worker process could import" in done.stderr.splitlines()[-1]

    (tmp_path / "beside.py").write_text(GUARDED_BESIDE, encoding="utf-8")
    done = run("beside.py", cwd=tmp_path)
    last = next(
        line for line in done.stderr.splitlines() if line.startswith("async_orch.exceptions.ConfigurationError")
    )
    assert "MisuseError: an orchestrator cannot be opened in a build worker process" in last
    assert "behind 'if __name__ ==" in last


@linux_only
def test_a_class_defined_behind_the_guard_is_named(tmp_path: Path) -> None:
    """Program or step, the error says which class a worker does not find, and where it has to stand."""
    (tmp_path / "behind.py").write_text(BEHIND_GUARD, encoding="utf-8")
    done = run("behind.py", cwd=tmp_path)
    program, step = done.stdout.splitlines()
    assert program.startswith(
        "program 'default' (Mine) cannot be made in a worker process: ConfigurationError: Mine of"
    )
    assert program.endswith("define Mine before that line, on the top level, or in a module")
    assert step.startswith("the step could not be read in the worker process: ConfigurationError: Order of the script")
