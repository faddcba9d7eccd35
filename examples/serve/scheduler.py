"""Which sequences the next step carries: admission by free blocks, prompts in parts, decode in between.

Plain state without a device or a loop: every decision is a function call, so each can be tested by itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from async_orch import StepHandle, StepProgram
from examples.qwen3.blocks import BlockAllocator, Submitted
from examples.qwen3.paged_steps import (
    FROM_DEVICE,
    FROM_FEED,
    TILE,
    DecodeBatch,
    DecodeRow,
    PrefillBatch,
    PrefillChunk,
)
from examples.serve.errors import ApiError, overloaded
from examples.serve.generation import Generation

__all__ = ["Flight", "Limits", "Plan", "Scheduler", "Sequence", "ServedModel"]

DECODES_BETWEEN_PREFILLS = 3
"""A prefill step lets every running stream wait for its length. More steps between two let prompts gather in one, for
the price of a later first token."""


class Limits(NamedTuple):
    """Sizes of a model that the scheduler plans with; tokens, but ``batch``: sequences at once."""

    batch: int
    context: int
    prefill_tokens: int
    block_size: int


class ServedModel(Protocol):
    """What is served: programs ``prefill`` and ``decode`` over one paged cache."""

    @property
    def programs(self) -> Mapping[str, StepProgram[Any, Any]]: ...

    @property
    def blocks(self) -> BlockAllocator: ...

    @property
    def limits(self) -> Limits: ...


class Sequence:
    """A request that has a row and blocks. ``planned`` tokens are on their way in steps that are in flight."""

    __slots__ = ("blocks", "generation", "planned", "prefilled", "row")

    def __init__(self, generation: Generation, row: int, blocks: list[int]) -> None:
        self.generation = generation
        self.row = row
        self.blocks = blocks
        self.prefilled = 0
        self.planned = 0

    @property
    def length(self) -> int:
        """Positions of prompt and tokens, those on their way included."""
        return len(self.generation.asked.prompt) + len(self.generation.tokens) + self.planned

    @property
    def wants_more(self) -> bool:
        """Whether a decode step may carry it: its prompt is in the cache, or will be by then."""
        asked = self.generation.asked
        return self.prefilled == len(asked.prompt) and len(self.generation.tokens) + self.planned < asked.max_tokens


class Plan(NamedTuple):
    """The next step: ``gives[i]`` says whether it gives the i-th sequence a token; ``fed``: it needs ``after=``."""

    program: str
    batch: DecodeBatch | PrefillBatch
    sequences: list[Sequence]
    gives: list[bool]
    fed: bool = False


class Flight(NamedTuple):
    """A step that was submitted."""

    plan: Plan
    handle: StepHandle[Any]


class Scheduler:
    """Waiting requests, running sequences, and the steps in flight, oldest first."""

    def __init__(self, model: ServedModel, *, waiting_room: int) -> None:
        self.limits = model.limits
        self.blocks = model.blocks
        self.waiting_room = waiting_room
        self.waiting: deque[Generation] = deque()
        self.running: list[Sequence] = []
        self.window: deque[Flight] = deque()
        self._rows = list(range(model.limits.batch - 1, -1, -1))
        self._decodes = DECODES_BETWEEN_PREFILLS

    # -- requests come and go ------------------------------------------------------------------------------

    def blocks_for(self, generation: Generation) -> int:
        """Blocks for prompt and answer. All are taken at admission, so a running sequence never lacks one."""
        asked = generation.asked
        # The last token is chosen, but never put into the cache.
        return -(-(len(asked.prompt) + asked.max_tokens - 1) // self.limits.block_size)

    def add(self, generation: Generation) -> None:
        """Let a request wait for its turn. Raises `ApiError` 429 beyond the free rows and the waiting room.

        Rows that are free count, since they are only given out when the next step is planned.
        """
        if len(self.waiting) >= self.waiting_room + len(self._rows):
            raise overloaded(
                f"{len(self.waiting)} requests are waiting, as many as this server lets wait; try again later",
                retry_after_s=1 + len(self.waiting) // max(1, self.limits.batch),
            )
        self.waiting.append(generation)

    def remove(self, generation: Generation) -> None:
        """A request ended for another reason than its tokens: it is in no further step."""
        generation.end("abort")
        if generation in self.waiting:
            self.waiting.remove(generation)
        for sequence in self.running:
            if sequence.generation is generation:
                self._leave(sequence)
                break

    def fail_running(self, error: ApiError) -> None:
        """What is in the cache is lost: every running sequence ends with ``error``, and no step is in flight."""
        for sequence in list(self.running):
            sequence.generation.end("error", error)
            self._leave(sequence)
        self.window.clear()

    def fail_waiting(self, error: ApiError) -> None:
        """Nobody will serve those who wait."""
        while self.waiting:
            self.waiting.popleft().end("error", error)

    def end_all(self, error: ApiError) -> None:
        """Running and waiting requests end with ``error``; steps in flight stay so, and free their blocks later."""
        for sequence in list(self.running):
            sequence.generation.end("error", error)
            self._leave(sequence)
        self.fail_waiting(error)

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        # Steps leave the device in order, and the cache is written by nothing else: the last one decides.
        users = [Submitted(f.plan.batch, f.handle) for f in self.window if sequence in f.plan.sequences]
        self.blocks.free(sequence.blocks, after=users[-1:])

    def _admit(self) -> None:
        while self.waiting and self._rows:
            generation = self.waiting[0]
            count = self.blocks_for(generation)
            if count > self.blocks.available:
                return  # first come, first served: a small request does not overtake, or a large one might never run
            self.waiting.popleft()
            generation.admitted_s = time.monotonic()
            self.running.append(Sequence(generation, self._rows.pop(), self.blocks.allocate(count)))

    # -- steps ---------------------------------------------------------------------------------------------

    def next_plan(self) -> Plan | None:
        """The next step, counted as in flight; None if there is nothing to do.

        When there is both, a prefill step comes after every `DECODES_BETWEEN_PREFILLS` decode steps: new requests start
        soon, and no stream stands still for long.
        """
        self._admit()
        prefill = [s for s in self.running if s.prefilled < len(s.generation.asked.prompt)]
        decode = [s for s in self.running if s.wants_more]
        if decode and (not prefill or self._decodes < DECODES_BETWEEN_PREFILLS):
            self._decodes += 1
            return self._decode(decode)
        if prefill:
            self._decodes = 0
            return self._prefill(prefill)
        return None

    def _prefill(self, sequences: list[Sequence]) -> Plan:
        left = self.limits.prefill_tokens
        chunks: list[PrefillChunk] = []
        carried: list[Sequence] = []
        for sequence in sequences:
            if left < TILE:
                break
            prompt, start = sequence.generation.asked.prompt, sequence.prefilled
            tokens = prompt[start : start + left // TILE * TILE]
            last = start + len(tokens) == len(prompt)
            sampler = sequence.generation.sampler
            chunks.append(PrefillChunk(sequence.row, start, tokens, sequence.blocks, last=last, sampler=sampler))
            carried.append(sequence)
            sequence.prefilled += len(tokens)
            sequence.planned += last
            left -= -(-len(tokens) // TILE) * TILE
        return Plan("prefill", PrefillBatch(chunks), carried, [chunk.last for chunk in chunks])

    def _decode(self, sequences: list[Sequence]) -> Plan:
        rows: list[DecodeRow] = []
        fed = False
        for sequence in sequences:
            generation = sequence.generation
            if not sequence.planned:
                token = generation.tokens[-1]  # known: it needs no step before this one
            elif generation.sampler is None:
                token = FROM_DEVICE
            else:
                token, fed = FROM_FEED, True
            rows.append(DecodeRow(sequence.row, sequence.length - 1, sequence.blocks, token, generation.sampler))
            sequence.planned += 1
        return Plan("decode", DecodeBatch(rows), sequences, [True] * len(rows), fed)

    def take_back(self, plan: Plan) -> None:
        """The step does not take place: what it would have done is to be planned again."""
        for place, (sequence, gives) in enumerate(zip(plan.sequences, plan.gives, strict=True)):
            sequence.planned -= gives
            if isinstance(plan.batch, PrefillBatch):
                sequence.prefilled = min(sequence.prefilled, plan.batch.chunks[place].start)

    def drop_failed(self) -> None:
        """Take back the steps in flight that failed because one before them did: they never reached the device.

        Sequences that the other did not carry lose nothing. The steps behind a dropped one are built on it and go too.
        """
        kept: list[Flight] = []
        dropped: list[Flight] = []
        for flight in self.window:
            if dropped or (flight.handle.done() and flight.handle.exception() is not None):
                dropped.append(flight)
            else:
                kept.append(flight)
        for flight in reversed(dropped):
            flight.handle.cancel()
            self.take_back(flight.plan)
        self.window = deque(kept)

    def settled(self, plan: Plan, tokens: list[int]) -> list[Generation]:
        """The oldest step gave ``tokens``. Returns the requests that got one; those that ended have left."""
        got = []
        for sequence, gives, token in zip(plan.sequences, plan.gives, tokens, strict=True):
            sequence.planned -= gives
            generation = sequence.generation
            if not gives or generation.ended is not None:
                continue  # it ended while this step was in flight
            got.append(generation)
            if generation.push(token):
                self._leave(sequence)
        return got

    def failed(self, plan: Plan, error: ApiError) -> None:
        """The oldest step failed: the requests that it carried end with ``error``, and no others."""
        for sequence, gives in zip(plan.sequences, plan.gives, strict=True):
            sequence.planned -= gives
            if sequence.generation.ended is None:
                sequence.generation.end("error", error)
                self._leave(sequence)
