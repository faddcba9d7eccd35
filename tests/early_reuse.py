"""Rings that are broken on purpose, and a program whose results show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from async_orch import Lease, Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._ring import Ring
from async_orch.abc import ByteArray, Fence, Stream

__all__ = ["BROKEN", "NBYTES", "SumUp"]

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
