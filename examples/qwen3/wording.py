"""Words for people: text without control characters, numbers with their noun."""

from __future__ import annotations

import unicodedata

__all__ = ["counted", "one_line", "visible"]

_HARMLESS = "\n\t"
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the order in which a terminal shows the text around them."""


def visible(text: str) -> str:
    """``text`` with control characters written out, such as ``\\x1b``; line breaks and tabs stay.

    A terminal obeys them: a prompt, a model's text or a file's name could clear the screen or fake a line. Half
    surrogates, the bytes of a name that were no UTF-8, and characters that reorder text are written out too.
    """
    return "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character in _REORDERING or (unicodedata.category(character) in ("Cc", "Cs") and character not in _HARMLESS):
        return character.encode("ascii", "backslashreplace").decode() if ord(character) > 0x7F else _low(character)
    return character


def _low(character: str) -> str:
    return "\\r" if character == "\r" else f"\\x{ord(character):02x}"


def one_line(text: str) -> str:
    """``text`` in one line and `visible`: for messages that quote what a user gave."""
    return visible(" ".join(text.split()))


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 prompt, 1,000 prompts."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
