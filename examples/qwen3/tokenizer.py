"""Text to token ids and back; text that grows token by token never ends in the middle of a character."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from examples.qwen3.config import TOKENIZER_FILE, ModelError

__all__ = ["GrowingText", "TextCodec"]


@cache
def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Such a vocabulary writes the 188 bytes that are printable in Latin-1 as themselves, and the others as the
    code points from 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


class TextCodec:
    """A model's byte-level tokenizer.

    Raises `ModelError` if the folder's `tokenizer.json` cannot be read, is not byte level, or has more tokens
    than the model's `vocab_size`.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        path = folder / TOKENIZER_FILE
        try:
            content = path.read_text(encoding="utf-8")
            self._tokenizer = Tokenizer.from_str(content)
            decoder = json.loads(content).get("decoder") or {}
        except OSError as exc:
            raise ModelError(f"{path} cannot be read: {exc.strerror}") from exc
        except Exception as exc:  # the library raises plain Exception
            raise ModelError(f"{path} cannot be read as a tokenizer: {' '.join(str(exc).split())}") from exc
        if decoder.get("type") != "ByteLevel":
            raise ModelError(f"{path}: its decoder is {decoder.get('type')!r}; this decoder needs 'ByteLevel'")
        if self._tokenizer.get_vocab_size() > vocab_size:
            raise ModelError(
                f"{path} has {self._tokenizer.get_vocab_size()} tokens, more than the model's vocab_size "
                f"{vocab_size}; the two files belong to different models"
            )
        added = self._tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, none if it is empty. Raises `ModelError` for a text that is no Unicode."""
        try:
            text.encode()
        except UnicodeEncodeError as exc:  # bytes of a command line that were no UTF-8
            raise ModelError(f"a prompt is not valid UTF-8 at character {exc.start + 1}") from exc
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes, possibly only a part of a character, that a token stands for; none if special."""
        if token_id in self._special:
            return b""
        if token_id in self._added:
            return self._added[token_id]
        token: str | None = self._tokenizer.id_to_token(token_id)
        if token is None:  # a row of the embedding that no token uses
            return b""
        table = _byte_of()
        return bytes(table[character] for character in token)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a whole sequence; bytes that are no UTF-8 show as U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")


class GrowingText:
    """Text of tokens that arrive one by one.

    A byte-level vocabulary may split a character's UTF-8 bytes over tokens; the bytes wait here until the
    character is whole. The stop ids end the text: they and all that follows show nothing.
    """

    def __init__(self, codec: TextCodec, stop_ids: Iterable[int] = ()) -> None:
        self._codec = codec
        self._stop_ids = frozenset(stop_ids)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Add a token; returns the characters that became whole, often one word, sometimes nothing."""
        self.stopped = self.stopped or token_id in self._stop_ids
        if self.stopped:
            return ""
        part = self._decoder.decode(self._codec.token_bytes(token_id))
        self._parts.append(part)
        return part

    def __str__(self) -> str:
        return "".join(self._parts)
