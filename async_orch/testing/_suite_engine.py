"""Real orchestrators drive the device: results are right, and afterwards nothing is left on it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Backend, ByteArray, Stream
from async_orch.exceptions import LaunchError, OutOfDeviceMemory
from async_orch.logs import StepRecord
from async_orch.testing._suite import Kernels
from async_orch.testing._suite_kit import PATIENCE_S, OpenDevice, Suite

__all__ = ["EngineTests"]

NBYTES = 256


class _AddThree(StepProgram[int, bytes]):
    """Fills the image with a number, adds 3 to it on the device by way of the workspace; fails the steps it is told."""

    slot = SlotSpec(image_nbytes=NBYTES, workspace_nbytes=NBYTES, output_nbytes=NBYTES)

    def __init__(
        self, kernels: Kernels, fail: tuple[int, ...] = (), image_at: Literal["slot", "shared"] = "slot"
    ) -> None:
        self.kernels = kernels
        self.fail = fail
        self.slot = dataclasses.replace(type(self).slot, image_at=image_at)

    def build(self, step: int, image: Any) -> int | None:
        image[:] = step % 200
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        if step in self.fail:
            self.kernels.fail(stream)
        stream.copy(slot.workspace, slot.image, NBYTES)
        self.kernels.add_one(stream, slot.workspace)
        self.kernels.add_one(stream, slot.workspace)
        stream.copy(slot.output, slot.workspace, NBYTES)
        self.kernels.add_one(stream, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> bytes:
        return output.tobytes()


def _expected(step: int) -> bytes:
    return bytes([step % 200 + 3] * NBYTES)


async def _drive(
    backend: Backend,
    kernels: Kernels,
    steps: range,
    slots: int,
    *,
    image_at: Literal["slot", "shared"] = "slot",
    observers: Sequence[Callable[[StepRecord], object]] = (),
) -> int:
    """Run steps through an orchestrator of their own; returns the number of leases left."""
    program = _AddThree(kernels, image_at=image_at)
    async with Orchestrator(program, backend, slots=slots, observers=observers) as orch:
        seen = 0
        async for result in orch.map(steps):
            assert result.output == _expected(steps[seen])
            seen += 1
        assert seen == len(steps)
    statistics = orch.statistics()
    return statistics.slots_leased + statistics.staging_leased + statistics.pending


class EngineTests(Suite):
    """Orchestrators on the backend."""

    @pytest.mark.parametrize("slots", [1, 3])
    def test_an_orchestrator_gets_the_right_results(self, device: OpenDevice, slots: int) -> None:
        """Every step's output is its own, for a ring of one and of three; nothing stays leased or allocated."""
        before = device.backend.allocated_nbytes
        assert device.loop.run_until_complete(_drive(device.backend, device.kernels, range(30), slots)) == 0
        assert device.backend.allocated_nbytes == before

    @pytest.mark.parametrize("slots", [1, 3])
    def test_images_can_be_shared(self, device: OpenDevice, slots: int) -> None:
        """Kernels read each step's own image, which is copied only where device and host share no memory."""
        backend, records = device.backend, list[StepRecord]()
        pair = backend.alloc_mapped(NBYTES)
        for buffer in pair or ():
            buffer.free()
        before = backend.allocated_nbytes
        drive = _drive(backend, device.kernels, range(30), slots, image_at="shared", observers=[records.append])
        assert device.loop.run_until_complete(drive) == 0
        assert [record.copy_nbytes for record in records] == [NBYTES if pair is None else 0] * 30
        assert backend.allocated_nbytes == before

    def test_two_orchestrators_share_one_device(self, device: OpenDevice) -> None:
        """Two at once on one backend do not disturb each other; either may leave first."""

        async def both() -> int:
            left = await asyncio.gather(
                _drive(device.backend, device.kernels, range(25), 2),
                _drive(device.backend, device.kernels, range(1000, 1010), 3),
            )
            return sum(left)

        before = device.backend.allocated_nbytes
        assert device.loop.run_until_complete(both()) == 0
        assert device.backend.allocated_nbytes == before

    def test_a_failed_step_takes_nothing_with_it(self, device: OpenDevice) -> None:
        """A kernel that fails fails its own step; those before and behind have their results."""
        device.need("fail")
        if not self.settings.isolates:
            pytest.skip("the driver's errors are sticky")

        async def main() -> int:
            async with Orchestrator(_AddThree(device.kernels, fail=(2,)), device.backend) as orch:
                handles = [await orch.submit(step) for step in range(5)]
                for step, handle in enumerate(handles):
                    if step == 2:
                        with pytest.raises(LaunchError):
                            await handle
                    else:
                        assert (await handle).output == _expected(step)
                return orch.statistics().slots_leased

        assert device.loop.run_until_complete(main()) == 0

    def test_leaving_with_work_in_flight_gives_everything_back(self, device: OpenDevice) -> None:
        """An exception in the body comes out as it is; the device finishes, and leases and memory are back."""
        before = device.backend.allocated_nbytes
        orch = Orchestrator(_AddThree(device.kernels), device.backend, slots=3, drain_timeout_s=PATIENCE_S)

        async def main() -> None:
            async with orch:
                for step in range(4):
                    await orch.submit(step)
                raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            device.loop.run_until_complete(main())
        statistics = orch.statistics()
        assert (statistics.slots_leased, statistics.staging_leased, statistics.pending) == (0, 0, 0)
        assert device.backend.allocated_nbytes == before
        assert device.loop.run_until_complete(_drive(device.backend, device.kernels, range(3), 1)) == 0

    def test_rings_that_do_not_fit_leave_nothing_allocated(self, device: OpenDevice) -> None:
        """Out of memory while the rings are opened is raised, and what was allocated before is freed."""

        class Absurd(_AddThree):
            slot = SlotSpec(image_nbytes=NBYTES, workspace_nbytes=2**46, output_nbytes=NBYTES)

        async def main() -> None:
            async with Orchestrator(Absurd(device.kernels), device.backend):
                raise RuntimeError("an absurd ring was opened")

        before = device.backend.allocated_nbytes
        with pytest.raises(OutOfDeviceMemory):
            device.loop.run_until_complete(main())
        assert device.backend.allocated_nbytes == before

    def test_an_orchestrator_leaves_adopted_streams_open(self, device: OpenDevice) -> None:
        """It works on the caller's streams, and they work on after it closed."""
        if self.settings.open_adopting is None:
            pytest.skip("no open_adopting= was given")
        compute, copy = device.backend.create_stream("compute"), device.backend.create_stream("copy")
        adopting = self.settings.open_adopting(compute, copy)
        assert device.loop.run_until_complete(_drive(adopting, device.kernels, range(10), 2)) == 0
        adopting.close()
        counter = device.upload(b"\0")
        for stream in (compute, copy):
            device.kernels.add_one(stream, counter)
            stream.synchronize(PATIENCE_S)
        assert device.download(counter) == b"\2"
