"""Every way of running the engine gives the tokens of a run step by step."""

from pathlib import Path
from typing import get_args

import pytest

from async_orch.abc import ByteArray
from async_orch.exceptions import StepError
from examples.qwen3.decode import Mode, decode
from examples.qwen3.program import Qwen3Decode
from examples.qwen3.schedule import Schedule
from tests.examples.support import make_checkpoint, serial_decode

PROMPTS = ([7, 8, 9], [4], [200, 100, 50], [31, 32])
TOKENS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_checkpoint(path, seed=6)
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    return serial_decode(folder, PROMPTS, TOKENS)[0]


def program_for(folder: Path, schedule: Schedule) -> Qwen3Decode:
    return Qwen3Decode(folder, batch=schedule.batch, capacity=schedule.capacity)


@pytest.mark.parametrize("backend", ["host", "sim:instant"])
@pytest.mark.parametrize("mode", get_args(Mode))
async def test_every_mode_gives_the_same_tokens(
    folder: Path, expected: list[list[int]], backend: str, mode: Mode
) -> None:
    """On both backends each mode's tokens equal those of a serial run."""
    schedule = Schedule(PROMPTS, TOKENS, 64)
    run = await decode(program_for(folder, schedule), schedule, backend, mode=mode)
    assert run.tokens == expected
    assert len(run.steps) == len(schedule)


@pytest.mark.parametrize("backend", ["host", "sim:instant"])
@pytest.mark.parametrize("max_inflight", range(1, 6))
@pytest.mark.parametrize("slots", range(1, 5))
async def test_every_ring_size_gives_the_same_tokens(
    folder: Path, expected: list[list[int]], backend: str, slots: int, max_inflight: int
) -> None:
    """With 1 to 4 slots and 1 to 5 steps in flight the pipelined tokens equal those of a serial run."""
    schedule = Schedule(PROMPTS, TOKENS, 64)
    run = await decode(program_for(folder, schedule), schedule, backend, slots=slots, max_inflight=max_inflight)
    assert run.tokens == expected


class Damaged(Qwen3Decode):
    """Overwrites the first task's kernel id in device memory, after the copy and before the run."""

    def run(self, image: ByteArray, *regions: ByteArray) -> None:
        start = int(image[64 + 2 * 16 : 64 + 2 * 16 + 8].view("<u8")[0])
        image[start + 4] ^= 1
        super().run(image, *regions)


async def test_the_engine_runs_the_image_in_device_memory(folder: Path, expected: list[list[int]]) -> None:
    """A kernel id changed in device memory after the copy fails the step or changes its tokens."""
    schedule = Schedule(PROMPTS, TOKENS, 64)
    program = Damaged(folder, batch=schedule.batch, capacity=schedule.capacity)
    try:
        run = await decode(program, schedule, "host")
    except StepError:
        return
    assert run.tokens != expected
