"""Replay of graphs that were captured once for each size of batch, at addresses that never change.

    python -m examples.engines.captured_graphs

Images keep their rings: the next is built and copied while a graph runs. ``image_at="fixed"`` adds a copy on the device
from the step's slot to the one region that the graphs read. What they write has a fixed place too, and goes to the
step's slot behind the replay. The compute stream orders the three.
"""

import asyncio
import threading
from typing import Any

import numpy as np

from async_orch import Device, Layout, Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream
from examples.engines.fake_graphs import CapturedGraph, NextTokens

BUCKETS = (1, 2, 4, 8)
TOKEN_NBYTES = 4


def bucket_of(step: list[int]) -> int:
    """The smallest captured batch that the step fits in."""
    for bucket in BUCKETS:
        if len(step) <= bucket:
            return bucket
    raise ValueError(f"a batch of {len(step)} is larger than the largest captured one, {BUCKETS[-1]}")


class GraphedModel(StepProgram[list[int], list[int]]):
    """Gives each sequence's next token. A step is the last token of each sequence."""

    slot = SlotSpec(
        image=Layout(tokens=("i4", BUCKETS[-1:])), output_nbytes=TOKEN_NBYTES * BUCKETS[-1], image_at="fixed"
    )

    def __init__(self) -> None:
        self.running = threading.Event()
        self.running.set()

    def open(self, device: Device) -> None:
        self.graphs: dict[int, CapturedGraph] = {}
        self.output = device.alloc(TOKEN_NBYTES * BUCKETS[-1], name="graph_output")

    def build(self, step: list[int], image: Any) -> int:
        bucket = bucket_of(step)
        image.tokens[:bucket] = step + [0] * (bucket - len(step))
        return TOKEN_NBYTES * bucket

    def launch(self, step: list[int], slot: Slot, stream: Stream) -> int:
        bucket = bucket_of(step)
        if bucket not in self.graphs:  # the fixed region is known from the first launch on; `warm_up` makes it one
            self.graphs[bucket] = CapturedGraph(NextTokens(bucket, self.running), slot.image, self.output)
        self.graphs[bucket].replay(stream, slot.image, self.output)
        stream.copy(slot.output, self.output, TOKEN_NBYTES * len(step))
        return TOKEN_NBYTES * len(step)

    def collect(self, step: list[int], output: ByteArray) -> list[int]:
        return [int(token) for token in output.view(np.int32)]


async def warm_up(orch: Orchestrator[list[int], list[int]]) -> None:
    """Capture every bucket before the first real step."""
    for bucket in BUCKETS:
        await orch.run([0] * bucket)


async def main() -> None:
    async with Orchestrator(program := GraphedModel(), backend="host", slots=3) as orch:
        await warm_up(orch)
        print(f"captured batches of {', '.join(map(str, program.graphs))}")
        async for result in orch.map([[7], [1, 2, 3], [5] * 8, [4, 4]]):
            print(f"slot {result.slot}: {result.output}")


if __name__ == "__main__":
    asyncio.run(main())
