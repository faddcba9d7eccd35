"""The decoder on OpenCL: one launch a step, the host's tokens, and a graph that was damaged on the device."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from async_orch import Orchestrator
from async_orch.exceptions import CollectError, ImageCorrupt
from examples.qwen3.decode import decode
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import DecodeStep, Schedule
from tests.examples.support import make_checkpoint

cl: Any = pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from examples.qwen3.opencl import OpenCLDecode  # noqa: E402 - after the check for its extra
from tests.opencl_enqueues import Enqueues  # noqa: E402

PROMPTS = ([10, 11, 12], [40, 50, 60, 70], [100])
TOKENS = 6


def run(program: Qwen3Decode, schedule: Schedule, backend: str) -> tuple[list[list[int]], list[npt.NDArray[Any]]]:
    """Each prompt's tokens, and the logits of each step."""
    logits: list[npt.NDArray[Any]] = []

    def keep(step: DecodeStep, output: DecodeOutput) -> None:
        if output.logits is not None:
            logits.append(output.logits)

    found = asyncio.run(decode(program, schedule, backend, on_step=keep))
    return found.tokens, logits


def test_the_tokens_are_those_of_the_host(tmp_path: Path) -> None:
    """Three prompts of different lengths, pipelined: equal tokens, and logits that differ by rounding only."""
    make_checkpoint(tmp_path, seed=3)
    schedule = Schedule(PROMPTS, TOKENS, 64)
    sizes: dict[str, Any] = {"batch": schedule.batch, "capacity": schedule.capacity, "keep_logits": True}
    tokens, logits = run(Qwen3Decode(tmp_path, **sizes), schedule, "host")
    on_device, device_logits = run(OpenCLDecode(tmp_path, **sizes), schedule, "opencl")
    assert on_device == tokens
    assert len(device_logits) == len(schedule)
    for found, expected in zip(device_logits, logits, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("image_at", ["shared", "slot"])
def test_a_decode_step_is_one_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_at: Any) -> None:
    """A step enqueues one kernel, which reads its image and leaves its output in place; numpy multiplies nothing.

    Where its image is not shared, a copy of it too.
    """
    make_checkpoint(tmp_path, seed=3)
    schedule = Schedule(PROMPTS, TOKENS, 64)
    sizes: dict[str, Any] = {"batch": schedule.batch, "capacity": schedule.capacity}
    tokens, _ = run(Qwen3Decode(tmp_path, **sizes), schedule, "host")
    enqueues = Enqueues(monkeypatch)

    def refused(*args: Any, **options: Any) -> None:
        raise RuntimeError("numpy.matmul was called on the device's behalf")

    async def main() -> list[list[int]]:
        program = OpenCLDecode(tmp_path, **sizes)
        program.slot = dataclasses.replace(program.slot, image_at=image_at)
        found: list[list[int]] = [[] for _ in PROMPTS]
        async with Orchestrator(program, "opencl") as orch:
            enqueues.names.clear()
            steps = iter(schedule)
            async for result in orch.map(schedule):
                step = next(steps)
                for row in step.rows[step.generates].tolist():
                    found[row].append(int(result.output.tokens[row]))
        return found

    monkeypatch.setattr(np, "matmul", refused)
    assert asyncio.run(main()) == tokens
    assert program_tasks(tmp_path, sizes) > 30
    n_steps = len(schedule)
    copies = {} if image_at == "shared" else {"_enqueue_write_buffer": n_steps}
    assert enqueues.counts == {"enqueue_nd_range_kernel": n_steps, **copies}


def test_no_step_makes_the_driver_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first launch, at which PoCL compiles, is in open, of no graph; steps are cold or warm as they were."""
    make_checkpoint(tmp_path, seed=3)
    schedule = Schedule([[10, 11]], 2, 64)
    statuses: list[str] = []

    class Watched(OpenCLDecode):
        def _launch_once(self, device: Any) -> None:
            before = device.resident_nbytes
            monkeypatch.setattr(device, "free", self._freed(device))
            super()._launch_once(device)
            assert device.resident_nbytes == before

        def _freed(self, device: Any) -> Any:
            free = device.free

            def look_and_free(buffer: Any) -> None:
                if buffer.nbytes == self.dispatcher.STATUS_NBYTES:
                    statuses.append(self._status_of(device, buffer))
                free(buffer)

            return look_and_free

        def _status_of(self, device: Any, buffer: Any) -> str:
            found = np.empty(buffer.nbytes, np.uint8)
            cl.enqueue_copy(device.compute_stream.native, found, buffer.native)
            with pytest.raises(ImageCorrupt) as caught:
                self.dispatcher.check(found)
            return str(caught.value)

    reasons: list[str | None] = []

    async def main() -> None:
        program = Watched(tmp_path, batch=1, capacity=schedule.capacity)
        async with Orchestrator(
            program, "opencl", observers=[lambda record: reasons.append(record.cold_reason)]
        ) as orch:
            async for _ in orch.map(schedule):
                pass

    enqueues = Enqueues(monkeypatch)
    asyncio.run(main())
    assert enqueues.names.count("enqueue_nd_range_kernel") == 1 + len(schedule)
    assert reasons == ["first_launch", *[None] * (len(schedule) - 1)]
    assert len(statuses) == 1
    assert "magic" in statuses[0]


def program_tasks(folder: Path, sizes: dict[str, Any]) -> int:
    """Tasks of the graph that one launch walks."""
    return Qwen3Decode(folder, **sizes).graph.max_tasks


def test_a_graph_that_was_damaged_fails_its_step_alone(tmp_path: Path) -> None:
    """A byte changed behind the build's back is `ImageCorrupt` for that step; the next one runs."""
    make_checkpoint(tmp_path, seed=3)
    schedule = Schedule([[10, 11]], 4, 64)

    class Damages(OpenCLDecode):
        def build(self, step: DecodeStep, image: Any) -> Any:
            built = super().build(step, image)
            if int(step.positions[0]) == 2:
                image[built.nbytes - 100] ^= 0x20
            return built

    async def main() -> list[str]:
        outcomes: list[str] = []
        program = Damages(tmp_path, batch=1, capacity=schedule.capacity)
        async with Orchestrator(program, "opencl") as orch:
            handles = [await orch.submit(step) for step in schedule]
            for handle in handles:
                try:
                    await handle
                    outcomes.append("completed")
                except CollectError as exc:
                    outcomes.append(str(exc.__cause__) if isinstance(exc.__cause__, ImageCorrupt) else repr(exc))
        return outcomes

    outcomes = asyncio.run(main())
    assert "checksum" in outcomes.pop(2)
    assert outcomes == ["completed"] * 4
