"""A model runner with persistent pinned inputs and an asynchronous copy of the output, behind the orchestrator.

    python -m examples.engines.persistent_inputs

The runner owns one set of buffers for each slot index and never waits in `prepare` or `dispatch`. What makes that
safe is the index: the orchestrator gives it out again only after `reclaim` has returned.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import numpy as np

from async_orch import EngineProgram, Orchestrator
from examples.engines.fake_device import Event, FakeDevice, Tokens, next_tokens

MAX_BATCH = 8
SLOTS = 3


class Prepared(NamedTuple):
    """A step whose inputs, one token for each row, lie in the buffers of ``slot``."""

    slot: int
    rows: int


class ModelRunner(EngineProgram[list[int], list[int]]):
    """Gives each sequence's next token. A step is the last token of each sequence, at most `MAX_BATCH` of them."""

    def __init__(self, device: FakeDevice) -> None:
        self.device = device
        self.inputs: list[Tokens] = []
        self.outputs: list[Tokens] = []

    def open(self) -> None:
        device = self.device
        self.inputs = [device.pinned(MAX_BATCH) for _ in range(SLOTS)]
        self.outputs = [device.pinned(MAX_BATCH) for _ in range(SLOTS)]
        self.tokens = device.memory(MAX_BATCH)  # one is enough: the compute stream orders its users
        self.sampled = [device.memory(MAX_BATCH) for _ in range(SLOTS)]  # read by the output stream, so one a slot

    def prepare(self, step: list[int], slot_index: int) -> Prepared:
        self.inputs[slot_index][: len(step)] = np.asarray(step, np.int32)
        return Prepared(slot_index, len(step))

    def dispatch(self, prepared: Prepared) -> tuple[Tokens, Event]:
        slot, rows = prepared
        compute, output = self.device.compute, self.device.output
        compute.copy_to_device(self.tokens, self.inputs[slot], rows)
        compute.launch(next_tokens, self.tokens, self.sampled[slot], rows)
        output.wait(compute.record())
        output.copy_to_host(self.outputs[slot], self.sampled[slot], rows)
        return self.outputs[slot][:rows], output.record()

    def reclaim(self, pending: tuple[Tokens, Event], timeout_s: float) -> list[int]:
        sampled, copied = pending
        copied.synchronize(timeout_s)
        return [int(token) for token in sampled]  # a copy: the buffer is the next step's after the return

    def close(self) -> None:
        self.device.free_pinned([*self.inputs, *self.outputs])


async def main() -> None:
    """Run batches of different sizes; three of them are on the way at any time."""
    device = FakeDevice()
    batches = [[10 * i + row for row in range(1 + i % 3)] for i in range(6)]
    async with Orchestrator(ModelRunner(device), slots=SLOTS) as orch:
        async for result in orch.map(batches):
            print(f"step {result.seq} buffers {result.slot}: {batches[result.seq]} -> {result.output}")
    print(f"buffers reused early: {device.early_reuses}, still pinned: {device.pinned_buffers}")


if __name__ == "__main__":
    asyncio.run(main())
