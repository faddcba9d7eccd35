"""A program whose results show early reuse, rings that are broken on purpose, and runs under fire."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from async_orch import Lease, Orchestrator, Slot, SlotSpec, StepProgram, open_backend
from async_orch._ring import Ring
from async_orch.abc import ByteArray, Fence, Stream
from async_orch.exceptions import OrchError
from async_orch.testing import Fault, FaultPlan, leak_check

__all__ = ["BROKEN", "NBYTES", "SumUp", "run_under_fire"]

NBYTES = 64


class SumUp(StepProgram[int, tuple[int, int]]):
    """Gives the step's number twice: once straight from the image, once by way of the workspace and a second kernel."""

    slot = SlotSpec(image_nbytes=NBYTES, workspace_nbytes=NBYTES, output_nbytes=NBYTES)
    orchestrator: Orchestrator[int, tuple[int, int]]

    def build(self, step: int, image: Any) -> int | None:
        image.view(np.int64)[:] = step
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_first, slot.image, slot.workspace)
        stream.launch(_second, slot.image, slot.workspace, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> tuple[int, int]:
        values = output.view(np.int64)
        return int(values[0]), int(values[1])


def _first(image: ByteArray, workspace: ByteArray) -> None:
    workspace[:] = image


def _second(image: ByteArray, workspace: ByteArray, output: ByteArray) -> None:
    values = output.view(np.int64)
    values[0] = image.view(np.int64)[-1]
    values[1] = workspace.view(np.int64)[-1]


class _Broken(SumUp):
    """Gives a buffer back too early, without ending its lease: a ring without generations, which show it too."""

    gives_back_slots = True

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slots: dict[int, Slot] = {}
        self.images: dict[int, int] = {}
        original = Ring.release

        def release(ring: Ring[Any], lease: Lease[Any], fences: Sequence[Fence] = ()) -> None:
            if isinstance(lease, Slot) != self.gives_back_slots:  # else it is back since long
                original(ring, lease, fences)

        monkeypatch.setattr(Ring, "release", release)

    def build(self, step: int, image: Any) -> int | None:
        self.images[step] = image.ctypes.data
        return super().build(step, image)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self.slots[step] = slot
        return super().launch(step, slot, stream)


class _StagingAtEnqueue(_Broken):
    gives_back_slots = False

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        opened = self.orchestrator._opened
        assert opened is not None
        staging = opened.pipeline.staging
        addresses = [item.buffer.handle for item in staging.items]
        staging._put_back(addresses.index(self.images[step]))  # its copy is enqueued, not done
        return super().launch(step, slot, stream)


class _SlotAtLaunch(_Broken):
    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        used = super().launch(step, slot, stream)
        slot._ring._put_back(slot.index)
        return used


class _SlotBeforeCollect(_Broken):
    def collect(self, step: int, output: ByteArray) -> tuple[int, int]:
        slot = self.slots[step]
        slot._ring._put_back(slot.index)
        return super().collect(step, output)


BROKEN: dict[str, type[_Broken]] = {
    "staging released at enqueue": _StagingAtEnqueue,
    "slot released at launch": _SlotAtLaunch,
    "slot released before collect": _SlotBeforeCollect,
}
"""Programs that break the engine's rings for one test."""


async def run_under_fire(seed: int, count: int) -> tuple[int, int]:
    """Steps with random cancels and faults; gives the number of completed ones and of those that were wrong."""
    choices = random.Random(seed)
    plan = FaultPlan(
        Fault(action="raise", operation="copy", probability=0.02),
        Fault(action="raise", operation="launch", probability=0.02),
        Fault(action="short_copy", operation="copy", probability=0.02, copied_nbytes=5),
        Fault(action="delay", operation="launch", probability=0.05, delay_ns=70_000_000),
        seed=seed,
    )
    backend = open_backend("sim:adversary", clock="virtual", faults=plan)
    done = wrong = 0
    with leak_check(backend) as leaks:
        async with leaks.watch(Orchestrator(SumUp(), backend, slots=choices.randint(1, 4))) as orch:
            handles = []
            for step in range(count):
                handle = await orch.submit(step)
                handles.append((step, handle))
                if choices.random() < 0.1:
                    handles[choices.randrange(len(handles))][1].cancel()
                if choices.random() < 0.3 or len(handles) > 8:
                    oldest, waited_for = handles.pop(0)
                    try:
                        result = await waited_for
                    except OrchError:
                        continue
                    done += 1
                    wrong += result.output != (oldest, oldest)
    assert plan.struck.total() > 0
    backend.close()
    return done, wrong
