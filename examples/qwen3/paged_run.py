"""Many prompts at once through a `PagedModel`: sequences enter and leave the batch between steps.

A small scheduler that shows how the programs are used, and what the tests drive them with; a server has its own.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from async_orch import Orchestrator
from examples.qwen3.blocks import Submitted
from examples.qwen3.config import ModelError
from examples.qwen3.paged import PagedModel
from examples.qwen3.paged_steps import (
    FROM_DEVICE,
    FROM_FEED,
    TILE,
    BatchOutput,
    DecodeBatch,
    DecodeRow,
    PrefillBatch,
    PrefillChunk,
    Sampler,
)

__all__ = ["Request", "generate"]

WINDOW = 2
"""Steps on their way: one executes while the next is built and copied."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how many tokens are wanted after it; fewer if one of ``stop_ids`` comes, which is not returned."""

    prompt: Sequence[int]
    tokens: int
    sampler: Sampler | None = None
    stop_ids: Collection[int] = ()


@dataclasses.dataclass(slots=True, eq=False)
class _Sequence:
    """A request that has a row and blocks."""

    number: int
    request: Request
    row: int
    blocks: list[int]
    prefilled: int = 0
    planned: int = 0
    """Tokens that are chosen, or will be by steps on their way."""
    tokens: list[int] = dataclasses.field(default_factory=list)
    ended: bool = False

    def next_row(self) -> DecodeRow:
        """The step that gives one more token than is planned."""
        request = self.request
        source = FROM_DEVICE if request.sampler is None else FROM_FEED
        if len(self.tokens) == self.planned:
            source = self.tokens[-1]  # it has reached the host
        return DecodeRow(self.row, len(request.prompt) + self.planned - 1, self.blocks, source, request.sampler)


class _Scheduler:
    """Decides what the next step works on: prompts first, as far as rows and blocks reach, else one token of each."""

    def __init__(self, model: PagedModel, requests: Sequence[Request]) -> None:
        self.model = model
        self.window: deque[tuple[Submitted, list[_Sequence]]] = deque()
        self.results: list[list[int]] = [[] for _ in requests]
        self._waiting = deque(enumerate(requests))
        self._rows = list(range(model.shape.max_batch - 1, -1, -1))
        self._running: list[_Sequence] = []

    def next_step(self) -> tuple[str, DecodeBatch | PrefillBatch, list[_Sequence]] | None:
        """Program, step and its sequences; None if there is nothing to do before a step comes back."""
        self._admit()
        room = self.model.shape.max_prefill_tokens
        chunks: list[PrefillChunk] = []
        sequences: list[_Sequence] = []
        for one in self._running:
            left = len(one.request.prompt) - one.prefilled
            if left > 0 and room >= TILE:
                take = min(left, room)
                tokens = one.request.prompt[one.prefilled : one.prefilled + take]
                last = take == left
                chunks.append(PrefillChunk(one.row, one.prefilled, tokens, one.blocks, last, one.request.sampler))
                sequences.append(one)
                one.prefilled += take
                one.planned += last
                room -= -(-take // TILE) * TILE
        if chunks:
            return "prefill", PrefillBatch(chunks), sequences
        sequences = [one for one in self._running if 0 < one.planned < one.request.tokens]
        if not sequences:
            return None
        rows = [one.next_row() for one in sequences]
        for one in sequences:
            one.planned += 1
        return "decode", DecodeBatch(rows), sequences

    def _admit(self) -> None:
        """Give rows and blocks to those that wait longest; a sequence gets all that it will ever need."""
        while self._waiting and self._rows:
            number, request = self._waiting[0]
            needed = self.model.blocks_for(len(request.prompt) + request.tokens - 1)
            if needed > self.model.blocks.available:
                return
            self._waiting.popleft()
            self._running.append(_Sequence(number, request, self._rows.pop(), self.model.blocks.allocate(needed)))

    def take_in(self, output: BatchOutput) -> list[tuple[int, int]]:
        """The oldest step came back: gives the request and the token of each sequence that got one."""
        _, sequences = self.window.popleft()
        got: list[tuple[int, int]] = []
        for one, token in zip(sequences, output.tokens.tolist(), strict=True):
            if one.ended or token < 0:  # ended meanwhile: the step was wasted on it; or the prompt goes on
                continue
            if token not in one.request.stop_ids:
                one.tokens.append(token)
                got.append((one.number, token))
            if token in one.request.stop_ids or len(one.tokens) == one.request.tokens:
                self._end(one)
        return got

    def abandon(self) -> None:
        """Drop every step on its way, the last first, so that none is launched meanwhile, and give all blocks back."""
        for submitted, _ in reversed(self.window):
            submitted.handle.cancel()
        for one in self._running:
            self.model.blocks.free(one.blocks, [submitted for submitted, users in self.window if one in users])
        self._running.clear()

    def _end(self, one: _Sequence) -> None:
        one.ended = True
        self.results[one.number] = one.tokens
        self._running.remove(one)
        self._rows.append(one.row)  # may be used at once: later steps come later on the device, too
        self.model.blocks.free(one.blocks, [submitted for submitted, users in self.window if one in users])


async def generate(
    orchestrator: Orchestrator[Any, Any],
    model: PagedModel,
    requests: Sequence[Request],
    *,
    on_token: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """The tokens of each request; ``on_token(request, token)`` is called as they arrive.

    The orchestrator runs ``model.programs``. Steps are submitted before the tokens that they start from have reached
    the host. Raises `ModelError` for a request that can never run, and a step's failure as it is; after that, and after
    a cancel, all blocks are back as soon as the device has left the steps that use them.
    """
    for number, request in enumerate(requests, 1):
        _check(model, number, request)
    scheduler = _Scheduler(model, requests)
    try:
        await _run(orchestrator, scheduler, on_token)
    except BaseException:  # also if the caller is cancelled
        scheduler.abandon()
        raise
    return scheduler.results


async def _run(
    orchestrator: Orchestrator[Any, Any], scheduler: _Scheduler, on_token: Callable[[int, int], None] | None
) -> None:
    window = scheduler.window
    while True:
        while len(window) < WINDOW and (found := scheduler.next_step()) is not None:
            program, batch, sequences = found
            late = isinstance(batch, DecodeBatch) and any(row.token == FROM_FEED for row in batch.rows)
            after = window[-1][0].handle if late else None
            handle = await orchestrator.submit(batch, program=program, after=after)
            window.append((Submitted(batch, handle), sequences))
        if not window:
            return
        result = await window[0][0].handle
        for number, token in scheduler.take_in(result.output):
            if on_token is not None:
                on_token(number, token)


def _check(model: PagedModel, number: int, request: Request) -> None:
    shape, positions = model.shape, len(request.prompt) + request.tokens - 1
    if not request.prompt or request.tokens < 1:
        raise ModelError(f"request {number} has {len(request.prompt)} prompt tokens and asks for {request.tokens} more")
    if positions > shape.max_context:
        raise ModelError(f"request {number} needs {positions} positions, max_context is {shape.max_context}")
    if model.blocks_for(positions) > shape.kv_blocks:
        raise ModelError(
            f"request {number} needs {model.blocks_for(positions)} blocks, the cache has {shape.kv_blocks}"
        )
