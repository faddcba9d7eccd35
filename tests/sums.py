"""A program with late input."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_orch import Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream

__all__ = ["Sums"]


class Sums(StepProgram[int, int]):
    """Each step's output is its number plus the output of the step that it comes after."""

    slot = SlotSpec(image_nbytes=8, feed_nbytes=8, output_nbytes=8)

    def build(self, step: int, image: ByteArray) -> int | None:
        image.view(np.int64)[0] = step
        return None

    def feed(self, step: int, previous: Any, feed: ByteArray) -> int | None:
        feed.view(np.int64)[0] = previous
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_add, slot.image, slot.feed, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view(np.int64)[0])


def _add(image: ByteArray, feed: ByteArray, output: ByteArray) -> None:
    output.view(np.int64)[0] = image[:8].view(np.int64)[0] + feed.view(np.int64)[0]
