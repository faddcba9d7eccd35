"""The backend ``ascend`` through the public conformance suite, on the fake ``acl``: tested against a fake."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator

import pytest
from async_orch_backends.ascend_acl import AscendBackend
from async_orch_backends.ascend_acl import open_backend as open_ascend

from async_orch.abc import Buffer, Stream
from async_orch.testing import Kernels, ManualFence, conformance_suite
from tests.fakes.fake_acl import FakeAcl

AICORE_EXCEPTION, SYS_DMA = 507015, 507013


class AclKernels(Kernels):
    """Launchers as a user would write them, on whichever fake the test has."""

    def __init__(self) -> None:
        self.acl = FakeAcl()

    def add_one(self, stream: Stream, buffer: Buffer) -> None:
        acl, nbytes = self.acl, buffer.nbytes

        def launcher(handle: int, address: int) -> int:
            memory = (ctypes.c_uint8 * nbytes).from_address(address)

            def kernel() -> None:
                for index in range(nbytes):
                    memory[index] = (memory[index] + 1) % 256

            return acl.enqueue(handle, kernel)

        stream.launch(launcher, buffer)

    def fail(self, stream: Stream) -> None:
        stream.launch(lambda handle: self.acl.enqueue(handle, lambda: None, AICORE_EXCEPTION))

    def fail_copy(self, stream: Stream, source: Buffer) -> None:
        stream.launch(lambda handle: self.acl.enqueue(handle, lambda: None, SYS_DMA))

    def hold(self, stream: Stream) -> Callable[[], object]:
        fence = ManualFence()
        stream.wait(fence)
        return fence.finish


KERNELS = AclKernels()


@pytest.fixture(autouse=True)
def acl(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAcl]:
    """A fresh fake for each test, which must be clean when the test's backend is closed."""
    KERNELS.acl = FakeAcl()
    monkeypatch.setitem(sys.modules, "acl", KERNELS.acl.module)
    yield KERNELS.acl
    KERNELS.acl.check_clean()


def _native(compute: Stream, copy: Stream) -> AscendBackend:
    return open_ascend(compute_stream=compute.native, copy_stream=copy.native)


TestAscend = conformance_suite(
    open_ascend,
    kernels=KERNELS,
    open_adopting=lambda compute, copy: open_ascend(compute_stream=compute, copy_stream=copy),
    isolates=False,
    copy_alignment_nbytes=64,
)
TestAscendOnNativeStreams = conformance_suite(
    open_ascend, kernels=KERNELS, open_adopting=_native, isolates=False, copy_alignment_nbytes=64
)
