"""Buffers: sizes, addresses, and what happens after they are freed."""

from __future__ import annotations

import numpy as np
import pytest

from async_orch.exceptions import DeviceError
from async_orch.testing._suite_kit import PATIENCE_S, OpenDevice, Suite

__all__ = ["MemoryTests"]


class MemoryTests(Suite):
    """Device and host buffers."""

    @pytest.mark.parametrize("nbytes", [0, 1, 4097])
    def test_a_buffer_has_the_size_and_the_kind_asked_for(self, device: OpenDevice, nbytes: int) -> None:
        """Host memory is writable zeros; device memory has an aligned address; both can be touched."""
        backend = device.backend
        memory, host = backend.alloc(nbytes, name="weights"), backend.alloc_host(nbytes, name="staging")
        assert (memory.nbytes, memory.is_host, memory.name) == (nbytes, False, "weights")
        assert (host.nbytes, host.is_host, host.name) == (nbytes, True, "staging")
        assert host.array.shape == (nbytes,)
        assert host.array.dtype == np.uint8
        assert host.array.flags.writeable
        assert not host.array.any()
        if self.settings.addresses:
            assert memory.handle % backend.info.alignment_nbytes == 0
        backend.touch(memory)
        backend.touch(host)

    def test_a_negative_size_is_refused(self, device: OpenDevice) -> None:
        """The error repeats the number."""
        for alloc in (device.backend.alloc, device.backend.alloc_host):
            with pytest.raises(DeviceError, match="-1"):
                alloc(-1)

    def test_a_freed_buffer_cannot_be_used(self, device: OpenDevice) -> None:
        """Its array and a copy from it raise; a second free does nothing; the count returns to where it was."""
        backend = device.backend
        before = backend.allocated_nbytes
        buffer, host = backend.alloc(100), backend.alloc_host(100)
        if before is not None:
            assert backend.allocated_nbytes == before + 100
        for freed in (buffer, host):
            freed.free()
            freed.free()
        assert backend.allocated_nbytes == before
        with pytest.raises(DeviceError):
            _ = host.array
        stream, target = backend.create_stream("copy"), backend.alloc(100)
        for freed in (buffer, host):
            with pytest.raises(DeviceError):
                stream.copy(target, freed, 100)
        stream.synchronize(PATIENCE_S)

    def test_memory_can_be_allocated_while_work_is_in_flight(self, device: OpenDevice) -> None:
        """Allocating and freeing does not disturb what is enqueued."""
        counter = device.upload(bytes(1000))
        stream = device.backend.create_stream("compute")
        for _ in range(10):
            device.kernels.add_one(stream, counter)
            device.backend.alloc(1000).free()
        stream.synchronize(PATIENCE_S)
        assert device.download(counter) == bytes([10] * 1000)

    def test_the_host_reads_mapped_memory_in_place(self, device: OpenDevice) -> None:
        """Where device and host share memory: what kernels wrote is in the host's array behind a fence, uncopied."""
        backend, nbytes = device.backend, 100
        before = backend.allocated_nbytes
        pair = backend.alloc_mapped(nbytes, name="slot.output")
        if pair is None:
            pytest.skip("this device shares no memory with the host")
        memory, host = pair
        assert (memory.nbytes, memory.is_host, memory.name) == (nbytes, False, "slot.output")
        assert (host.nbytes, host.is_host, host.name) == (nbytes, True, "slot.output")
        if before is not None:
            assert backend.allocated_nbytes == before + nbytes
        assert not host.array.any()
        for buffer in pair:
            backend.touch(buffer)
        assert not host.array.any()
        stream = backend.create_stream("compute")
        for times in (1, 2, 3):
            device.kernels.add_one(stream, memory)
            stream.record().synchronize(PATIENCE_S)
            assert host.array.tolist() == [times] * nbytes
        copied = device.host(bytes(nbytes))
        stream.copy(copied, memory, nbytes)
        stream.synchronize(PATIENCE_S)
        assert copied.array.tolist() == [3] * nbytes
        kept = host.array
        memory.free()
        assert host.array.tolist() == [3] * nbytes
        host.free()
        assert kept.tolist() == [3] * nbytes
        assert backend.allocated_nbytes == before
        with pytest.raises(DeviceError):
            _ = host.array
        with pytest.raises(DeviceError, match="-1"):
            backend.alloc_mapped(-1)

    def test_kernels_read_what_the_host_wrote_to_mapped_memory(self, device: OpenDevice) -> None:
        """Where device and host share memory: what the host wrote before a launch is what its kernels see, uncopied."""
        backend, nbytes = device.backend, 100
        pair = backend.alloc_mapped(nbytes, name="slot.image")
        if pair is None:
            pytest.skip("this device shares no memory with the host")
        memory, host = pair
        stream, target = backend.create_stream("compute"), device.host(bytes(nbytes))
        for value in (7, 50, 200):
            host.array[:] = value
            device.kernels.add_one(stream, memory)
            stream.copy(target, memory, nbytes)
            stream.record().synchronize(PATIENCE_S)
            assert target.array.tolist() == [value + 1] * nbytes

    def test_an_allocation_counter_never_goes_back(self, device: OpenDevice) -> None:
        """Where the device's allocations are counted, it is by a number that only grows; freeing takes none away."""
        counter = device.backend.allocation_counter()
        if counter is None:
            pytest.skip("this device's allocations are not counted")
        seen = [counter()]
        for _ in range(3):
            buffer = device.backend.alloc(2**20)
            seen.append(counter())
            buffer.free()
            seen.append(counter())
        assert all(isinstance(count, int) for count in seen)
        assert seen == sorted(seen)

    def test_closing_frees_every_buffer(self, device: OpenDevice) -> None:
        """Buffers still allocated at close are freed, and nothing can be allocated or created after."""
        backend = device.backend
        buffers = [backend.alloc(10), backend.alloc_host(10)]
        backend.close()
        assert not backend.allocated_nbytes
        for buffer in buffers:
            with pytest.raises(DeviceError):
                _ = buffer.array
        for call in (lambda: backend.alloc(1), lambda: backend.alloc_host(1), lambda: backend.create_stream("copy")):
            with pytest.raises(DeviceError, match="closed"):
                call()
