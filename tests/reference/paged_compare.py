"""Decode with the paged programs and with the transformers library, here and now, and compare.

    pip install -e ".[examples]" -r tests/reference/requirements.txt
    python -m tests.reference.paged_compare           # exits with 1 if anything differs

Each case is a random checkpoint and a ragged batch of prompts, 200 tokens each, through the engine with two steps in
flight; more prompts than rows enter and leave between steps. Then transformers' Qwen3 reads the same folder and makes
one forward pass over each prompt and its tokens, on the CPU:

- in float32, whatever the folder holds: a sequence is right if at every position its token is the most likely one there
  and the logits differ by at most `TOLERANCE`. By induction the tokens are then those of greedy decoding. The first
  prompt of each case is also decoded by transformers' own `generate`, and the tokens are compared.
- in the folder's own precision, where that is bfloat16 or float16: the logits differ by at most `ROUNDED`, and the
  token is the most likely one wherever the best two are further apart than twice that.
"""

import asyncio
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import Qwen3ForCausalLM
from transformers.utils import logging

from examples.qwen3.paged import PagedModel
from examples.qwen3.paged_run import Request
from tests.examples.paged_support import Recorder, run
from tests.examples.support import make_checkpoint, store_as

TOLERANCE = 1e-4
ROUNDED = {"bfloat16": 0.25, "float16": 0.03}
NEW_TOKENS = 200
POSITIONS = 320
LENGTHS = (9, 1, 16, 17, 40, 31, 32, 5, 2, 64, 3, 21, 7, 33, 48, 12, 100, 15, 80, 6)
HEADS: dict[str, dict[str, int]] = {
    "4/4": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "4/2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "4/1": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "8/1": {"num_attention_heads": 8, "num_key_value_heads": 1},
}

Logits = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and how it is run; ``rows`` is the largest batch, ``prompts`` how many there are in all."""

    heads: str
    head_dim: int  # hidden_size / heads would be 6 or 3
    tied: bool
    dtype: str
    rows: int
    prompts: int
    block_size: int
    shards: int = 0

    def __str__(self) -> str:
        return (
            f"heads {self.heads}, head_dim {self.head_dim}, {'tied' if self.tied else 'untied'}, {self.dtype}, "
            f"{self.prompts} prompts in {self.rows} rows, blocks of {self.block_size}, {self.shards or 'no'} shards"
        )


CASES = (
    Case("4/4", 10, True, "float32", 16, 16, 16),
    Case("4/2", 6, False, "float32", 1, 1, 64),
    Case("4/1", 10, False, "bfloat16", 5, 12, 16, shards=3),
    Case("8/1", 4, True, "float16", 16, 20, 64, shards=2),
    Case("4/2", 16, True, "bfloat16", 16, 16, 64),
    Case("8/1", 8, False, "float32", 3, 8, 16, shards=2),
    Case("4/4", 6, False, "float16", 8, 8, 16),
    Case("4/1", 24, True, "bfloat16", 1, 2, 16),
)


def ours(folder: Path, case: Case, prompts: list[list[int]]) -> tuple[list[list[int]], list[Logits]]:
    """Each prompt's tokens and the logits [tokens, vocabulary] that they were chosen from."""
    model = PagedModel(folder, block_size=case.block_size, max_batch=case.rows, max_prefill_tokens=48, keep_logits=True)
    recorder = Recorder(model)
    tokens = asyncio.run(run(model, [Request(prompt, NEW_TOKENS) for prompt in prompts]))
    return tokens, [np.array(logits[:NEW_TOKENS]) for logits in recorder.sequences]


def passed(model: Any, prompt: list[int], tokens: list[int]) -> Logits:
    """Logits of every position that one of the tokens was chosen at."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *tokens[:-1]]]), use_cache=False).logits[0]
    result: Logits = logits[len(prompt) - 1 :].to(torch.float32).numpy()
    return result


def generated(model: Any, prompt: list[int]) -> list[int]:
    """What transformers' own greedy decoding gives."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in found[0, len(prompt) :]]


def differences(folder: Path, case: Case, prompts: list[list[int]]) -> list[str]:
    """Compare one case; returns a line for each difference."""
    found: list[str] = []
    tokens, logits = ours(folder, case, prompts)
    exact = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    own = None
    if case.dtype != "float32":
        own = Qwen3ForCausalLM.from_pretrained(folder, dtype=getattr(torch, case.dtype), attn_implementation="eager")
    largest = rounded = 0.0
    for row, prompt in enumerate(prompts):
        expected = passed(exact, prompt, tokens[row])
        best = expected.argmax(axis=1).tolist()
        if tokens[row] != best:
            found.append(f"prompt {row}: tokens {tokens[row]}, expected {best}")
        largest = max(largest, float(np.abs(logits[row] - expected).max()))
        if own is not None:
            expected = passed(own, prompt, tokens[row])
            rounded = max(rounded, float(np.abs(logits[row] - expected).max()))
            two = np.sort(expected, axis=1)[:, -2:]
            clear = two[:, 1] - two[:, 0] > 2 * ROUNDED[case.dtype]
            if (expected.argmax(axis=1) != tokens[row])[clear].any():
                found.append(f"prompt {row}: a token differs from {case.dtype}'s where that is not in doubt")
    if tokens[0] != (theirs := generated(exact, prompts[0])):
        found.append(f"prompt 0: tokens {tokens[0]}, generate() gives {theirs}")
    if not largest <= TOLERANCE:  # also when it is NaN
        found.append(f"logits differ by {largest:.3e}, more than {TOLERANCE:.0e}")
    if not rounded <= ROUNDED.get(case.dtype, 0.0):
        found.append(f"logits differ from {case.dtype}'s by {rounded:.3e}, more than {ROUNDED[case.dtype]}")
    words = f", from those of {case.dtype} {rounded:.2e}" if own is not None else ""
    print(f"{case}: largest difference of logits {largest:.2e}{words}", flush=True)
    return [f"{case}: {line}" for line in found]


def main() -> int:
    """Compare every case; returns 1 if anything differs."""
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    found: list[str] = []
    for seed, case in enumerate(CASES):
        rng = np.random.default_rng(100 + seed)
        prompts = [rng.integers(0, 250, length).tolist() for length in LENGTHS[: case.prompts]]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            make_checkpoint(
                folder,
                seed=seed,
                max_position_embeddings=POSITIONS,
                head_dim=case.head_dim,
                tie_word_embeddings=case.tied,
                **HEADS[case.heads],
            )
            if case.dtype != "float32" or case.shards:
                store_as(folder, case.dtype, shards=case.shards)
            found += differences(folder, case, prompts)
    for line in found:
        print(f"DIFFERENT {line}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
