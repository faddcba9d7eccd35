"""Logits do not depend on the slot that a step runs in, nor on what other steps left there or do meanwhile."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from async_orch.logs import StepRecord
from examples.qwen3.decode import Mode, decode
from examples.qwen3.paged import PagedModel
from examples.qwen3.paged_run import Request
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import DecodeStep, Schedule
from tests.examples.paged_support import Recorder, run
from tests.examples.support import Array, make_checkpoint

PROMPT = [7, 8, 9, 40, 3, 77, 5, 19, 6, 23, 51, 80, 91, 4, 2, 11, 64]
OTHERS = [[200, 100, 50], [31], [12] * 20, [90, 9] * 9]


class Seen:
    """Observes which slot each decode step ran in."""

    def __init__(self) -> None:
        self.slots: list[int] = []

    def __call__(self, record: StepRecord) -> None:
        if record.program == "decode" and record.slot is not None:
            self.slots.append(record.slot)


async def logits_of(
    folder: Path, before: list[Request], after: list[Request], *, rows: int, **options: Any
) -> tuple[Array, list[int]]:
    """Logits of `PROMPT`'s 9 tokens, run between other requests on `rows` rows, and the slots of all decode steps."""
    model = PagedModel(folder, max_batch=rows, max_prefill_tokens=32, keep_logits=True)
    recorder, seen = Recorder(model), Seen()
    await run(model, [*before, Request(PROMPT, 9), *after], "sim:instant", observers=[seen], **options)
    return np.array(recorder.sequences[len(before)]), seen.slots


@pytest.mark.parametrize("upload", ["full", "delta"])
async def test_paged_logits_do_not_depend_on_the_slot(tmp_path: Path, upload: Literal["full", "delta"]) -> None:
    """In the only slot, and in each of three with other steps in the others, a sequence's logits are equal."""
    make_checkpoint(tmp_path, seed=5, max_position_embeddings=128)
    expected, slots = await logits_of(tmp_path, [], [], rows=1, slots=1, upload=upload)
    assert set(slots) == {0}
    assert expected.shape[0] == 9
    first_slots = set()
    for more in range(4):  # as many steps earlier as before, so that the same steps come to lie in other slots
        before = [Request(OTHERS[0], 2 + more)]
        for rows in (1, 3):
            after = [Request(prompt, 5) for prompt in OTHERS[1:]]
            logits, slots = await logits_of(tmp_path, before, after, rows=rows, slots=3, upload=upload)
            np.testing.assert_array_equal(logits, expected)
            assert set(slots) == {0, 1, 2}
            if rows == 1:
                first_slots.add(slots[1 + more])  # behind the steps of the request before
    assert first_slots == {0, 1, 2}


async def test_decoded_logits_do_not_depend_on_the_slot(tmp_path: Path) -> None:
    """Each step of a ragged batch has the same logits in a single slot, in one of several, and in fresh memory."""
    make_checkpoint(tmp_path, seed=6)
    schedule = Schedule([PROMPT[:5], *OTHERS[:2]], 8, 64)

    async def logits(mode: Mode, slots: int) -> list[Array]:
        kept: list[Array] = []

        def keep(step: DecodeStep, output: DecodeOutput) -> None:
            assert output.logits is not None
            kept.append(output.logits)

        program = Qwen3Decode(tmp_path, batch=schedule.batch, capacity=schedule.capacity, keep_logits=True)
        await decode(program, schedule, "sim:instant", mode=mode, slots=slots, on_step=keep)
        return kept

    expected = await logits("pipelined", 1)
    assert len(expected) == len(schedule)
    settings: tuple[tuple[Mode, int], ...] = (("pipelined", 2), ("pipelined", 3), ("ring", 3), ("naive", 1))
    for mode, slots in settings:
        for ours, theirs in zip(await logits(mode, slots), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
