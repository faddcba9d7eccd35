"""Rings that are broken on purpose, and a program whose results show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from async_orch import Lease, Slot, SlotSpec, StepProgram
from async_orch._launch import LaunchJob, LaunchStage
from async_orch._retire import RetireStage
from async_orch._slot import Staging
from async_orch._step import Step
from async_orch._transfer import H2DStage
from async_orch.abc import ByteArray, Fence, Stream

__all__ = ["BROKEN", "NBYTES", "SumUp"]

NBYTES = 64


class SumUp(StepProgram[int, tuple[int, int]]):
    """Gives the step's number twice: once straight from the image, once by way of the workspace and a second kernel."""

    slot = SlotSpec(image_nbytes=NBYTES, workspace_nbytes=NBYTES, output_nbytes=NBYTES)

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


_end_copy, _launched, _start_collect = H2DStage._end_copy, LaunchStage._launched, RetireStage._start_collect


def _staging_at_enqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    def end_copy(self: H2DStage, step: Step, staging: Lease[Staging]) -> bool:
        enqueued = _end_copy(self, step, staging)
        staging.release()
        return enqueued

    monkeypatch.setattr(H2DStage, "_end_copy", end_copy)


def _slot_at_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(self: LaunchStage, job: LaunchJob) -> None:
        _launched(self, job)
        _give_back(job.slot)

    monkeypatch.setattr(LaunchStage, "_launched", launched)
    monkeypatch.setattr(Slot, "release", _already_given_back)


def _slot_before_collect(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_collect(self: RetireStage, step: Step) -> None:
        if step.slot is not None:
            _give_back(step.slot)
        _start_collect(self, step)

    monkeypatch.setattr(RetireStage, "_start_collect", start_collect)
    monkeypatch.setattr(Slot, "release", _already_given_back)


def _give_back(slot: Slot) -> None:
    """Make the slot free without ending its lease: a ring without generations, which would show the mistake too."""
    slot._ring._put_back(slot.index)


def _already_given_back(slot: Slot, *fences: Fence) -> None:
    """The slot is back since long."""


BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "staging released at enqueue": _staging_at_enqueue,
    "slot released at launch": _slot_at_launch,
    "slot released before collect": _slot_before_collect,
}
"""What breaks the engine's rings for one test."""
