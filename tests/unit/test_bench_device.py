"""The overlap bench for accelerators where there is none: one line, and no figure."""

from __future__ import annotations

import sys

import pytest

from tests.bench.device_overlap import main


def test_without_the_device_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line has the backend's reason, and the exit code is 3."""
    for module in ("cuda.core", "torch"):
        monkeypatch.setitem(sys.modules, module, None)
    for backend in ("cuda:0", "torch:cuda:0"):
        assert main(["--backend", backend]) == 3
        out, err = capsys.readouterr()
        assert out.startswith(f"not run: backend '{backend.partition(':')[0]}' needs ")
        assert (len(out.splitlines()), err) == (1, "")


@pytest.mark.parametrize("arguments", [["--backend", "host"], ["--steps", "1"], ["--rounds", "0"]])
def test_arguments_are_checked(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be measured is refused before anything is opened."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err
