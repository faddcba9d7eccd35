"""Train the example checkpoint: a Qwen3 decoder of under a million parameters that tells short stories.

Writes the Hugging Face layout (`config.json`, `generation_config.json`, `model.safetensors`,
`tokenizer.json`, `tokenizer_config.json`) and a `MODEL_CARD.md` with the figures of this run. Needs torch,
tokenizers and safetensors: `pip install "async-orch[train]"`.

    python -m examples.qwen3.train --out examples/qwen3/checkpoint
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from examples.qwen3 import train_card
from examples.qwen3.stories import generate
from examples.qwen3.train_model import ModelConfig, Qwen3

__all__ = ["greedy", "held_out_loss", "main", "make_tokenizer", "train"]

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_ID = 0  # special tokens come first in the vocabulary
IGNORED = -100  # the target that cross_entropy leaves out


def make_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer whose token `END_OF_TEXT_ID` ends a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _windows(texts: Sequence[list[int]], end_id: int, length: int) -> Tensor:
    """Pack stories into rows [rows, length + 1]; every row begins with the first token of a story.

    A story that does not fit any more is cut, and the next row starts with another one, so that position 0 is
    always what it is at decode time: the start of a text without a token before it.
    """
    rows: list[list[int]] = []
    row: list[int] = []
    for ids in texts:
        row += [*ids, end_id]
        if len(row) > length:
            rows.append(row[: length + 1])
            row = []
    return torch.tensor(rows)


def _batches(rows: Tensor, batch: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Yield `steps` batches; every row is used once before any is used again."""
    source = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat((order, torch.randperm(len(rows), generator=source)))
        yield rows[order[:batch]]
        order = order[batch:]


def _loss(model: Qwen3, rows: Tensor) -> Tensor:
    logits: Tensor = model(rows[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def held_out_loss(model: Qwen3, texts: Sequence[list[int]], end_id: int) -> float:
    """Mean loss in nats a token; each story stands alone and its end-of-text token counts."""
    total, count = 0.0, 0
    for first in range(0, len(texts), 32):
        part = [torch.tensor([*ids, end_id]) for ids in texts[first : first + 32]]
        rows = nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=IGNORED)
        targets = rows[:, 1:].flatten()
        logits = model(rows[:, :-1].clamp(min=0)).flatten(0, 1)
        total += float(functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"))
        count += int((targets != IGNORED).sum())
    return total / count


def train(model: Qwen3, rows: Tensor, options: argparse.Namespace) -> int:
    """AdamW with warm-up and a cosine to a twentieth of the peak rate; returns the steps done.

    Stops early, and says so, when `options.max_seconds` have passed.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.95))
    warm_up: int = max(1, options.steps // 25)

    def factor(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        progress: float = (step - warm_up) / max(1, options.steps - warm_up)
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    start_s = time.monotonic()
    for step, batch in enumerate(_batches(rows, options.batch, options.steps, options.seed)):
        loss = _loss(model, batch)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        elapsed_s = time.monotonic() - start_s
        if step % 50 == 0:
            print(f"step {step}/{options.steps} loss {loss.item():.4f} {elapsed_s:.0f} s", flush=True)
        if elapsed_s > options.max_seconds:
            print(f"stopped after {step + 1} of {options.steps} steps: over {options.max_seconds} s", flush=True)
            return step + 1
    return int(options.steps)


def greedy(model: Qwen3, ids: Sequence[int], count: int, end_id: int | None = None) -> list[int]:
    """Return up to `count` new ids, each the most likely next one; stops before `end_id`."""
    text = list(ids)
    for _ in range(min(count, model.config.max_position_embeddings - len(text))):
        token = int(model(torch.tensor([text]))[0, -1].argmax())
        if token == end_id:
            break
        text.append(token)
    return text[len(ids) :]


def _write(folder: Path, model: Qwen3, tokenizer: Tokenizer, end_id: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token_id": end_id, "eos_token_id": end_id, "pad_token_id": end_id}
    documents: dict[str, dict[str, Any]] = {
        "config.json": model.config.to_json(end_id),
        "generation_config.json": {**special, "do_sample": False},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.config.max_position_embeddings,
        },
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.qwen3.train", description="Train the checkpoint.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--stories", type=int, default=20_000, help="stories to train on")
    parser.add_argument("--held-out", type=int, default=500, help="stories for the held-out loss")
    parser.add_argument("--seed", type=int, default=1, help="seed of corpus, weights and order")
    parser.add_argument("--vocab", type=int, default=768, help="tokens of the vocabulary")
    parser.add_argument("--steps", type=int, default=1500, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=8, help="rows a step")
    parser.add_argument("--length", type=int, default=256, help="tokens a row")
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--max-seconds", type=float, default=720.0, help="stop training after this time")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, write the folder, print the held-out loss."""
    options = _parse(argv)
    start_s = time.monotonic()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    corpus = list(generate(options.stories, options.seed))
    known = set(corpus)
    unseen = [text for text in generate(options.held_out, options.seed + 1) if text not in known]
    tokenizer = make_tokenizer(corpus, options.vocab)
    end_id = END_OF_TEXT_ID
    rows = _windows([item.ids for item in tokenizer.encode_batch(corpus)], end_id, options.length)
    model = Qwen3(ModelConfig(vocab_size=tokenizer.get_vocab_size()))
    train_start_s = time.monotonic()
    steps = train(model, rows, options)
    train_s = time.monotonic() - train_start_s
    model.requires_grad_(False)
    loss = held_out_loss(model, [item.ids for item in tokenizer.encode_batch(unseen)], end_id)
    _write(options.out, model, tokenizer, end_id)
    samples = []
    for prompt in train_card.PROMPTS:
        new = greedy(model, tokenizer.encode(prompt).ids, 256, end_id)
        samples.append((prompt, tokenizer.decode(new)))
    facts = train_card.Facts(
        options=vars(options),
        steps=steps,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        corpus_sha256=hashlib.sha256("".join(text + "\n" for text in corpus).encode()).hexdigest(),
        corpus_tokens=rows[:, 1:].numel(),
        held_out_stories=len(unseen),
        held_out_loss=loss,
        train_s=train_s,
        wall_s=time.monotonic() - start_s,
        samples=tuple(samples),
    )
    (options.out / "MODEL_CARD.md").write_text(train_card.render(facts), encoding="utf-8")
    print(f"held-out loss {loss:.4f} nats a token, {facts.parameters} parameters, {facts.wall_s:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
