"""The tools for tests do what they say: leaks are found, fences and devices by hand obey."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from async_orch import Orchestrator
from async_orch.exceptions import DeviceError, OutOfDeviceMemory
from async_orch.testing import LeakError, Leaks, ManualBackend, ManualFence, leak_check, leak_fixture
from tests.programs import Square

leaks = leak_fixture()


async def test_a_run_that_gives_everything_back_passes() -> None:
    """An orchestrator on a backend of its own leaves no lease, task, thread, byte or file."""
    with leak_check() as watching:
        async with watching.watch(Orchestrator(Square(), "host", build_in="thread")) as orch:
            assert (await orch.run(3)).output == 9


def test_the_fixture_watches_what_it_is_given(leaks: Leaks) -> None:
    """A backend watched and left as it was is fine."""
    backend = leaks.watch(ManualBackend())
    backend.alloc(8).free()
    backend.close()


async def test_leases_and_steps_that_are_left_are_reported() -> None:
    """With a hung device the report names the slots and the orchestrator; it never claims more."""
    backend = ManualBackend()
    with pytest.raises(LeakError, match="1 leased slots of <Orchestrator Square closed>"), leak_check() as watching:
        orch = watching.watch(Orchestrator(Square(), backend, drain_timeout_s=0.01))
        with pytest.raises(TimeoutError):
            async with orch:
                await orch.submit(1)


def test_device_memory_that_is_left_is_reported() -> None:
    """Only what was allocated inside counts."""
    backend = ManualBackend()
    backend.alloc(100)
    with pytest.raises(LeakError, match="28 B of device memory on backend 'manual'"), leak_check(backend):
        backend.alloc(28)
    with leak_check(backend):
        backend.alloc_host(28)


async def test_tasks_that_are_left_are_reported() -> None:
    """The report names the task."""
    tasks: list[asyncio.Task[bool]] = []
    with pytest.raises(LeakError, match="task forgotten: <coroutine"), leak_check():
        tasks.append(asyncio.create_task(asyncio.Event().wait(), name="forgotten"))
    tasks[0].cancel()


def test_threads_of_ours_that_are_left_are_reported() -> None:
    """By the prefix of their names; threads of others are theirs."""
    release = threading.Event()
    with pytest.raises(LeakError, match="thread async_orch-test") as caught, leak_check(grace_s=0.01):
        for name in ("async_orch-test", "other"):
            threading.Thread(target=release.wait, args=(20,), name=name).start()
    release.set()
    assert "other" not in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are listed as on Linux")
def test_file_descriptors_that_are_left_are_reported(tmp_path: Path) -> None:
    """The report says which file."""
    numbers: list[int] = []
    with pytest.raises(LeakError, match=r"file descriptor \d+: .*forgotten\.txt"), leak_check():
        numbers.append(os.open(tmp_path / "forgotten.txt", os.O_CREAT))
    os.close(numbers[0])


def test_a_body_that_raises_keeps_its_exception() -> None:
    """What is left is a note on it, not another exception in front of it."""
    backend = ManualBackend()
    with pytest.raises(KeyError) as caught, leak_check(backend):
        backend.alloc(5)
        raise KeyError("mine")
    assert caught.value.__notes__ == ["left behind: 5 B of device memory on backend 'manual'"]


async def test_an_orchestrator_that_was_never_opened_leaks_nothing() -> None:
    """There is nothing to count yet."""
    with leak_check(Orchestrator(Square(), "host")):
        pass


def test_a_manual_fence_is_done_once() -> None:
    """The first call decides; callbacks are called once, late ones at once."""
    fence, calls = ManualFence(), list[str]()
    fence.notify(lambda: calls.append("early"))
    with pytest.raises(TimeoutError, match=r"within 0\.0 s"):
        fence.synchronize(0.0)
    assert "pending" in repr(fence)
    fence.finish(OSError("broken"), time_ns=5)
    fence.finish()
    fence.notify(lambda: calls.append("late"))
    assert calls == ["early", "late"]
    assert fence.time_ns() == 5
    assert "failed: broken" in repr(fence)
    with pytest.raises(OSError, match="broken"):
        fence.synchronize()


def test_a_manual_fence_may_refuse_to_notify() -> None:
    """Then it is waited for, from another thread."""
    fence = ManualFence(notifies=False)
    with pytest.raises(RuntimeError, match="cannot notify"):
        fence.notify(lambda: None)
    waiter = threading.Thread(target=fence.synchronize, args=(20,))
    waiter.start()
    fence.finish()
    waiter.join(20)
    assert not waiter.is_alive()
    assert "done" in repr(fence)


def test_a_manual_device_does_what_it_is_told_when_it_is_told() -> None:
    """Nothing moves before `run`; then everything does, across streams; blocking lets a stream go on."""
    backend = ManualBackend()
    host, device = backend.alloc_host(4), backend.alloc(4)
    host.array[:] = 1, 2, 3, 4
    copy, compute = backend.create_stream("copy"), backend.create_stream("compute")
    copy.copy(device, host, 2, dst_offset=1, src_offset=2)
    compute.wait(copy.record())
    compute.copy(host, device, 4)
    fence = compute.record()
    assert device.array.tolist() == [0] * 4
    assert not compute.idle()
    assert backend.run() == 5
    assert fence.query()
    assert host.array.tolist() == [0, 3, 4, 0]
    compute.launch(lambda array: array.fill(9), host)
    compute.synchronize(0)
    assert host.array.tolist() == [9] * 4
    compute.wait(ManualFence())
    with pytest.raises(TimeoutError):
        compute.synchronize(0)


def test_a_manual_device_refuses_misuse() -> None:
    """Bounds, memory that is freed, a device that is full or closed."""
    backend = ManualBackend(capacity_nbytes=10)
    buffer, stream = backend.alloc(8, name="weights"), backend.create_stream("copy")
    with pytest.raises(OutOfDeviceMemory, match="needed 3 B, free 2 B"):
        backend.alloc(3)
    for offsets in ((0, 1), (1, 0), (-1, 0)):
        with pytest.raises(DeviceError, match="does not fit"):
            stream.copy(buffer, buffer, 8, dst_offset=offsets[0], src_offset=offsets[1])
    stream.copy(buffer, buffer, 8)
    buffer.free()
    buffer.free()
    with pytest.raises(DeviceError, match="weights was freed"):
        backend.run()
    backend.close()
    for use in (stream.record, stream.idle, lambda: backend.alloc(1), lambda: backend.create_stream("copy")):
        with pytest.raises(DeviceError, match="closed"):
            use()
