"""The backend ``cuda`` on the fake ``cuda.core`` through the public conformance suite: tested against a fake."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator

import pytest
from async_orch_backends.cuda_driver import CudaBackend, Launch
from async_orch_backends.cuda_driver import open_backend as open_cuda

from async_orch.abc import Buffer, Stream
from async_orch.testing import Kernels, ManualFence, conformance_suite
from tests.fakes.fake_cuda import FakeCuda, Kernel, LaunchConfig
from tests.fakes.fake_cuda_device import CUresult

CONFIG = LaunchConfig(grid=1, block=256)


def _add_one(address: int, nbytes: int) -> None:
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    for index in range(nbytes):
        memory[index] = (memory[index] + 1) % 256


class CudaKernels(Kernels):
    """Kernels of the fake device."""

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        stream.launch(Launch(Kernel(_add_one), CONFIG), buffer, buffer.nbytes)

    def fail(self, stream: Stream) -> None:
        stream.launch(Launch(Kernel(lambda: None, CUresult.CUDA_ERROR_LAUNCH_FAILED), CONFIG))

    def fail_copy(self, stream: Stream, source: Buffer) -> None:
        stream.launch(Launch(Kernel(lambda address: None, CUresult.CUDA_ERROR_ILLEGAL_ADDRESS), CONFIG), source)

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fresh fake for each test, which must be clean when the test's backend is closed."""
    fake = FakeCuda()
    fake.install(monkeypatch)
    yield
    fake.gpu.check_clean()


def _native(compute: Stream, copy: Stream) -> CudaBackend:
    return open_cuda(compute_stream=compute.native, copy_stream=copy.native)


TestCuda = conformance_suite(
    open_cuda,
    kernels=CudaKernels(),
    open_adopting=lambda compute, copy: open_cuda(compute_stream=compute, copy_stream=copy),
    isolates=False,
)
TestCudaOnNativeStreams = conformance_suite(open_cuda, kernels=CudaKernels(), open_adopting=_native, isolates=False)
