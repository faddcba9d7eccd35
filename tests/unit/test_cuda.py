"""The backend ``cuda`` where there is no NVIDIA device: not run there, but it imports, refuses, and compiles."""

from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType
from typing import Any

import pytest

from async_orch import open_backend
from async_orch.exceptions import BackendUnavailable, ConfigurationError
from tests.conformance.cuda_kernels import compiled


class Code(IntEnum):
    """Error values as cuda-bindings gives them."""

    cudaSuccess = 0  # noqa: N815 - the runtime's name
    cudaErrorInsufficientDriver = 35  # noqa: N815


def _install(monkeypatch: pytest.MonkeyPatch, code: Code, count: int | None) -> None:
    """Modules that know how many devices there are, and nothing else."""
    modules: dict[str, Any] = {
        name: ModuleType(name)
        for name in ("cuda", "cuda.core", "cuda.bindings", "cuda.bindings.driver", "cuda.bindings.runtime")
    }
    modules["cuda.bindings.runtime"].cudaGetDeviceCount = lambda: (code, count)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_without_a_driver_it_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime gives error 35 as a value; nothing else of the driver is touched, as that might hang."""
    _install(monkeypatch, Code.cudaErrorInsufficientDriver, None)
    with pytest.raises(BackendUnavailable, match=r"cudaErrorInsufficientDriver \(35\); install the driver") as caught:
        open_backend("cuda")
    assert "\n" not in str(caught.value)


def test_a_name_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how many devices there are."""
    _install(monkeypatch, Code.cudaSuccess, 2)
    with pytest.raises(BackendUnavailable, match="'cuda:2' is out of range: this machine has 2 NVIDIA devices"):
        open_backend("cuda:2")
    with pytest.raises(BackendUnavailable, match="'cuda:a' names no device"):
        open_backend("cuda:a")


def test_options_are_checked() -> None:
    """Unknown ones are named, and so is a stream that is none."""
    with pytest.raises(ConfigurationError, match="got priority"):
        open_backend("cuda", priority=1)
    with pytest.raises(ConfigurationError, match="compute_stream must speak __cuda_stream__, got int"):
        open_backend("cuda", compute_stream=3)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_device_code_compiles_without_a_device(arch: str) -> None:
    """NVRTC, where it is installed, makes a cubin of the conformance suite's kernels for both architectures."""
    pytest.importorskip("cuda.core", reason="cuda-core is not installed: pip install 'async-orch[cuda13]'")
    pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda-core is not installed")
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc, or a CUDA toolkit")
    cubin = bytes(compiled(arch).code)
    assert cubin.startswith(b"\x7fELF")
    assert all(name in cubin for name in (b"add_one", b"spin"))
