"""Physical lines of a byte stream, in bounded memory whatever the stream holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

__all__ = ["MAX_LINE_NBYTES", "ByteSource", "physical_lines"]

MAX_LINE_NBYTES: Final = 1 << 20
"""A longer line is no log line; it is skipped as a whole without being held."""

_CHUNK_NBYTES: Final = 1 << 20


class ByteSource(Protocol):
    """What is read from: a file opened in binary mode, a pipe, `io.BytesIO`."""

    def read(self, size: int, /) -> bytes: ...


def physical_lines(source: ByteSource) -> Iterator[bytes | None]:
    """Yield each line without its ``\\n``; None stands for a line longer than `MAX_LINE_NBYTES`.

    A last line without a line end counts, an empty rest after the last line end does not.
    """
    carry = b""
    dropping = False
    while chunk := source.read(_CHUNK_NBYTES):
        pieces = chunk.split(b"\n")
        if dropping:
            if len(pieces) == 1:
                continue
            dropping = False
            yield None
            del pieces[0]
        else:
            pieces[0] = carry + pieces[0]
        carry = pieces.pop()
        for piece in pieces:
            yield piece if len(piece) <= MAX_LINE_NBYTES else None
        if len(carry) > MAX_LINE_NBYTES:
            dropping, carry = True, b""
    if dropping:
        yield None
    elif carry:
        yield carry
