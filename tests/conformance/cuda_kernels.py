"""Kernels for the conformance suite in CUDA C++, compiled by NVRTC. Importing this needs neither CUDA nor a driver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from async_orch_backends.cuda_driver import Launch

from async_orch.abc import Buffer, Stream
from async_orch.testing import Kernels, ManualFence

__all__ = ["CudaKernels", "compiled"]

SOURCE = """
extern "C" __global__ void add_one(unsigned char *bytes, unsigned long long nbytes) {
    unsigned long long at = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
    if (at < nbytes) bytes[at] += 1;
}

extern "C" __global__ void spin(unsigned char *out, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    if (threadIdx.x == 0 && blockIdx.x == 0) out[0] += 1;
}
"""

BLOCK = 256


def compiled(arch: str) -> Any:
    """The kernels as a cubin (``cuda.core.ObjectCode``) for an architecture such as ``sm_90``; needs NVRTC only."""
    core = importlib.import_module("cuda.core")
    return core.Program(SOURCE, "c++", core.ProgramOptions(arch=arch)).compile("cubin")


class CudaKernels(Kernels):
    """There is no kernel that fails among them: that costs the process its context, and every later test with it."""

    def __init__(self) -> None:
        self._code: dict[str, Any] = {}

    def kernel(self, stream: Stream, name: str) -> Any:
        """A ``cuda.core.Kernel`` for the device of a stream."""
        arch = f"sm_{stream.native.device.arch}"
        if arch not in self._code:
            self._code[arch] = compiled(arch)
        return self._code[arch].get_kernel(name)

    def add_one_launch(self, stream: Stream, nbytes: int) -> Launch:
        """What is launched with a buffer of so many bytes, and that number as a ``numpy.uint64``."""
        config = importlib.import_module("cuda.core").LaunchConfig(grid=max(-(-nbytes // BLOCK), 1), block=BLOCK)
        return Launch(self.kernel(stream, "add_one"), config)

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        stream.launch(self.add_one_launch(stream, buffer.nbytes), buffer, np.uint64(buffer.nbytes))

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish
