"""A lost device, and what comes after."""

from __future__ import annotations

from typing import Any

import pytest

from async_orch import Device, Orchestrator, Slot, open_backend
from async_orch.abc import Stream
from async_orch.exceptions import DeviceLost, MisuseError
from async_orch.testing import ManualBackend
from tests.programs import Square


def lose() -> None:
    raise DeviceLost("bus error")


class Loses(Square):
    """The step -1 takes the device with it; resident memory is opened each time."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []

    def open(self, device: Device) -> None:
        super().open(device)
        self.opened.append(device.alloc(128, name="weights").nbytes)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        if step == -1:
            stream.launch(lose)
            return None
        return super().launch(step, slot, stream)


@pytest.mark.parametrize("name", ["host", "sim:instant"])
@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_after_a_loss_reopen_makes_everything_anew(name: str, launch_in: Any) -> None:
    """Steps in flight fail, submits fail at once, reopen() runs program.open again and says what was lost."""
    backend = open_backend(name)
    program = Loses()
    async with Orchestrator(program, backend, launch_in=launch_in) as orch:
        assert (await orch.run(2)).output == 4
        handle = await orch.submit(-1, step_id="culprit")
        with pytest.raises(DeviceLost, match="device lost at step 'culprit'"):
            await handle
        with pytest.raises(DeviceLost):
            await orch.submit(3)
        report = await orch.reopen()
        assert report.lost_resident_nbytes == 128
        assert report.lost_steps == 1
        assert report.slots_abandoned == 0
        assert program.opened == [128, 128]
        result = await orch.run(5)
        assert (result.output, result.seq) == (25, 2)
        statistics = orch.statistics()
        assert (statistics.submitted, statistics.completed, statistics.failed) == (3, 2, 1)
        assert statistics.resident_nbytes == 128
    backend.close()


async def test_reopening_a_healthy_device_is_refused() -> None:
    """reopen() is no restart button."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        with pytest.raises(MisuseError, match="this one is not lost"):
            await orch.reopen()


async def test_a_device_that_cannot_be_reset_stays_lost() -> None:
    """Where only a new process helps, reopen() says so and nothing hangs."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, drain_timeout_s=0.05) as orch:
        handle = await orch.submit(1)
        backend.lose(DeviceLost("gone"))
        with pytest.raises(DeviceLost):
            await handle
        with pytest.raises(DeviceLost, match="cannot be reset in this process"):
            await orch.reopen()
        with pytest.raises(DeviceLost):
            await orch.submit(2)
