"""Simulated time is a schedule: every start and end is what the rule says, to the nanosecond."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
from async_orch_backends.sim import SimBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch.abc import Fence
from async_orch.exceptions import DeviceError
from async_orch.testing import ManualFence, VirtualClockLoop, run_virtual
from tests.conformance.kit import reached
from tests.virtual_time import pass_time

MS = 1_000_000
PROFILE = SimProfile(name="three-five", copy_fixed_ns=3 * MS, kernel_ns=5 * MS, alloc_fixed_ns=2 * MS)


def open_sim(profile: SimProfile = PROFILE) -> SimBackend:
    return SimBackend(profile, clock="virtual")


def test_an_operation_starts_when_its_stream_and_its_dependencies_are_through() -> None:
    """start = max(enqueue, dependencies, previous end); end = start + cost."""

    async def main() -> list[int | None]:
        backend = open_sim()
        host, device = backend.alloc_host(8), SimBackend(SimProfile(name="x")).alloc(8)
        copy, compute = backend.create_stream("copy"), backend.create_stream("compute")
        copy.copy(device, host, 8)  # 0 to 3
        first = copy.record()
        copy.copy(device, host, 8)  # 3 to 6
        second = copy.record()
        compute.wait(first)
        compute.launch(lambda: None)  # 3 to 8
        third = compute.record()
        compute.wait(second)
        compute.launch(lambda: None, cost_ns=7)  # 8 to 8 ms + 7 ns
        fourth = compute.record()
        times = [await reached(fence) for fence in (first, second, third, fourth)]
        await pass_time(0.01)
        compute.launch(lambda: None)  # from now on
        times.append(await reached(compute.record()))
        backend.close()
        return times

    assert run_virtual(main()) == [3 * MS, 6 * MS, 8 * MS, 8 * MS + 7, 23 * MS + 7]


def test_no_fence_shows_before_its_end() -> None:
    """Just before the end a fence is pending, at the end it is done."""

    async def main() -> list[bool]:
        backend, loop = open_sim(), asyncio.get_running_loop()
        stream = backend.create_stream("compute")
        stream.launch(lambda: None)
        fence = stream.record()
        seen: list[bool] = []
        loop.call_at(0.004999999, lambda: seen.append(fence.query()))
        await pass_time(0.005000001)
        seen.append(fence.query())
        backend.close()
        return seen

    assert run_virtual(main()) == [False, True]


def test_a_ring_of_three_hides_copies_behind_kernels() -> None:
    """With copy and kernel on streams of their own, a long run takes a kernel's time a step."""

    async def main() -> int | None:
        backend = open_sim()
        host, device = backend.alloc_host(8), backend.alloc_host(8)
        copy, compute = backend.create_stream("copy"), backend.create_stream("compute")
        done: list[Fence] = []
        for step in range(100):
            if step >= 3:
                copy.wait(done[step - 3])
            copy.copy(device, host, 8)
            compute.wait(copy.record())
            compute.launch(lambda: None)
            done.append(compute.record())
        end = await reached(done[-1])
        backend.close()
        return end

    assert run_virtual(main()) == 3 * MS + 100 * 5 * MS


def test_effects_and_completions_come_in_the_order_of_the_schedule() -> None:
    """Kernels on two streams take effect at the starts of their windows, notifications at the ends."""

    async def main() -> list[str]:
        backend = open_sim()
        first, second = backend.create_stream("copy"), backend.create_stream("compute")
        events: list[str] = []
        for name, stream in (("a", first), ("b", second)):
            for index, cost_ns in enumerate((4 * MS, 2 * MS) if name == "a" else (1 * MS, 6 * MS)):
                stream.launch(events.append, f"{name}{index} runs", cost_ns=cost_ns)
                stream.record().notify(partial(events.append, f"{name}{index} done"))
        await reached(second.record())
        backend.close()
        return events

    assert run_virtual(main()) == [
        *("a0 runs", "b0 runs", "b1 runs", "b0 done", "a1 runs", "a0 done", "a1 done", "b1 done")
    ]


def test_hours_are_exact_and_take_no_time() -> None:
    """A thousand kernels of 3.6 s and 1 ns end exactly when the sum says."""

    async def main() -> int | None:
        backend = open_sim()
        stream = backend.create_stream("compute")
        for _ in range(1000):
            stream.launch(lambda: None, cost_ns=3_600_000_001)
        end = await reached(stream.record())
        assert backend.clock_ns() == end
        backend.close()
        return end

    assert run_virtual(main()) == 3_600_000_001_000


