"""Backends whose packages are missing: one line each with what to install, and never a broken import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from async_orch import available_backends, open_backend
from async_orch.exceptions import BackendUnavailable

MISSING = [
    ("opencl", "pyopencl", r"pip install 'async-orch\[opencl\]'"),
    ("torch", "torch", r"pip install 'async-orch\[torch\]'"),
    ("ascend", "acl", "install the CANN toolkit"),
    ("cuda", "cuda.core", r"pip install 'async-orch\[cuda13\]'"),
]


@pytest.mark.parametrize(("name", "module", "message"), MISSING)
def test_a_missing_package_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, message: str
) -> None:
    """Whether or not the package is installed here, its absence is reported the same."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BackendUnavailable, match=message) as caught:
        open_backend(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["torch::", "torch:0", "torch:cuda:x", "torch:cuda:0:1", "torch:cuda:-1", "torch: cuda"]
)
def test_a_malformed_name_is_told_whatever_is_missing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What is wrong with it is the same with PyTorch and without, with an accelerator and without."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        BackendUnavailable, match=f"'{name}' names no device: give KIND or KIND:INDEX, as 'torch:cuda:0'"
    ):
        open_backend(name)


def test_backend_modules_import_without_their_packages() -> None:
    """Importing any of our backends imports no driver package."""
    drivers = [module for _, module, _ in MISSING]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({drivers!r})); from importlib.metadata import entry_points; "
        "[point.load() for point in entry_points(group='async_orch.backends') if point.value.startswith('async_orch_')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_projects_backends_are_installed() -> None:
    """Their entry points exist, which does not mean that their devices do."""
    assert {"ascend", "cuda", "host", "opencl", "sim", "torch"} <= set(available_backends())
