"""The model card that the training script writes beside the checkpoint; every figure comes from the run."""

import dataclasses
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

__all__ = ["PROMPTS", "Facts", "render"]

PROMPTS = (
    "Once upon a time",
    "There was once a clever fox called Zoë, who lived in the village of",
    "One night there was a terrible storm",
)


@dataclasses.dataclass(frozen=True)
class Facts:
    """What one training run was given and what came out; `held_out_loss` is in nats a token."""

    options: Mapping[str, object]
    steps: int
    parameters: int
    corpus_sha256: str
    corpus_tokens: int
    held_out_stories: int
    held_out_loss: float
    train_s: float
    wall_s: float
    samples: tuple[tuple[str, str], ...]


def _processor() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def render(facts: Facts) -> str:
    """Return the text of `MODEL_CARD.md`."""
    options = facts.options
    flags = ("stories", "held_out", "seed", "vocab", "steps", "batch", "length", "rate", "threads", "max_seconds")
    command = " ".join(f"--{name.replace('_', '-')} {options[name]}" for name in flags)
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "tokenizers", "safetensors"))
    samples = "\n\n".join(f"> **{prompt}**{text}" for prompt, text in facts.samples)
    early = facts.steps != options["steps"]
    stopped = f" of {options['steps']}, stopped at the time limit of {options['max_seconds']} s" if early else ""
    return f"""\
# A tiny Qwen3 that tells stories

A Qwen3 decoder small enough to ship with the source, so that the examples decode real tokens through a real
transformer. It tells short stories of one kind and is good for nothing else. Judge its memory for who is who by
the samples below: a model this small, trained for minutes, may confuse the names of a story.

| | |
|---|---|
| parameters | {facts.parameters:,} (float32, head tied to the embedding) |
| trained on | {options["stories"]:,} stories of `examples/qwen3/stories.py`, seed {options["seed"]}, \
{facts.corpus_tokens:,} tokens |
| sha256 of the training text | `{facts.corpus_sha256}` (UTF-8, each story followed by a line feed) |
| held-out loss | {facts.held_out_loss:.4f} nats a token, {facts.held_out_stories} stories of another seed, \
none of which is in the training text |
| steps | {facts.steps}{stopped}, each of {options["batch"]} rows of {options["length"]} tokens, AdamW, peak rate \
{options["rate"]}, warm-up and cosine |
| time | {facts.train_s:.0f} s training, {facts.wall_s:.0f} s in all |
| machine | {_processor()}, torch threads {options["threads"]}, logical processors {os.cpu_count()}, \
{platform.system()} {platform.machine()}, no GPU |
| versions | Python {platform.python_version()}, {versions} |
| licence | Apache-2.0: weights, tokenizer and training text are this project's own |

Made by:

    python -m examples.qwen3.train --out examples/qwen3/checkpoint {command}

The training text is the same on every machine. The weights are not promised to be: sums of floats depend on
the processor, the thread count and the version of torch.

The tokenizer is a byte-level BPE; rare letters (Þ, Ł, ő) take more than one token. `<|endoftext|>` ends a
story. A prompt starts at position 0 without a token before it.

## Samples

Greedy decoding up to the end of the text; the prompt is bold.

{samples}
"""
