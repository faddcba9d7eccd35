"""One request on its way through the server: what was asked for, what came out, and how it ended."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import deque
from collections.abc import Mapping
from typing import Literal

from examples.qwen3.paged_steps import Sampler
from examples.qwen3.sampling import TopP
from examples.serve.errors import ApiError
from examples.serve.text import OutputText

__all__ = ["Asked", "FinishReason", "Generation", "Sampling"]

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. ``temperature`` 0 is greedy: then the choice is made on the device."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def sampler(self) -> Sampler | None:
        """The function that chooses on the host; None for greedy."""
        if self.temperature == 0:
            return None
        return TopP(temperature=self.temperature, top_p=self.top_p, seed=self.seed)


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What the client wants, checked."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = Sampling()
    stop: tuple[str, ...] = ()


class Generation:
    """Made for each request; the engine writes it, the request's own task reads it, both on the loop.

    ``ended`` is None while it waits or runs. What the client has not taken yet waits in ``pieces``: at most
    ``max_tokens`` of them, so a slow client costs a bounded amount. ``trace`` is its W3C trace context, if it has one:
    ``traceparent`` and perhaps ``tracestate``.
    """

    def __init__(self, name: str, asked: Asked, text: OutputText, *, trace: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.asked = asked
        self.sampler = asked.sampling.sampler()
        self.trace = trace or {}
        self.tokens: list[int] = []
        self.pieces: deque[str] = deque()
        self.ended: FinishReason | None = None
        self.error: ApiError | None = None
        self.arrived_s = time.monotonic()
        self.admitted_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self._text = text
        self._changed = asyncio.Event()

    def push(self, token: int) -> bool:
        """A token came. Whether it was the last one: then the request has ended."""
        self.tokens.append(token)
        piece = self._text.push(token)
        if piece:
            self.pieces.append(piece)
        if self._text.stopped:
            self.end("stop")
        elif len(self.tokens) == self.asked.max_tokens:
            self.end("length")
        self._changed.set()
        return self.ended is not None

    def end(self, reason: FinishReason, error: ApiError | None = None) -> None:
        """Nothing comes any more; only the first call counts."""
        if self.ended is not None:
            return
        self.ended, self.error = reason, error
        rest = self._text.rest()
        if rest:
            self.pieces.append(rest)
        self._changed.set()

    async def more(self) -> str:
        """Wait for text; what came since the last call, or what is left when it has ended. Raises its error."""
        while not self.pieces and self.ended is None:
            self._changed.clear()
            await self._changed.wait()
        text = "".join(self.pieces)
        self.pieces.clear()
        if not text and self.error is not None:
            raise self.error
        return text
