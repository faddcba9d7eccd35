"""From tokens to the text that a client sees: whole characters, up to the first stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from examples.qwen3.tokenizer import GrowingText, TextCodec

__all__ = ["Codec", "OutputText", "TokenizerCodec"]


class Pieces(Protocol):
    """Text that grows by a token at a time."""

    stopped: bool

    def push(self, token_id: int) -> str:
        """Add a token; returns the characters that became whole."""
        ...


class Codec(Protocol):
    """What the server needs of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ...

    def pieces(self) -> Pieces:
        """A new, empty text; ends at the model's stop tokens."""
        ...


class TokenizerCodec:
    """The model's own tokenizer."""

    def __init__(self, codec: TextCodec, stop_ids: Iterable[int]) -> None:
        self._codec = codec
        self._stop_ids = tuple(stop_ids)

    def encode(self, text: str) -> list[int]:
        return self._codec.encode(text)

    def pieces(self) -> Pieces:
        return GrowingText(self._codec, self._stop_ids)


class OutputText:
    """The text of one request. What may be the beginning of a stop string is held back until that is decided.

    ``stopped`` says that a stop token or a stop string has come; neither is part of the text.
    """

    def __init__(self, codec: Codec, stop: Sequence[str]) -> None:
        self._pieces = codec.pieces()
        self._stop = tuple(stop)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that is certain now."""
        if self.stopped:
            return ""
        self._held += self._pieces.push(token_id)
        found = [at for at in (self._held.find(text) for text in self._stop) if at >= 0]
        if found:
            self.stopped = True
            certain, self._held = self._held[: min(found)], ""
            return certain
        if self._pieces.stopped:
            self.stopped = True
            return self.rest()
        keep = max((_overlap(self._held, text) for text in self._stop), default=0)
        certain, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return certain

    def rest(self) -> str:
        """What was held back, now that nothing comes any more."""
        certain, self._held = self._held, ""
        return certain


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that is a beginning of ``stop``."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
