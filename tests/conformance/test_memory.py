"""Buffers: addresses, limits, and what happens after they are freed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest
from async_orch_backends import _memory
from async_orch_backends._memory import SoftwareBuffer
from async_orch_backends._software_backend import SoftwareBackend
from async_orch_backends.host import HostBackend
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch.abc import ByteArray
from async_orch.exceptions import DeviceError, OutOfDeviceMemory


def test_a_buffer_is_aligned_writable_bytes(backend: SoftwareBackend) -> None:
    """Device and host buffers have the asked-for size, an aligned address and a writable array; host ones are zero."""
    for nbytes in (0, 1, 4097):
        device, host = backend.alloc(nbytes, name="weights"), backend.alloc_host(nbytes)
        for buffer in (device, host):
            assert buffer.array.shape == (nbytes,)
            assert buffer.array.dtype == np.uint8
            assert buffer.array.flags.writeable
            assert buffer.handle % backend.info.alignment_nbytes == 0
        assert not host.array.any()
        assert (device.is_host, host.is_host) == (False, True)
        assert repr(device) == f"<SoftwareBuffer weights device {nbytes} B>"
        backend.touch(device)
        backend.touch(host)


@pytest.mark.parametrize("nbytes", [2**44, 2**62, 2**70])
def test_an_absurd_size_is_out_of_memory_and_takes_none(backend: SoftwareBackend, nbytes: int) -> None:
    """The message says what was needed and what is free; nothing stays allocated."""
    for alloc in (backend.alloc, backend.alloc_host):
        with pytest.raises(OutOfDeviceMemory, match=rf"activations: needed {nbytes} B, free \d+ B"):
            alloc(nbytes, name="activations")
    assert backend.allocated_nbytes == 0
    backend.alloc(64).free()


def test_a_profile_may_limit_the_memory() -> None:
    """Allocations beyond the simulated device's size fail until others are freed."""
    backend = SimBackend(SimProfile(name="small", memory_nbytes=1000))
    first = backend.alloc(600)
    with pytest.raises(OutOfDeviceMemory, match="needed 500 B, free 400 B of 1000 B"):
        backend.alloc(500)
    assert backend.free_nbytes() == 400
    first.free()
    backend.alloc(1000)
    backend.close()


def test_a_freed_buffer_has_neither_array_nor_address(backend: SoftwareBackend) -> None:
    """Access after free raises; a second free does nothing; accounting returns to zero."""
    buffer = backend.alloc(100, name="kv")
    assert backend.allocated_nbytes == 100
    buffer.free()
    buffer.free()
    assert backend.allocated_nbytes == 0
    with pytest.raises(DeviceError, match="kv of 100 B was freed"):
        _ = buffer.array
    with pytest.raises(DeviceError, match="freed"):
        _ = buffer.handle
    with pytest.raises(DeviceError, match="freed"):
        backend.create_stream("copy").copy(backend.alloc(1), buffer, 1)


@pytest.mark.parametrize("look", [lambda buffer: buffer.array[:], np.asarray, np.from_dlpack])
def test_memory_outlives_the_buffer_while_someone_looks_at_it(
    backend: SoftwareBackend, look: Callable[[SoftwareBuffer], ByteArray]
) -> None:
    """An array, array-interface or DLPack view taken before free and close stays readable after them."""
    buffer = backend.alloc(2**20)
    assert isinstance(buffer, SoftwareBuffer)
    buffer.array[:] = 42
    view = look(buffer)
    assert view.ctypes.data == buffer.handle
    buffer.free()
    backend.close()
    del buffer
    assert (view == 42).all()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes in Python speak the buffer protocol since 3.12")
def test_a_buffer_speaks_the_buffer_protocol(backend: SoftwareBackend) -> None:
    """A memoryview of a buffer is a view of its bytes."""
    buffer = backend.alloc_host(4)
    memoryview(buffer)[1] = 9  # type: ignore[arg-type, unused-ignore]
    assert buffer.array.tolist() == [0, 9, 0, 0]


def test_closing_frees_every_buffer(backend: SoftwareBackend) -> None:
    """Buffers still allocated at close are freed, and nothing can be allocated after."""
    buffers = [backend.alloc(10), backend.alloc_host(10)]
    backend.close()
    assert backend.allocated_nbytes == 0
    for buffer in buffers:
        with pytest.raises(DeviceError, match="freed"):
            _ = buffer.array
    for call in (lambda: backend.alloc(1), lambda: backend.alloc_host(1), lambda: backend.create_stream("copy")):
        with pytest.raises(DeviceError, match="is closed"):
            call()


@pytest.mark.parametrize(
    ("nbytes", "dst_offset", "src_offset"), [(-1, 0, 0), (11, 0, 0), (5, 6, 0), (5, 0, 12), (1, -1, 0), (1, 0, -1)]
)
def test_a_copy_outside_a_buffer_is_refused_with_numbers(
    backend: SoftwareBackend, nbytes: int, dst_offset: int, src_offset: int
) -> None:
    """Bounds are checked when the copy is enqueued, and the stream stays usable."""
    dst, src = backend.alloc(10, name="image"), backend.alloc_host(16, name="staging")
    stream = backend.create_stream("copy")
    with pytest.raises(
        DeviceError, match=rf"copy of {nbytes} B .* offset {src_offset} of .*staging.*offset {dst_offset} of .*image"
    ):
        stream.copy(dst, src, nbytes, dst_offset=dst_offset, src_offset=src_offset)
    stream.synchronize(20)


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted as on Linux")
def test_only_touching_makes_host_memory_resident() -> None:
    """On ``host`` allocating faults nothing in, touching faults in every page, touching again none."""
    import resource  # noqa: PLC0415 - does not exist on every platform

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    backend = HostBackend()
    nbytes = 32 * 2**20
    pages = nbytes // resource.getpagesize()
    start = faults()
    buffer = backend.alloc(nbytes)
    allocated = faults()
    backend.touch(buffer)
    touched = faults()
    backend.touch(buffer)
    again = faults()
    backend.close()
    assert allocated - start < pages // 10
    assert touched - allocated >= pages
    assert again - touched < pages // 10


def test_memory_that_is_not_available_is_refused_before_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large allocation beyond what the machine has free is out of memory, not a process that the kernel ends."""
    monkeypatch.setattr(_memory, "available_nbytes", lambda: 2 << 20)
    backend = HostBackend()
    assert backend.alloc(1 << 20).nbytes == 1 << 20
    with pytest.raises(OutOfDeviceMemory, match="needed 3145728 B, free 2097152 B"):
        backend.alloc(3 << 20)
    backend.close()
