"""The backend ``cuda`` on a GPU through the public conformance suite, and what a fake cannot show."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from async_orch_backends.cuda_driver import Launch
from async_orch_backends.cuda_driver import open_backend as open_cuda

from async_orch.exceptions import BackendUnavailable
from async_orch.testing import conformance_suite
from tests.conformance.cuda_kernels import CudaKernels

try:
    open_cuda().close()
except BackendUnavailable as exc:
    pytest.skip(f"no NVIDIA device: {exc}", allow_module_level=True)

PATIENCE_S = 30.0
KERNELS = CudaKernels()

TestCudaDevice = conformance_suite(
    open_cuda,
    kernels=KERNELS,
    open_adopting=lambda compute, copy: open_cuda(compute_stream=compute, copy_stream=copy),
    isolates=False,
)
TestCudaDeviceOnNativeStreams = conformance_suite(
    open_cuda,
    kernels=KERNELS,
    open_adopting=lambda compute, copy: open_cuda(compute_stream=compute.native, copy_stream=copy.native),
    isolates=False,
)


def test_a_captured_graph_is_launched() -> None:
    """A graph that cuda.core captured runs on our stream, as often as it is launched, in order with copies."""
    core: Any = importlib.import_module("cuda.core")
    backend = open_cuda()
    stream, memory, host = backend.create_stream("compute"), backend.alloc(1000), backend.alloc_host(1000)
    launch = KERNELS.add_one_launch(stream, 1000)
    builder = backend.create_stream("capture").native.create_graph_builder()
    builder.begin_building()
    core.launch(builder, launch.config, launch.kernel, memory.native, np.uint64(1000))
    graph = builder.end_building().complete()
    backend.touch(memory)
    for _ in range(3):
        stream.launch(graph)
    stream.copy(host, memory, 1000)
    stream.synchronize(PATIENCE_S)
    assert (host.array == 3).all()
    graph.close()
    builder.close()
    backend.close()


def test_device_times_are_in_order() -> None:
    """A kernel that spins lies between its two markers; both are in host time, before now."""
    core: Any = importlib.import_module("cuda.core")
    backend = open_cuda()
    stream, memory = backend.create_stream("compute"), backend.alloc(64)
    spin = Launch(KERNELS.kernel(stream, "spin"), core.LaunchConfig(grid=1, block=1))
    first = stream.record()
    stream.launch(spin, memory, np.int64(10_000_000))
    last = stream.record()
    last.synchronize(PATIENCE_S)
    start_ns, end_ns = first.time_ns(), last.time_ns()
    assert start_ns is not None
    assert end_ns is not None
    assert end_ns - start_ns > 0
    assert end_ns <= backend.clock_ns()
    backend.close()


def test_memory_goes_to_other_libraries_without_a_copy() -> None:
    """A library that reads DLPack sees the bytes at the same address; PyTorch with CUDA is used if it is there."""
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    backend = open_cuda()
    stream, memory = backend.create_stream("compute"), backend.alloc(64)
    backend.touch(memory)
    tensor = torch.from_dlpack(memory)
    assert tensor.data_ptr() == memory.handle
    KERNELS.add_one(stream, memory)
    stream.synchronize(PATIENCE_S)
    assert tensor.tolist() == [1] * 64
    del tensor
    backend.close()
