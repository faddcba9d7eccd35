"""The backend ``torch`` on an accelerator through the public conformance suite: skipped without one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from async_orch import open_backend
from async_orch.abc import Buffer, Stream
from async_orch.testing import Kernels, ManualFence, conformance_suite

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'async-orch[torch]'")
if not torch.accelerator.is_available():
    pytest.skip(f"no accelerator in torch {torch.__version__}", allow_module_level=True)


def _add_one(tensor: Any) -> None:
    tensor += 1


class AcceleratorKernels(Kernels):
    """There is no kernel that fails among them: that costs the process its device, and every later test with it."""

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        stream.launch(_add_one, buffer)

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish


TestTorchAccelerator = conformance_suite(
    lambda: open_backend("torch"),
    kernels=AcceleratorKernels(),
    open_adopting=lambda compute, copy: open_backend("torch", compute_stream=compute, copy_stream=copy),
    isolates=False,
)
TestTorchAcceleratorOnNativeStreams = conformance_suite(
    lambda: open_backend("torch"),
    kernels=AcceleratorKernels(),
    open_adopting=lambda compute, copy: open_backend("torch", compute_stream=compute.native, copy_stream=copy.native),
    isolates=False,
)
