"""``torch:cpu``: tensors on host streams, to test a program of the backend ``torch`` without an accelerator."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from async_orch.abc import Buffer, DeviceInfo, Stream
from async_orch.exceptions import DeviceError

from ._memory import PAGE_NBYTES, physical_nbytes
from ._software_backend import SoftwareBackend
from ._software_stream import SoftwareStream
from ._stream_worker import StreamWorker

__all__ = ["TorchCpuBackend"]


class TorchCpuStream(SoftwareStream):
    """Kernels get buffers as uint8 tensors over the same memory."""

    torch: Any

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        if not callable(kernel):
            raise DeviceError(f"backend 'torch' launches callables, not {type(kernel).__name__}")
        tensors = [isinstance(arg, Buffer) for arg in args]
        super().launch(partial(_call, self.torch, kernel, tensors), *args, cost_ns=cost_ns)


def _call(torch: Any, kernel: Any, tensors: list[bool], *args: Any) -> None:
    kernel(*(torch.from_numpy(arg) if tensor else arg for tensor, arg in zip(tensors, args, strict=True)))


class TorchCpuBackend(SoftwareBackend):
    """This machine's memory as tensors. For tests: it is no accelerator, and nothing is to be measured on it."""

    def __init__(self, torch: Any, *, compute_stream: Stream | None = None, copy_stream: Stream | None = None) -> None:
        info = DeviceInfo(
            backend="torch",
            device="cpu",
            support="tested against a fake",
            alignment_nbytes=PAGE_NBYTES,
            pinned=True,
            alloc_visibility="all",
            device_clock="host",
            memory_nbytes=physical_nbytes(),
            driver=f"torch {torch.__version__}",
        )
        super().__init__(info, huge_pages=False, compute_stream=compute_stream, copy_stream=copy_stream)
        self._torch = torch

    def _make_stream(self, name: str) -> SoftwareStream:
        make_worker = partial(StreamWorker, name, self._device)
        stream = TorchCpuStream(name, self._device, make_worker, clock_ns=time.monotonic_ns)
        stream.torch = self._torch
        return stream