def test_an_allocation_keeps_the_host_busy() -> None:
    """It moves the clock by its cost, and what is enqueued after it starts after it."""

    async def main() -> list[int | None]:
        backend = open_sim()
        backend.alloc(8)
        times: list[int | None] = [backend.clock_ns()]
        stream = backend.create_stream("compute")
        stream.launch(lambda: None)
        times.append(await reached(stream.record()))
        backend.close()
        return times

    assert run_virtual(main()) == [2 * MS, 7 * MS]


def test_blocking_keeps_the_host_busy_until_the_fence() -> None:
    """Without the loop running, synchronize moves the clock to the fence, or to its time-out."""
    loop = VirtualClockLoop()
    backend = SimBackend(PROFILE, clock="virtual", loop=loop)
    stream = backend.create_stream("compute")
    stream.launch(lambda: None)
    fence = stream.record()
    with pytest.raises(TimeoutError, match="virtual time"):
        fence.synchronize(0.002)
    assert backend.clock_ns() == 2 * MS
    fence.synchronize()
    assert backend.clock_ns() == fence.time_ns() == 5 * MS
    backend.close()
    loop.close()


def test_blocking_on_what_cannot_come_is_an_error() -> None:
    """Where a real thread would hang for ever, virtual time says so."""

    async def main() -> None:
        backend = open_sim()
        stream = backend.create_stream("compute")
        stream.wait(ManualFence())
        with pytest.raises(DeviceError, match="blocked for ever"):
            stream.synchronize()
        backend.close()

    run_virtual(main())


def test_a_manual_fence_holds_the_schedule_until_it_is_settled() -> None:
    """Work behind a fence from elsewhere starts at the moment the fence is done."""

    async def main() -> int | None:
        backend, fence = open_sim(), ManualFence()
        stream = backend.create_stream("compute")
        stream.wait(fence)
        stream.launch(lambda: None)
        end = stream.record()
        asyncio.get_running_loop().call_at(0.25, fence.finish)
        result = await reached(end)
        backend.close()
        return result

    assert run_virtual(main()) == 255 * MS


def test_a_fence_that_cannot_notify_is_refused_in_virtual_time() -> None:
    """The error names the kind of fence."""

    async def main() -> None:
        backend = open_sim()
        with pytest.raises(DeviceError, match="ManualFence cannot notify"):
            backend.create_stream("compute").wait(ManualFence(notifies=False))
        backend.close()

    run_virtual(main())


async def test_a_fence_settled_on_another_thread_reaches_a_running_loop() -> None:
    """On an ordinary loop, virtual time takes notifications from other threads."""
    backend, fence = open_sim(SimProfile(name="instant")), ManualFence()
    stream = backend.create_stream("compute")
    stream.wait(fence)
    stream.launch(lambda: None)
    marker = stream.record()
    settler = threading.Thread(target=fence.finish)
    settler.start()
    await reached(marker)
    settler.join()
    assert marker.error is None
    backend.close()


async def test_virtual_time_stays_on_its_thread() -> None:
    """Enqueueing from another thread raises instead of corrupting the schedule."""
    backend = open_sim()
    stream = backend.create_stream("compute")
    stream.launch(lambda: None)
    with pytest.raises(DeviceError, match="event loop's thread"):
        await asyncio.to_thread(stream.launch, lambda: None)
    backend.close()


def test_virtual_time_needs_a_loop() -> None:
    """Outside a coroutine and without loop=, the error says what to do."""
    backend = open_sim()
    with pytest.raises(DeviceError, match="needs a running event loop"):
        backend.create_stream("compute").record()
    backend.close()


def test_closing_fails_what_is_scheduled() -> None:
    """Pending fences fail and notify; their timers find nothing left to do."""

    async def main() -> BaseException | None:
        backend = open_sim()
        stream = backend.create_stream("compute")
        stream.launch(lambda: None)
        fence = stream.record()
        asyncio.get_running_loop().call_at(0.001, backend.close)
        await reached(fence)
        await pass_time(1)
        return fence.error

    assert "closed" in str(run_virtual(main()))
