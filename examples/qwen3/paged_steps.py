"""What a step of the paged programs works on: one token of each of many sequences, or parts of some prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from async_orch.abc import Fence
from examples.qwen3.schedule import FROM_DEVICE

__all__ = [
    "FROM_DEVICE",
    "FROM_FEED",
    "TILE",
    "BatchOutput",
    "DecodeBatch",
    "DecodeRow",
    "PrefillBatch",
    "PrefillChunk",
    "Sampler",
    "prompt_chunks",
]

FROM_FEED = -2
"""In `DecodeRow.token`: the token that the host will have chosen by the time of the launch; needs ``after=``."""

TILE = 16
"""Prompt tokens that go through a matrix together. A chunk of a prompt starts at a multiple of it."""

Sampler = Callable[[npt.NDArray[np.float32], int], int]
"""Chooses a token on the host: called with a row's logits [vocab], read-only and lent, and the token's position.

To give the same tokens whatever else is in a batch, it depends on nothing but these two.
"""


class DecodeRow(NamedTuple):
    """One sequence's part of a decode step.

    ``row`` is the sequence's place on the device, 0 to ``max_batch - 1``, its own as long as it lives; it is where the
    newest token is kept. ``position`` is that of the input token; ``blocks`` the sequence's block table, which holds
    the position. ``token`` is the input token, or `FROM_DEVICE` (what the step launched last for this row chose,
    greedily) or `FROM_FEED`. With a ``sampler`` the output token is its choice, else the most likely one.
    """

    row: int
    position: int
    blocks: Sequence[int]
    token: int = FROM_DEVICE
    sampler: Sampler | None = None


class PrefillChunk(NamedTuple):
    """A part of one sequence's prompt: ``tokens`` at positions ``start``, ``start + 1``, ...

    ``start`` is a multiple of `TILE`; what lies before it is in the cache already. ``last`` says that the prompt ends
    here: then the step chooses the token after it, as in `DecodeRow`. Else the output has -1.
    """

    row: int
    start: int
    tokens: Sequence[int]
    blocks: Sequence[int]
    last: bool = True
    sampler: Sampler | None = None


@dataclasses.dataclass(slots=True, eq=False)
class DecodeBatch:
    """A decode step: different rows, in any order; an object is submitted once.

    ``fence`` is set at launch, and done when the device has left the step.
    """

    rows: Sequence[DecodeRow]
    fence: Fence | None = None


@dataclasses.dataclass(slots=True, eq=False)
class PrefillBatch:
    """A prefill step: chunks of different rows, in any order; otherwise as `DecodeBatch`."""

    chunks: Sequence[PrefillChunk]
    fence: Fence | None = None


class BatchOutput(NamedTuple):
    """Result of a step, in the order of its rows or chunks.

    ``tokens`` int32 [n], -1 for a chunk that is not the last of its prompt; ``logits`` float32 [n, vocab], None unless
    the model keeps them.
    """

    tokens: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32] | None


def prompt_chunks(
    row: int,
    tokens: Sequence[int],
    blocks: Sequence[int],
    *,
    most: int,
    start: int = 0,
    sampler: Sampler | None = None,
) -> list[PrefillChunk]:
    """A prompt in chunks of at most ``most`` tokens, a multiple of `TILE`; ``start`` tokens are in the cache already.

    How a prompt is cut does not change a bit of what comes out. Raises `ValueError` for a ``most`` or a ``start`` that
    cannot be; at least the last token has to go through the model, to give the logits behind it.
    """
    if not 0 <= start < len(tokens) or start % TILE:
        raise ValueError(
            f"start {start} of a prompt of {len(tokens)} tokens; it must be a multiple of {TILE} below that"
        )
    if most < TILE or most % TILE:
        raise ValueError(f"chunks of {most} tokens; it must be a multiple of {TILE}")
    return [
        PrefillChunk(row, at, tokens[at : at + most], blocks, at + most >= len(tokens), sampler)
        for at in range(start, len(tokens), most)
    ]
