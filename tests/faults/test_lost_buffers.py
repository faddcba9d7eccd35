"""Allocation that fails half-way, fences that cannot be recorded: no byte is lost, nobody waits on an empty ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Fence, Stream
from async_orch.exceptions import CopyError, DeviceError, LaunchError, OutOfDeviceMemory, PipelineFailed
from async_orch.testing import ManualBackend, ManualStream, run_virtual
from tests.faults.support import assert_balanced
from tests.programs import Square, settle


class BadTouch(ManualBackend):
    """The n-th `touch` fails."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.left = nth

    def touch(self, buffer: Buffer) -> None:
        self.left -= 1
        if self.left == 0:
            raise OutOfDeviceMemory("no pages")
        super().touch(buffer)


@pytest.mark.parametrize("nth", range(1, 22))
async def test_opening_that_fails_at_any_buffer_frees_all_of_them(nth: int) -> None:
    """Staging, slots and resident memory are freed, also the buffer that was being touched."""
    backend = BadTouch(nth)

    class Resident(Square):
        def open(self, device: Any) -> None:
            device.alloc(64)
            device.alloc(64)

    opened = False
    try:
        async with Orchestrator(Resident(), backend):
            opened = True
    except OutOfDeviceMemory:
        pass
    assert opened is (nth > 18)
    assert backend.live == []


class Refusing(ManualStream):
    """Fails the calls that the test wants, and runs what is enqueued at once."""

    def __init__(self, name: str, fail: dict[str, list[int]], runs: bool = True) -> None:
        super().__init__(name)
        self.fail = fail
        self.calls: dict[str, int] = {}
        self.runs = runs

    def _put(self, kind: str, payload: Any = None) -> None:
        self.calls[kind] = self.calls.get(kind, 0) + 1
        if self.calls[kind] in self.fail.get(kind, []):
            raise DeviceError(f"{kind} refused")
        super()._put(kind, payload)
        if self.runs:
            self.run()


class RefusingBackend(ManualBackend):
    """Hands out `Refusing` streams."""

    def __init__(self, *, runs: bool = True, **fail: dict[str, list[int]]) -> None:
        super().__init__()
        self.fail, self.runs = fail, runs

    def create_stream(self, name: str) -> Stream:
        stream = self.streams[name] = Refusing(name, self.fail.get(name, {}), self.runs)
        return stream


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        ({"copy": {"record": [2, 3]}}, CopyError),
        ({"compute": {"record": [1, 2]}}, LaunchError),
        ({"compute": {"isolate": [1], "record": [1]}}, LaunchError),
    ],
)
def test_a_ring_of_one_survives_a_fence_that_cannot_be_recorded(fail: Any, error: type[Exception]) -> None:
    """The buffers that nobody can account for are quarantined and replaced, so the next step has one."""

    async def main() -> None:
        async with Orchestrator(Square(), RefusingBackend(**fail), slots=1, queue_depth=1) as orch:
            with pytest.raises(error, match="refused"):
                await orch.run(2)
            for i in range(4):
                assert (await orch.run(i)).output == i * i
            assert orch.statistics().slots_quarantined == 1
        assert_balanced(orch, quarantined=2)

    run_virtual(main())


def test_losing_more_buffers_than_are_replaced_fails_the_pipeline() -> None:
    """max_quarantined bounds the replacements; after them the pipeline says so instead of waiting for ever."""

    async def main() -> None:
        backend = RefusingBackend(compute={"record": list(range(1, 40))})
        async with Orchestrator(Square(), backend, slots=1, max_quarantined=2) as orch:
            for i in range(2):
                with pytest.raises(LaunchError, match="refused"):
                    await orch.run(i)
            with pytest.raises((LaunchError, PipelineFailed)):
                await orch.run(3)
            with pytest.raises(PipelineFailed, match="max_quarantined=2"):
                await orch.run(4)
        assert orch.statistics().slots_quarantined == 3

    run_virtual(main())


async def test_in_naive_mode_a_slot_is_not_freed_under_the_copy_of_its_image() -> None:
    """If the compute stream refuses before it waits for the copy, the slot waits for the copy's own fence."""
    backend = RefusingBackend(runs=False, compute={"isolate": [1]})
    async with Orchestrator(Square(), backend, mode="naive") as orch:
        handle = await orch.submit(2)
        with pytest.raises(LaunchError):
            await handle
        backend.compute.run()
        assert orch.statistics().slots_leased == 1
        assert [b.name for b in backend.live if not b.is_host] == ["slot.image", "slot.workspace", "slot.output"]
        backend.copy.run()
        assert orch.statistics().slots_leased == 0
        assert [b.name for b in backend.live if not b.is_host] == []
    assert_balanced(orch)


class Sized(StepProgram[int, int]):
    """A step of n needs n bytes of workspace and image."""

    slot = SlotSpec(image_nbytes=8, workspace_nbytes=64, output_nbytes=8)

    def sizes(self, step: int) -> SlotSpec | None:
        return SlotSpec(image_nbytes=8, workspace_nbytes=step, output_nbytes=8)

    def build(self, step: int, image: ByteArray) -> int | None:
        return 8

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return 1


def run_all(backend: ManualBackend) -> None:
    backend.copy.run()
    backend.compute.run()


async def _run(orch: Orchestrator[int, int], backend: ManualBackend, step: int) -> Any:
    handle = await orch.submit(step)
    run_all(backend)
    await settle()
    return (await handle).output


async def test_a_growth_that_did_not_fit_leaves_no_mark() -> None:
    """After an out-of-memory the next, smaller growth asks for what its own step needs and fits."""
    backend = ManualBackend(capacity_nbytes=4096)
    async with Orchestrator(Sized(), backend, slots=1, grow="high_water") as orch:
        with pytest.raises(CopyError, match="could not be allocated"):
            await _run(orch, backend, 100_000)
        assert await _run(orch, backend, 1000) == 1
    assert backend.live == []


class Tells(Sized):
    """Its `slots_changed` raises."""

    def slots_changed(self, slots: list[Any]) -> None:
        raise ArithmeticError("recapture failed")


async def test_a_slots_changed_that_raises_fails_the_pipeline_by_name() -> None:
    """The program does not know where its slots are now, so no further step may use them."""
    backend = ManualBackend()
    async with Orchestrator(Tells(), backend, slots=1, grow="high_water") as orch:
        handle = orch.submit_nowait(1000)
        run_all(backend)
        with pytest.raises(PipelineFailed, match=r"slots_changed raised.*ArithmeticError: recapture failed"):
            await handle
        with pytest.raises(PipelineFailed):
            await orch.submit(1)
    assert_balanced(orch)
    assert backend.live == []


class BadClock(Fence):
    """A fence whose clock the driver cannot read."""

    notifies = True

    def query(self) -> bool:
        return True

    @property
    def error(self) -> BaseException | None:
        return None

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Done."""

    def notify(self, callback: Callable[[], None]) -> None:
        callback()

    def time_ns(self) -> int | None:
        raise DeviceError("profiling info not available")


async def test_a_clock_that_cannot_be_read_is_null_in_the_record() -> None:
    """Times that a driver refuses are unknown; the step itself completes."""

    class BadClockStream(ManualStream):
        def record(self) -> Fence:
            self.run()
            return BadClock()

    class BadClockBackend(ManualBackend):
        def create_stream(self, name: str) -> Stream:
            stream = self.streams[name] = BadClockStream(name)
            return stream

    async with Orchestrator(Square(), BadClockBackend()) as orch:
        result = await orch.run(3)
        assert result.output == 9
        assert result.timings.device_ns is None
    assert_balanced(orch)
