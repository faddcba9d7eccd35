"""A model to serve that is cheap and merciless: its next token depends on every token before it.

It reads them from the paged cache on the device, so a block that is reused too early, a wrong position or a stale token
changes everything that follows. `answer` computes the same without a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from async_orch import Device, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from examples.qwen3.blocks import BlockAllocator
from examples.qwen3.paged_programs import Latest
from examples.qwen3.paged_steps import (
    FROM_DEVICE,
    FROM_FEED,
    BatchOutput,
    DecodeBatch,
    PrefillBatch,
    Sampler,
)
from examples.serve.scheduler import Limits

__all__ = ["FAILS", "VOCAB", "Characters", "HashModel", "answer", "text_of"]

VOCAB = 96
"""Token 0 ends a text; token n is the character chr(n + 31)."""

FAILS = "~"
"""A prompt that begins with it makes the kernel of its step raise."""

_WEIGHTS = np.cumprod(np.full(1 << 14, 6364136223846793005, np.uint64), dtype=np.uint64)
_LOGITS = np.linspace(4.0, -4.0, VOCAB, dtype=np.float32)  # the first is the largest


def chosen(tokens: npt.NDArray[np.int32]) -> int:
    """The most likely token after these."""
    mixed = int((tokens.astype(np.uint64) * _WEIGHTS[: tokens.size]).sum(dtype=np.uint64)) ^ tokens.size
    return (mixed >> 17) % VOCAB


def logits_for(token: int) -> npt.NDArray[np.float32]:
    """Logits whose largest is that of ``token``."""
    return np.roll(_LOGITS, token)


def answer(prompt: str, max_tokens: int, sampler: Sampler | None = None) -> list[int]:
    """What the model says after a prompt, by itself; ends with 0 if it ended by itself."""
    tokens = Characters().encode(prompt)
    start = len(tokens)
    while len(tokens) - start < max_tokens and (len(tokens) == start or tokens[-1] != 0):
        token = chosen(np.array(tokens, np.int32))
        tokens.append(token if sampler is None else sampler(logits_for(token), len(tokens)))
    return tokens[start:]


def text_of(tokens: list[int]) -> str:
    """The text that a client sees of these tokens."""
    return "".join(chr(token + 31) for token in tokens if token)


class CharacterPieces:
    """Text that grows by one character a token."""

    def __init__(self) -> None:
        self.stopped = False

    def push(self, token_id: int) -> str:
        self.stopped = self.stopped or token_id == 0
        return "" if self.stopped else chr(token_id + 31)


class Characters:
    """A tokenizer of printable ASCII; what is none becomes a blank."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 31 if " " <= c <= "~" else 1 for c in text]

    def pieces(self) -> CharacterPieces:
        return CharacterPieces()


