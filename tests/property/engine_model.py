"""What the state machine of `test_engine_states` submits, and what its model knows of each step."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np

from async_orch import Layout, Slot, SlotSpec, StepHandle, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import BuildError, CollectError, LaunchError
from async_orch.testing import ManualBackend, ManualFence, VirtualClockLoop

__all__ = ["ERRORS", "Chained", "Entry", "Payload", "Plain", "VirtualManualBackend"]

ERRORS = {
    "build": BuildError,
    "feed": LaunchError,
    "launch": LaunchError,
    "kernel": LaunchError,
    "collect": CollectError,
}


def kernel(step: Payload, image: ByteArray, workspace: ByteArray, output: ByteArray, feed: ByteArray | None) -> None:
    """value + what was fed; everything goes through the workspace, so that a reused slot shows."""
    if step.fail == "kernel":
        raise ArithmeticError("kernel")
    workspace[:8] = image[:8]
    total = int(workspace[:8].view(np.int64)[0])
    if feed is not None:
        total += int(feed[:8].view(np.int64)[0])
    output[:8].view(np.int64)[0] = total


@dataclass(eq=False)
class Payload:
    """One step, and what it is to do."""

    value: int
    fail: str | None = None
    failing_builds: int = 0
    hold: ManualFence | None = None
    workspace_nbytes: int = 64
    slot_index: int = -1


class Plain(StepProgram[Payload, int]):
    """Notes its launches; fails where the payload says."""

    slot = SlotSpec(image=Layout(value=("i8", (1,))), workspace_nbytes=64, output_nbytes=8)
    grows = False

    def __init__(self, launches: list[Payload]) -> None:
        self.launches = launches

    def sizes(self, step: Payload) -> SlotSpec | None:
        if not self.grows:
            return None
        spec = type(self).slot
        return SlotSpec(
            image=spec.image,
            workspace_nbytes=step.workspace_nbytes,
            output_nbytes=8,
            feed_nbytes=spec.feed_nbytes,
        )

    def build(self, step: Payload, image: Any) -> int | None:
        if step.failing_builds or step.fail == "build":
            step.failing_builds -= 1
            raise ArithmeticError("build")
        image.value[0] = step.value
        return None

    def launch(self, step: Payload, slot: Slot, stream: Stream) -> int | None:
        self.launches.append(step)
        step.slot_index = slot.index
        if step.fail == "launch":
            raise ArithmeticError("launch")
        stream.launch(kernel, step, slot.image, slot.workspace, slot.output, self.fed(slot))
        if step.hold is not None:
            slot.hold(step.hold)
        return None

    def fed(self, slot: Slot) -> Buffer | None:
        return None

    def collect(self, step: Payload, output: ByteArray) -> int:
        if step.fail == "collect":
            raise ArithmeticError("collect")
        return int(output.view(np.int64)[0])


class Chained(Plain):
    """Adds what the earlier step gave."""

    slot = SlotSpec(image=Plain.slot.image, workspace_nbytes=64, output_nbytes=8, feed_nbytes=8)

    def feed(self, step: Payload, previous: int, feed: ByteArray) -> int | None:
        if step.fail == "feed":
            raise ArithmeticError("feed")
        feed.view(np.int64)[0] = previous
        return None

    def launch(self, step: Payload, slot: Slot, stream: Stream) -> int | None:
        if step.value >= 0:  # not fed: the feed buffer is undefined
            slot.feed.array[:] = 0
        return super().launch(step, slot, stream)

    def fed(self, slot: Slot) -> Buffer | None:
        return slot.feed


@dataclass(eq=False)
class Entry:
    """What the model knows of one submit."""

    payload: Payload
    program: str
    after: Entry | None
    timeout_s: float | None
    task: asyncio.Task[StepHandle[int]]
    cancelled: bool = False
    wait_for: ManualFence | None = None
    build_fails: bool = False

    @property
    def handle(self) -> StepHandle[int] | None:
        if self.task.done() and not self.task.cancelled() and self.task.exception() is None:
            return self.task.result()
        return None

    @property
    def expected(self) -> int:
        total = self.payload.value
        if self.after is not None and self.program == "chained":
            total += self.after.expected
        return total


class VirtualManualBackend(ManualBackend):
    """Its clock is the loop's."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def clock_ns(self) -> int:
        return int(self._loop.time() * 1e9)
