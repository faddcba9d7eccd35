"""The shipped checkpoint decodes to what the transformers library computed for it (see tests/reference)."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from examples.qwen3.config import load_config
from examples.qwen3.decode import decode
from examples.qwen3.options import CHECKPOINT
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import DecodeStep, Schedule
from examples.qwen3.tokenizer import TextCodec

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((REFERENCE / "qwen3_tiny.json").read_text(encoding="utf-8"))
    return document


def test_the_reference_belongs_to_the_checkpoint(stored: dict[str, Any]) -> None:
    """The stored hashes are those of the shipped files."""
    for name, digest in stored["checkpoint_sha256"].items():
        assert hashlib.sha256((CHECKPOINT / name).read_bytes()).hexdigest() == digest, name


@pytest.mark.parametrize("case", ["batch1", "batch4"])
async def test_tokens_text_and_logits_equal_the_reference(stored: dict[str, Any], case: str) -> None:
    """Greedy tokens are equal, and logits to 1e-4, for one prompt and for four of different lengths."""
    expected = stored["cases"][case]
    config = load_config(CHECKPOINT)
    codec = TextCodec(CHECKPOINT, config.vocab_size)
    prompts = [codec.encode(prompt) for prompt in expected["prompts"]]
    assert prompts == expected["prompt_ids"]
    schedule = Schedule(prompts, stored["new_tokens"], config.max_position_embeddings)
    logits: list[list[npt.NDArray[np.float32]]] = [[] for _ in prompts]

    def keep(step: DecodeStep, output: DecodeOutput) -> None:
        assert output.logits is not None
        for index in np.flatnonzero(step.generates):
            logits[step.rows[index]].append(output.logits[index])

    program = Qwen3Decode(CHECKPOINT, batch=schedule.batch, capacity=schedule.capacity, keep_logits=True)
    run = await decode(program, schedule, "host", on_step=keep)
    assert run.tokens == expected["generated_ids"]
    found = np.array(logits)
    with np.load(REFERENCE / "qwen3_tiny_logits.npz") as file:
        full = found[:, file[f"{case}.full_steps"]]
        np.testing.assert_allclose(full, file[f"{case}.full_logits"], rtol=0, atol=TOLERANCE)
        top = np.take_along_axis(found, file[f"{case}.top_ids"], axis=-1)
        np.testing.assert_allclose(top, file[f"{case}.top_logits"], rtol=0, atol=TOLERANCE)
