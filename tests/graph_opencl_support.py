"""The sample graph's kernels as OpenCL operations, and a device with guard bytes around its regions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pyopencl as cl
from async_orch_backends.opencl import NDRange, OpenCLBackend, open_backend

from async_orch.graph import KernelTable, OpenCLDispatcher
from tests.graph_support import REGIONS, Bytes, make_table

__all__ = ["OPERATIONS", "GraphDevice"]

PATIENCE_S = 30.0
GUARD = 0xA5
GUARD_NBYTES = 1024
IMAGE_NBYTES = 1 << 17

OPERATIONS = """
double element(const Arg *arg, long i) {
    switch (arg->dtype) {
    case DTYPE_U8: case DTYPE_BOOL: return arg->data[i];
    case DTYPE_I8: return ((global char *)arg->data)[i];
    case DTYPE_I32: return ((global int *)arg->data)[i];
    case DTYPE_F64: return ((global double *)arg->data)[i];
    default: return arg->data[i * ITEM_NBYTES[arg->dtype]];
    }
}
double total(const Arg *arg) {
    double sum = 0.0;
    if (!arg->is_tensor) return (double)arg->integer + arg->real;
    for (long i = 0; i < arg->length; ++i) sum += element(arg, i);
    return sum;
}
bool assign(const Arg *out, double value, uint lane, uint lanes) {
    const uchar byte = fabs(value) < 4e18 ? (uchar)((long)fabs(value) & 0x7F) : 0;
    REQUIRE(out->is_tensor);
    for (long i = lane; i < out->length * ITEM_NBYTES[out->dtype]; i += lanes) out->data[i] = byte;
    return true;
}
OPERATION(add) { return assign(&arg[2], total(&arg[0]) + total(&arg[1]), lane, lanes); }
OPERATION(sub) { return assign(&arg[2], total(&arg[0]) - total(&arg[1]), lane, lanes); }
OPERATION(fill) { return assign(&arg[1], total(&arg[0]), lane, lanes); }
OPERATION(note) {
    for (uint i = 0; i < n_args; ++i) REQUIRE(total(&arg[i]) > -INFINITY);
    return true;
}
"""


class GraphDevice:
    """Runs images on the first OpenCL device, in regions with guard bytes behind them: by default the sample's."""

    def __init__(
        self,
        *,
        table: KernelTable | None = None,
        operations: str = OPERATIONS,
        lanes: int = 1,
        checksum: bool = True,
        regions: Mapping[str, int] = REGIONS,
        guard: int = GUARD,
    ) -> None:
        self.backend: OpenCLBackend = open_backend()
        self.regions, self.guard = dict(regions), guard
        self.dispatcher = OpenCLDispatcher(
            table or make_table(), tuple(regions), operations, lanes=lanes, verify_checksum=checksum
        )
        self.stream: Any = self.backend.create_stream("compute")
        program = cl.Program(self.backend.context, self.dispatcher.source).build()
        size = self.dispatcher.size
        kernel = cl.Kernel(program, self.dispatcher.kernel_name)
        kernel.set_scalar_arg_dtypes(self.dispatcher.argument_types)
        self._run = NDRange(kernel, size, size)
        self._image = self.backend.alloc(IMAGE_NBYTES)
        self._regions = {name: self.backend.alloc(nbytes + GUARD_NBYTES) for name, nbytes in regions.items()}
        self._status = self.backend.alloc(64)
        self._host = self.backend.alloc_host(max(IMAGE_NBYTES, *regions.values()) + GUARD_NBYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.backend.close()

    def run(self, image: Bytes, contents: Mapping[str, Bytes] | None = None) -> dict[str, Bytes]:
        """Run an image on regions with ``contents``, else zeros, and give them.

        `ImageCorrupt` from the status, `AssertionError` for a lost guard.
        """
        host, stream = self._host, self.stream
        host.array[: image.size] = image
        stream.copy(self._image, host, image.size)
        stream.synchronize(PATIENCE_S)
        for name, nbytes in self.regions.items():
            host.array[:nbytes] = 0 if contents is None else contents[name]
            host.array[nbytes : nbytes + GUARD_NBYTES] = self.guard
            stream.copy(self._regions[name], host, nbytes + GUARD_NBYTES)
            stream.synchronize(PATIENCE_S)
        arguments = list(self.dispatcher.arguments(self._image, self._regions, self._status, 16))
        arguments[1] = np.uint64(image.size)
        for i, nbytes in enumerate(self.regions.values()):
            arguments[5 + 2 * i] = np.uint64(nbytes)  # less than the buffer has: what lies behind is the guard
        stream.launch(self._run, *arguments)
        found: dict[str, Bytes] = {}
        for name, nbytes in self.regions.items():
            memory = self._read(self._regions[name], nbytes + GUARD_NBYTES)
            if (memory[nbytes:] != self.guard).any():
                raise AssertionError(f"something was written behind region {name!r}")
            found[name] = memory[:nbytes]
        self.dispatcher.check(self._read(self._status, 32)[16:])
        return found

    def _read(self, buffer: Any, nbytes: int) -> Bytes:
        self.stream.copy(self._host, buffer, nbytes)
        self.stream.synchronize(PATIENCE_S)
        copied: Bytes = self._host.array[:nbytes].copy()
        return copied
