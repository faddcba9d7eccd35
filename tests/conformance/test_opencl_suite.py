"""The backend ``opencl`` through the public conformance suite, on whatever driver the machine has (PoCL in CI)."""

from __future__ import annotations

import pytest

from async_orch import open_backend
from async_orch.testing import conformance_suite

pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from tests.conformance.opencl_kernels import OpenCLKernels

TestOpenCL = conformance_suite(
    lambda: open_backend("opencl"),
    kernels=OpenCLKernels(),
    open_adopting=lambda compute, copy: open_backend("opencl", compute_stream=compute, copy_stream=copy),
    addresses=False,
)
TestOpenCLOnNativeQueues = conformance_suite(
    lambda: open_backend("opencl"),
    kernels=OpenCLKernels(native=True),
    open_adopting=lambda compute, copy: open_backend("opencl", compute_stream=compute.native, copy_stream=copy.native),
    addresses=False,
)
