"""A decoder small enough to read at a glance: a sequence's next token is half of its newest one.

It has what a serving loop has to deal with: the newest token stays on the device, so that a step can be launched before
the one before it is done; and a step may fail.
"""

from __future__ import annotations

import numpy as np

from async_orch import Device, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream

__all__ = ["ON_DEVICE", "ROWS", "Pairs", "ToyDecoder"]

ROWS = 4
ON_DEVICE = -1
"""In place of a token: the one that the step before left in this row."""

Pairs = list[tuple[int, int]]
"""A step: the row and the token of each of its sequences."""


def halve(count: int, image: ByteArray, newest: ByteArray, output: ByteArray) -> None:
    """The model, on the device. It has no answer to 13, and fails."""
    for place, (row, given) in enumerate(image.view(np.int32).reshape(-1, 2)[:count].tolist()):
        token = int(newest.view(np.int32)[row]) if given == ON_DEVICE else given
        if token == 13:
            raise ArithmeticError("no answer to 13")
        newest.view(np.int32)[row] = output.view(np.int32)[place] = token // 2


class ToyDecoder(StepProgram[Pairs, list[int]]):
    """Gives each sequence's next token, in the order of the step."""

    slot = SlotSpec(image_nbytes=8 * ROWS, output_nbytes=4 * ROWS)

    def open(self, device: Device) -> None:
        self.newest = device.alloc(4 * ROWS, name="newest")

    def build(self, step: Pairs, image: ByteArray) -> int:
        image[: 8 * len(step)] = np.array(step, np.int32).view(np.uint8).ravel()
        return 8 * len(step)

    def launch(self, step: Pairs, slot: Slot, stream: Stream) -> int:
        stream.launch(halve, len(step), slot.image, self.newest, slot.output)
        return 4 * len(step)

    def collect(self, step: Pairs, output: ByteArray) -> list[int]:
        return [int(token) for token in output.view(np.int32)]
