"""``sim:adversary``: every operation takes effect as late as it may, and undefined memory says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from async_orch_backends.sim import AdversaryBackend
from async_orch_backends.sim_profile import SimProfile, load_profile

from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import DeviceError, DeviceLost
from async_orch.testing import VirtualClockLoop, run_virtual
from tests.conformance.kit import PATIENCE_S, add_one, reached
from tests.virtual_time import pass_time

MS = 1_000_000
PROFILE = SimProfile(name="late", copy_fixed_ns=20 * MS, kernel_ns=10 * MS, adversary=True)


def look(at_s: float, buffer: Buffer, seen: list[list[int]]) -> None:
    """Note what a buffer holds at a time of the loop's clock."""
    asyncio.get_running_loop().call_at(at_s, lambda: seen.append(buffer.array.tolist()))


def add_one_to_each(*arrays: ByteArray) -> None:
    """A kernel."""
    for array in arrays:
        add_one(array)


def copy_bytes(source: ByteArray, target: ByteArray) -> None:
    """A kernel."""
    target[:] = source


def test_a_copy_reads_its_source_at_its_end() -> None:
    """Until then the destination holds 0xDD; a source changed meanwhile arrives as changed."""

    async def main() -> list[list[int]]:
        backend = AdversaryBackend(PROFILE, clock="virtual")
        host, device, seen = backend.alloc_host(2), backend.alloc(4), list[list[int]]()
        device.array[:] = 7
        host.array[:] = 1
        stream = backend.create_stream("copy")
        stream.copy(device, host, 2, dst_offset=1)
        look(0.019, device, seen)
        asyncio.get_running_loop().call_at(0.0195, lambda: host.array.fill(2))
        await reached(stream.record())
        seen.append(device.array.tolist())
        backend.close()
        return seen

    assert run_virtual(main()) == [[7, 0xDD, 0xDD, 7], [7, 2, 2, 7]]


def test_a_kernel_runs_at_the_end_of_its_cost() -> None:
    """It reads its arguments and writes its results when its time has passed, not before."""

    async def main() -> list[list[int]]:
        backend = AdversaryBackend(PROFILE, clock="virtual")
        source, target, seen = backend.alloc(1), backend.alloc(1), list[list[int]]()
        source.array[:] = target.array[:] = 1
        stream = backend.create_stream("compute")
        stream.launch(copy_bytes, source, target)
        look(0.009, target, seen)
        asyncio.get_running_loop().call_at(0.0095, lambda: source.array.fill(5))
        await reached(stream.record())
        seen.append(target.array.tolist())
        backend.close()
        return seen

    assert run_virtual(main()) == [[1], [5]]


def test_a_kernel_scribbles_over_what_was_given_back_and_not_written_since() -> None:
    """Undefined arguments hold 0xDD from the kernel's start; a copied image, resident memory and what an earlier kernel
    of the step left are not touched."""

    async def main() -> dict[str, list[list[int]]]:
        backend = AdversaryBackend(PROFILE, clock="virtual")
        names = ("image", "workspace", "output", "weights")
        buffers = {name: backend.alloc(1, name=name) for name in names}
        seen: dict[str, list[list[int]]] = {name: [] for name in names}
        host = backend.alloc_host(1)
        for buffer in buffers.values():
            buffer.array[:] = 1
        for name in ("image", "workspace", "output"):
            backend.released(buffers[name])
        for name in ("workspace", "output"):
            buffers[name].array[:] = 2  # what a stray write of the step before would leave
        stream = backend.create_stream("compute")
        stream.copy(buffers["image"], host, 1)  # 0 to 20 ms
        for _ in range(2):  # 20 to 30 and 30 to 40 ms
            stream.launch(add_one_to_each, *buffers.values())
        for name, buffer in buffers.items():
            for at_s in (0.019, 0.025, 0.035):
                look(at_s, buffer, seen[name])
        await reached(stream.record())
        backend.close()
        return seen

    seen = run_virtual(main())
    assert seen["image"] == [[0xDD], [0], [1]]
    assert seen["weights"] == [[1], [1], [2]]
    assert seen["workspace"] == seen["output"] == [[2], [0xDD], [0xDE]]


