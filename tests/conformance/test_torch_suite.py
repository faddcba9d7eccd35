"""``torch:cpu`` through the public conformance suite; the accelerator's code on a fake: tested against a fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from async_orch import open_backend
from async_orch.abc import Buffer, Stream
from async_orch.testing import Kernels, ManualFence, PythonKernels, conformance_suite

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'async-orch[torch]'")

from async_orch_backends.torch_accelerator import TorchBackend  # noqa: E402 - after the check for its extra

from tests.fakes.fake_torch import fake_torch  # noqa: E402


def _add_one(tensor: Any) -> None:
    tensor += 1


class CpuKernels(PythonKernels):
    """Kernels of tensors on host streams."""

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        stream.launch(_add_one, buffer)


class EnqueuingKernels(Kernels):
    """Kernels that enqueue on the current stream."""

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        stream.launch(_add_one, buffer)

    def fail(self, stream: Stream) -> None:
        native = stream.native
        stream.launch(lambda: setattr(native, "failed", "device error: unspecified launch failure"))

    def fail_copy(self, stream: Stream, source: Buffer) -> None:
        native = stream.native
        stream.launch(lambda: setattr(native, "failed", "device error: an illegal memory access was encountered"))

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish


def _open_fake(compute: Stream | None = None, copy: Stream | None = None) -> TorchBackend:
    adopted = {"compute": compute, "copy": copy} if compute is not None else {}
    return TorchBackend(fake_torch(), torch.device("cpu", 0), adopted)


TestTorchCpu = conformance_suite(
    lambda: open_backend("torch:cpu"),
    kernels=CpuKernels(),
    open_adopting=lambda compute, copy: open_backend("torch:cpu", compute_stream=compute, copy_stream=copy),
)
TestTorchOnAFake = conformance_suite(_open_fake, kernels=EnqueuingKernels(), open_adopting=_open_fake, isolates=False)
TestTorchOnAFakeWithNativeStreams = conformance_suite(
    _open_fake,
    kernels=EnqueuingKernels(),
    open_adopting=lambda compute, copy: _open_fake(compute.native, copy.native),
    isolates=False,
)
