"""Reopening a lost device while others submit, reopen too, cancel, or the program's open fails."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from async_orch import Device, Orchestrator, Slot, open_backend
from async_orch.abc import Stream
from async_orch.exceptions import DeviceLost, MisuseError
from tests.faults.support import Records, assert_balanced, eventually
from tests.programs import Square, settle


def lose() -> None:
    raise DeviceLost("bus error")


class Loses(Square):
    """The step -1 takes the device with it; a second ``open`` fails or waits as told."""

    def __init__(self, *, fail: bool = False, wait: bool = False) -> None:
        super().__init__()
        self.fail, self.wait = fail, wait
        self.entered, self.release = threading.Event(), threading.Event()

    def open(self, device: Device) -> None:
        super().open(device)
        device.alloc(64)
        if self.calls.count("open") == 2:
            self.entered.set()
            if self.wait:
                self.release.wait(30)
            if self.fail:
                raise ArithmeticError("weights are gone")

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        if step == -1:
            stream.launch(lose)
            return None
        return super().launch(step, slot, stream)


async def test_a_failed_reopen_leaves_the_device_lost_and_can_be_tried_again() -> None:
    """No step is accepted by a program that did not open; the next reopen starts from nothing."""
    backend = open_backend("host")
    program, records = Loses(fail=True), Records()
    async with Orchestrator(program, backend, step_log=records) as orch:
        with pytest.raises(DeviceLost):
            await orch.run(-1)
        with pytest.raises(ArithmeticError, match="weights are gone"):
            await orch.reopen()
        with pytest.raises(DeviceLost):
            await orch.submit(1)
        await orch.reopen()
        assert (await orch.run(3)).output == 9
    assert backend.allocated_nbytes == 0
    assert_balanced(orch)
    records.assert_one_a_step(2)
    backend.close()


@pytest.mark.parametrize("cancel", [False, True])
async def test_nothing_is_accepted_while_a_reopen_is_under_way(cancel: bool) -> None:
    """Until program.open has returned a submit gets DeviceLost, a second reopen is refused, a cancel waits."""
    program = Loses(wait=True)
    async with Orchestrator(program, "host", launch_in="thread") as orch:
        with pytest.raises(DeviceLost):
            await orch.run(-1)
        reopening = asyncio.ensure_future(orch.reopen())
        await eventually(program.entered.is_set)
        with pytest.raises(DeviceLost):
            orch.submit_nowait(1)
        with pytest.raises(MisuseError, match="under way"):
            await orch.reopen()
        if cancel:
            reopening.cancel()
            await settle()
            assert not reopening.done()
        program.release.set()
        if cancel:
            with pytest.raises(asyncio.CancelledError):
                await reopening
        else:
            await reopening
        assert (await orch.run(3)).output == 9
    assert_balanced(orch)
    assert program.calls == ["open", "close", "open", "close"]


class LosesAtLaunch(Square):
    """The driver refuses the launch of -1 because the device is gone; the launch waits for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.release = threading.Event(), threading.Event()

    def launch(self, step: int, slot: Slot, stream: Stream) -> Any:
        if step == -1:
            self.entered.set()
            self.release.wait(30)
            raise DeviceLost("the driver says so")
        return super().launch(step, slot, stream)


async def test_a_loss_seen_by_the_launch_of_a_cancelled_step_poisons_too() -> None:
    """Nobody waits for that step any more, but the device is gone for the others."""
    program = LosesAtLaunch()
    async with Orchestrator(program, "sim:instant", launch_in="thread") as orch:
        handle = await orch.submit(-1, step_id="culprit")
        await eventually(program.entered.is_set)
        assert handle.cancel()
        behind = await orch.submit(2)
        program.release.set()
        with pytest.raises(DeviceLost, match="lost at step 'culprit'"):
            await behind
    assert_balanced(orch)