class HashModel:
    """A `ServedModel`; ``cost_ns`` is what a step takes on a simulated device."""

    def __init__(
        self,
        *,
        batch: int = 8,
        context: int = 256,
        kv_blocks: int | None = None,
        block_size: int = 16,
        prefill_tokens: int = 64,
        cost_ns: int | None = None,
    ) -> None:
        self.limits = Limits(batch, context, prefill_tokens, block_size)
        self.width = -(-context // block_size)
        self.blocks = BlockAllocator(batch * self.width if kv_blocks is None else kv_blocks)
        self.cost_ns = cost_ns
        self.latest = Latest(batch)
        self.opened = 0
        self.cache: Buffer
        self.state: Buffer
        self._device: Device | None = None
        self._programs: dict[str, StepProgram[Any, Any]] = self.make_programs()

    def make_programs(self) -> dict[str, StepProgram[Any, Any]]:
        """The two programs."""
        return {"prefill": HashPrefill(self), "decode": HashDecode(self)}

    @property
    def programs(self) -> Mapping[str, StepProgram[Any, Any]]:
        return self._programs

    def open(self, device: Device) -> None:
        if self._device is device:
            return
        self._device = device
        self.opened += 1
        self.cache = device.alloc(4 * self.blocks.total * self.limits.block_size, name="cache")
        self.state = device.alloc(4 * self.limits.batch, name="state")
        self.latest.forget()
        self.blocks.device_at_rest()


def put(
    model: HashModel, kv: npt.NDArray[np.int32], table: npt.NDArray[np.int32], start: int, tokens: list[int]
) -> None:
    """Store tokens in the cache."""
    size = model.limits.block_size
    positions = np.arange(start, start + len(tokens))
    kv[table[positions // size] * size + positions % size] = tokens


def read(
    model: HashModel, kv: npt.NDArray[np.int32], table: npt.NDArray[np.int32], length: int
) -> npt.NDArray[np.int32]:
    """A sequence's tokens out of the cache."""
    size = model.limits.block_size
    positions = np.arange(length)
    tokens: npt.NDArray[np.int32] = kv[table[positions // size] * size + positions % size]
    return tokens


class HashProgram(StepProgram[Any, BatchOutput], ABC):
    """What both programs share: an image of int32 rows [batch, row_width]."""

    row_width: int

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.slot = SlotSpec(
            image_nbytes=4 * model.limits.batch * self.row_width, output_nbytes=4 * model.limits.batch, feed_nbytes=0
        )

    def open(self, device: Device) -> None:
        self.model.open(device)

    def launch(self, step: Any, slot: Slot, stream: Stream) -> int:
        model = self.model
        count = len(step.rows) if isinstance(step, DecodeBatch) else len(step.chunks)
        feed = slot.feed if self.slot.feed_nbytes else slot.output
        try:
            self.enqueue(stream, count, slot.image, feed, model.cache, model.state, slot.output)
        finally:
            step.fence = stream.record()
        return 4 * count

    def enqueue(self, stream: Stream, count: int, *memory: Buffer) -> None:
        """The step's kernel."""
        stream.launch(self.run, count, *memory, cost_ns=self.model.cost_ns)

    def rows_of(self, image: ByteArray, count: int) -> npt.NDArray[np.int32]:
        """The rows of a step in its slot's image, which may be larger."""
        return image[: 4 * self.row_width * count].view(np.int32).reshape(-1, self.row_width)

    @abstractmethod
    def run(self, count: int, image: ByteArray, feed: ByteArray, *memory: ByteArray) -> None:
        """The kernel."""

    @abstractmethod
    def outcomes(self, batch: Any) -> list[tuple[int, int, Sampler | None]]:
        """Row, position of the token that it gets or -1, and sampler."""

    def collect(self, step: Any, output: ByteArray) -> BatchOutput:
        outcomes = self.outcomes(step)
        tokens = output[: 4 * len(outcomes)].view(np.int32).copy()
        for place, (row, position, sampler) in enumerate(outcomes):
            if position >= 0:
                if sampler is not None:
                    tokens[place] = sampler(logits_for(int(tokens[place])), position)
                self.model.latest.put(row, position, int(tokens[place]))
        return BatchOutput(tokens, None)


class HashPrefill(HashProgram):
    """Puts prompts into the cache."""

    def __init__(self, model: HashModel) -> None:
        self.row_width = 4 + model.width + model.limits.prefill_tokens
        super().__init__(model)

    def build(self, step: PrefillBatch, image: ByteArray) -> int:
        rows = image.view(np.int32).reshape(-1, self.row_width)
        for row, chunk in zip(rows, step.chunks, strict=False):
            row[:4] = chunk.row, chunk.start, len(chunk.tokens), chunk.last
            row[4 : 4 + len(chunk.blocks)] = chunk.blocks
            row[4 + self.model.width :][: len(chunk.tokens)] = chunk.tokens
        return 4 * self.row_width * len(step.chunks)

    def run(self, count: int, image: ByteArray, feed: ByteArray, *memory: ByteArray) -> None:
        kv, state, output = (each.view(np.int32) for each in memory)
        for place, data in enumerate(self.rows_of(image, count)):
            row, start, length, last = (int(value) for value in data[:4])
            table = data[4 : 4 + self.model.width]
            tokens = data[4 + self.model.width :][:length].tolist()
            if start == 0 and tokens[0] == ord(FAILS) - 31:
                raise ArithmeticError("the prompt asks for it")
            put(self.model, kv, table, start, tokens)
            output[place] = state[row] = chosen(read(self.model, kv, table, start + length)) if last else -1

    def outcomes(self, batch: PrefillBatch) -> list[tuple[int, int, Sampler | None]]:
        return [(c.row, c.start + len(c.tokens) if c.last else -1, c.sampler) for c in batch.chunks]


class HashDecode(HashProgram):
    """Gives each sequence its next token."""

    def __init__(self, model: HashModel) -> None:
        self.row_width = 3 + model.width
        super().__init__(model)
        batch = model.limits.batch
        self.slot = SlotSpec(image_nbytes=self.slot.image_nbytes, output_nbytes=4 * batch, feed_nbytes=4 * batch)

    def build(self, step: DecodeBatch, image: ByteArray) -> int:
        rows = image.view(np.int32).reshape(-1, self.row_width)
        for row, given in zip(rows, step.rows, strict=False):
            row[:3] = given.row, given.position, given.token
            row[3 : 3 + len(given.blocks)] = given.blocks
        return 4 * self.row_width * len(step.rows)

    def feed(self, step: DecodeBatch, previous: Any, feed: ByteArray) -> int:
        tokens = feed[: 4 * len(step.rows)].view(np.int32)
        for place, row in enumerate(step.rows):
            if row.token == FROM_FEED:
                tokens[place] = self.model.latest.get(row.row, row.position)
        return tokens.nbytes

    def run(self, count: int, image: ByteArray, feed: ByteArray, *memory: ByteArray) -> None:
        kv, state, output = (each.view(np.int32) for each in memory)
        for place, data in enumerate(self.rows_of(image, count)):
            row, position, token = (int(value) for value in data[:3])
            if token == FROM_DEVICE:
                token = int(state[row])
            elif token == FROM_FEED:
                token = int(feed.view(np.int32)[place])
            put(self.model, kv, data[3:], position, [token])
            output[place] = state[row] = chosen(read(self.model, kv, data[3:], position + 1))

    def outcomes(self, batch: DecodeBatch) -> list[tuple[int, int, Sampler | None]]:
        return [(row.row, row.position + 1, row.sampler) for row in batch.rows]