def test_memory_given_back_and_fresh_memory_hold_0xdd() -> None:
    """Both at once; host memory that was never given back is zero, as the seam says."""
    backend = AdversaryBackend(PROFILE)
    device, host = backend.alloc(3), backend.alloc_host(3)
    assert device.array.tolist() == [0xDD] * 3
    assert host.array.tolist() == [0] * 3
    for buffer in (device, host):
        buffer.array[:] = 1
        backend.released(buffer)
        assert buffer.array.tolist() == [0xDD] * 3
    backend.touch(device)
    assert device.array.tolist() == [0xDD] * 3
    assert backend.reuse_order == "lifo"
    backend.close()


def test_memory_of_others_is_not_scribbled_over() -> None:
    """A ring may number buffers whose memory is the caller's; what they hold is the caller's too."""
    backend, other = AdversaryBackend(PROFILE), AdversaryBackend(PROFILE)
    buffer = other.alloc(1)
    buffer.array[:] = 1
    backend.released(buffer)
    assert buffer.array.tolist() == [1]
    backend.close()
    other.close()


@pytest.mark.parametrize("how", ["close", "reset", "lose"])
def test_an_operation_that_is_cut_off_has_no_effect(how: str) -> None:
    """Closing, resetting or losing the device amid an operation leaves 0xDD behind, and its fence fails."""

    async def main() -> tuple[list[int], BaseException | None]:
        backend = AdversaryBackend(PROFILE, clock="virtual")
        host, device = backend.alloc_host(2), backend.alloc(2)
        array = device.array
        stream, other = backend.create_stream("copy"), backend.create_stream("compute")
        stream.copy(device, host, 2)
        fence = stream.record()

        def lose() -> None:
            raise DeviceLost("gone")

        acts: dict[str, Callable[[], object]] = {"close": backend.close, "reset": backend.reset}
        if how == "lose":
            other.launch(lose, cost_ns=5 * MS)
        else:
            asyncio.get_running_loop().call_at(0.005, acts[how])
        await reached(fence)
        await pass_time(1)
        backend.close()
        return array.tolist(), fence.error

    left, error = run_virtual(main())
    assert left == [0xDD, 0xDD]
    assert isinstance(error, DeviceError)


def test_memory_that_cannot_be_written_fails_its_copy() -> None:
    """Scribbling over it is the first thing to fail, and it fails the fence, in real and in virtual time."""
    frozen = np.zeros(1, np.uint8)
    frozen.flags.writeable = False

    class Frozen(Buffer):
        __slots__ = ()

        @property
        def is_host(self) -> bool:
            return True

        @property
        def array(self) -> ByteArray:
            return frozen

        @property
        def handle(self) -> int:
            return 0

        def free(self) -> None:
            """Nothing to give back."""

    loop = VirtualClockLoop()
    for open_it in (partial(AdversaryBackend, PROFILE), partial(AdversaryBackend, PROFILE, clock="virtual", loop=loop)):
        backend = open_it()
        stream = backend.create_stream("copy")
        stream.copy(Frozen(1), backend.alloc_host(1), 1)
        with pytest.raises(DeviceError, match="copyto on stream 'copy' failed"):
            stream.synchronize(PATIENCE_S)
        backend.close()
    loop.close()


def test_real_time_is_as_late() -> None:
    """On a thread too a copy waits out its cost before it reads, and stops without effect when the stream does."""
    backend = AdversaryBackend(PROFILE)
    host, device = backend.alloc_host(1), backend.alloc(1)
    array = device.array
    stream = backend.create_stream("copy")
    start_ns = time.monotonic_ns()
    stream.copy(device, host, 1)
    host.array[:] = 3
    fence = stream.record()
    fence.synchronize(PATIENCE_S)
    assert (fence.time_ns() or 0) - start_ns >= 20 * MS
    assert array.tolist() == [3]
    stream.launch(add_one, device, cost_ns=3600 * 10**9)
    backend.close()
    assert array.tolist() == [3]


def test_a_shipped_copy_outlasts_a_rotation_of_sixteen_slots() -> None:
    """The profile keeps what it says of itself."""
    profile = load_profile("adversary")
    assert profile.copy_ns(0) > 16 * (profile.launch_ns + profile.kernel_ns)
