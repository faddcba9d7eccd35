"""Rings that are broken on purpose, and a program whose results show it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._launch import LaunchStage
from async_orch._retire import RetireStage
from async_orch._step import Step
from async_orch._transfer import H2DStage
from async_orch.abc import ByteArray, Stream

__all__ = ["BROKEN", "SumUp", "obey"]

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


def obey(orch: Orchestrator[Any, Any]) -> None:
    """Let an opened orchestrator's rings tell the backend what is given back, and reuse it in the backend's order."""
    opened = orch._opened
    assert opened is not None
    pipeline, backend = opened.pipeline, opened.backend

    def tell(buffers: Callable[[int], list[Any]]) -> Callable[[int], None]:
        def on_free(index: int) -> None:
            for buffer in buffers(index):
                if buffer is not None:
                    backend.released(buffer)

        return on_free

    slots, staging = pipeline.slots, pipeline.staging
    for ring in (slots, staging):
        ring._fifo = backend.reuse_order == "fifo"
    slots._on_free = tell(
        lambda i: [getattr(slots.items[i], part) for part in ("image", "workspace", "output", "output_host")]
    )
    staging._on_free = tell(lambda i: [staging.items[i].buffer])


_end_copy, _launch, _collect = H2DStage._end_copy, LaunchStage._launch, RetireStage._collect


def _staging_at_enqueue(self: H2DStage, step: Step, staging: Any) -> None:
    _end_copy(self, step, staging)
    self.pipeline.staging.release(staging)


def _slot_at_launch(self: LaunchStage, step: Step, slot: Slot) -> None:
    _launch(self, step, slot)
    self.pipeline.slots.release(slot)


def _slot_before_collect(self: RetireStage, step: Step) -> None:
    if step.slot is not None:
        self.pipeline.slots.release(step.slot)
    _collect(self, step)


BROKEN: dict[str, tuple[type[Any], str, Callable[..., None]]] = {
    "staging released at enqueue": (H2DStage, "_end_copy", _staging_at_enqueue),
    "slot released at launch": (LaunchStage, "_launch", _slot_at_launch),
    "slot released before collect": (RetireStage, "_collect", _slot_before_collect),
}
"""Class, method and what to put in its place."""
