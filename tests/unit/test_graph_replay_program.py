"""Replays inside a step program: resident Definitions, one recorded on the way, in every mode and with delta upload."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from async_orch import Device, Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, Stream
from async_orch.graph import Executor, Recorder
from tests.graph_replay_support import (
    REGIONS,
    build_replays,
    expected,
    make_builder,
    make_table,
    record_layer,
    record_pair,
)
from tests.graph_support import Bytes

LATE = 6
"""From this step on the graph has a Definition that was not there when the program was opened."""


class Replays(StepProgram[int, list[float]]):
    """Step n runs two layers and one more on an input that begins with n; late steps double the result by a replay."""

    slot = SlotSpec(image_nbytes=8192, workspace_nbytes=REGIONS["workspace"], output_nbytes=REGIONS["output"])

    def __init__(self) -> None:
        table = make_table()
        self.builder = make_builder(table, scratch=("workspace", "output"))
        self.execute = Executor(table)
        self.resident: dict[str, Buffer] = {}

    def open(self, device: Device) -> None:
        record_pair(self.builder)
        record_layer(self.builder)
        for name, content in (
            ("weights", np.ones(REGIONS["weights"] // 4, np.float32).view(np.uint8)),
            ("definitions", self.builder.place_definitions()),
        ):
            self.resident[name] = device.alloc(content.nbytes, name=name)
            device.upload(self.resident[name], content)

    def build(self, step: int, image: Bytes) -> int:
        used = build_replays(self.builder, image, (step, 2, 3, 4))
        if step < LATE:
            return used

        def double(recorder: Recorder) -> None:
            x = recorder.parameter("x", (4,), np.float32)
            recorder.task("scale", x, 2, x)

        late = self.builder.record("double", double, key="double")
        self.builder.replay(late, [self.builder.tensor("output", 0, (4,), np.float32)])
        return self.builder.finish()

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        weights, definitions = self.resident["weights"], self.resident["definitions"]
        stream.launch(self.run, slot.image, slot.workspace, slot.output, weights, definitions)

    def run(self, image: Bytes, workspace: Bytes, output: Bytes, weights: Bytes, definitions: Bytes) -> None:
        regions = {"workspace": workspace, "output": output, "weights": weights}
        self.execute(image, regions, definitions=definitions)

    def collect(self, step: int, output: Bytes) -> list[float]:
        values: list[float] = output[:16].view(np.float32).tolist()
        return values


@pytest.mark.parametrize("upload", ["full", "delta"])
@pytest.mark.parametrize("mode", ["naive", "ring", "pipelined"])
async def test_a_program_replays_its_layers(
    mode: Literal["naive", "ring", "pipelined"], upload: Literal["full", "delta"]
) -> None:
    """Every step's result is that of its own input, also where a new Definition travels in the image."""
    options: dict[str, Any] = {"mode": mode, "upload": upload, "slots": 3}
    async with Orchestrator(Replays(), backend="sim:adversary", **options) as orchestrator:
        results = [result.output async for result in orchestrator.map(range(10))]
    for step, found in enumerate(results):
        factor = 1 if step < LATE else 2
        assert found == [factor * value for value in expected((step, 2, 3, 4))]
