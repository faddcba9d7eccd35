"""After the device was lost: everything on it is made anew, or the loss is final."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from async_orch._events import emit
from async_orch._finish import finish
from async_orch.exceptions import DeviceLost, MisuseError, OrchestratorClosed

if TYPE_CHECKING:
    from async_orch._opening import Opened

__all__ = ["Reopened", "reopen"]

SETTLE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Reopened:
    """What a lost device took with it.

    ``reason`` is why it was lost; ``lost_steps`` counts the steps that were in flight; ``lost_resident_nbytes`` is the
    resident memory whose contents ``program.open`` had to make again; ``slots_abandoned`` are buffers that the device
    never gave back.
    """

    reason: str
    lost_steps: int
    lost_resident_nbytes: int
    slots_abandoned: int


async def reopen(opened: Opened) -> Reopened:
    """See `Orchestrator.reopen`."""
    if opened.reopening.locked():
        raise MisuseError("a reopen() is under way already; wait for that one")
    if not opened.pipeline.accepting:
        raise OrchestratorClosed("the orchestrator is being left")
    failure = opened.pipeline.failure
    if not isinstance(failure, DeviceLost):
        raise MisuseError("reopen() is for a lost device; this one is not lost")
    async with opened.reopening:
        return await finish(_reopen(opened, failure))


async def _reopen(opened: Opened, failure: DeviceLost) -> Reopened:
    old = opened.pipeline
    lost_steps = old.lost_steps
    resident = opened.device.resident_nbytes
    with anyio.move_on_after(SETTLE_TIMEOUT_S):
        # A launch that is still on its way must not meet the streams and slots that come after the reset.
        await old.wait_until(lambda: old.launch.busy is None)
    # A reset ends what still hangs on the device, so that its fences come.
    if not opened.backend.reset():
        raise DeviceLost(f"the device cannot be reset in this process; start a new one ({failure})")
    with anyio.move_on_after(SETTLE_TIMEOUT_S):
        old.watch_everything()
        old.pump()
        await old.wait_until(old.quiet)
    abandoned = opened.memory.leased()
    if old.launch.busy is not None:
        opened.replace_device_thread()
    await opened.close_inner()
    await opened.open_inner(failure)
    emit("info", "device.reopened", lost_steps=lost_steps, lost_resident_nbytes=resident)
    return Reopened(str(failure), lost_steps, resident, abandoned)
