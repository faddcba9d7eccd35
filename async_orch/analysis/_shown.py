"""Texts of a log as they can be shown: nothing in them may act on a terminal, end a line, or pose as ours."""

from __future__ import annotations

import re
from typing import Final

import msgspec

__all__ = ["shown", "shown_json"]

_MAX_LENGTH: Final = 200
_CONTROLS: Final = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def shown(text: str, max_length: int = _MAX_LENGTH) -> str:
    """The text with everything that is not printable written out (``\\x1b``), cut at ``max_length`` characters."""
    if len(text) > max_length:
        text = text[:max_length] + "..."
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def shown_json(value: object) -> str:
    """The value as JSON, in which the control characters that the encoder leaves as they are are escaped too."""
    encoded = msgspec.json.encode(value)
    text = encoded.decode()
    return text if encoded.isascii() else _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
