"""Decode with this project and with the transformers library, here and now, and compare.

    pip install -e ".[examples]" -r tests/reference/requirements.txt
    python -m tests.reference.live_compare            # exits with 1 if anything differs

This project decodes each batch through its engine, pipelined. Then transformers' Qwen3, float32 on the CPU,
makes one forward pass over each row's prompt and tokens. The row is right if at every position its token is
the most likely one there and the logits differ by at most `TOLERANCE`: by induction the tokens are then those
of greedy decoding.

Compared are the shipped checkpoint, on the prompts of `make_reference` and on the first words of other
stories, and random checkpoints with other ratios of query to key-value heads and with a head of their own.
"""

import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from examples.qwen3.config import load_config
from examples.qwen3.decode import decode
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import DecodeStep, Schedule
from examples.qwen3.stories import generate
from tests.examples.support import make_checkpoint
from tests.reference.make_reference import CASES, CHECKPOINT, NEW_TOKENS, TOLERANCE

STORY_SEED = 20_000  # of stories that the checkpoint was not trained on
RANDOM_PROMPTS = ((7, 8, 9), (4,), (200, 100, 50, 25, 12), (31, 32))
RANDOM_MODELS: dict[str, dict[str, Any]] = {
    "heads 4/4": {"num_key_value_heads": 4},
    "heads 4/1": {"num_key_value_heads": 1},
    "heads 8/1": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 4},
    "head of its own": {"tie_word_embeddings": False},
    "theta 1e6, eps 1e-5": {"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
}

Logits = npt.NDArray[np.float32]


def ours(folder: Path, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[list[list[int]], list[Logits]]:
    """Each row's tokens, and the logits [tokens, vocabulary] that they were chosen from."""
    schedule = Schedule(prompts, tokens, load_config(folder).max_position_embeddings)
    logits: list[list[Logits]] = [[] for _ in prompts]

    def keep(step: DecodeStep, output: DecodeOutput) -> None:
        if output.logits is None:
            raise RuntimeError("the program did not keep its logits")
        for index in np.flatnonzero(step.generates):
            logits[step.rows[index]].append(output.logits[index])

    program = Qwen3Decode(folder, batch=schedule.batch, capacity=schedule.capacity, keep_logits=True)
    run = asyncio.run(decode(program, schedule, "host", on_step=keep))
    return run.tokens, [np.array(rows) for rows in logits]


def differences(name: str, folder: Path, prompts: Sequence[Sequence[int]], tokens: int) -> list[str]:
    """Compare one batch; returns a line for each row that differs."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    found: list[str] = []
    largest = 0.0
    for row, (prompt, new, logits) in enumerate(zip(prompts, *ours(folder, prompts, tokens), strict=True)):
        with torch.no_grad():
            passed = model(input_ids=torch.tensor([[*prompt, *new[:-1]]]), use_cache=False).logits[0]
        expected: Logits = passed[len(prompt) - 1 :].numpy()
        if new != expected.argmax(axis=1).tolist():
            found.append(f"{name}, row {row}: tokens {new}, expected {expected.argmax(axis=1).tolist()}")
        error = float(np.abs(logits - expected).max())
        largest = max(largest, error)
        if not error <= TOLERANCE:  # also when it is NaN
            found.append(f"{name}, row {row}: logits differ by {error:.3e}, more than {TOLERANCE:.0e}")
    print(f"{name}: batch of {len(prompts)}, {tokens} tokens, largest difference of logits {largest:.2e}")
    return found


def shipped_batches() -> Iterator[tuple[str, list[list[int]]]]:
    """Batches of 1 and 4 prompts for the shipped checkpoint."""
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    for case, prompts in CASES.items():
        yield case, [tokenizer.encode(prompt).ids for prompt in prompts]
    stories = [tokenizer.encode(text).ids for text in generate(5, STORY_SEED)]
    yield "another story", [stories[0][:9]]
    yield "other stories", [ids[:length] for ids, length in zip(stories[1:], (1, 7, 30, 61), strict=True)]


def main() -> int:
    """Compare every batch; returns 1 if anything differs."""
    torch.set_num_threads(1)
    found: list[str] = []
    for name, prompts in shipped_batches():
        found += differences(name, CHECKPOINT, prompts, NEW_TOKENS)
    with tempfile.TemporaryDirectory() as scratch:
        for seed, (name, changes) in enumerate(RANDOM_MODELS.items()):
            folder = Path(scratch) / str(seed)
            make_checkpoint(folder, seed=seed, **changes)
            found += differences(f"random, {name}", folder, RANDOM_PROMPTS, 32)
    for line in found:
        print(f"DIFFERENT {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
