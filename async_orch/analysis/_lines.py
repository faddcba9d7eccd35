"""Physical lines of a byte stream that arrives in pieces, in bounded memory whatever the stream holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

__all__ = ["MAX_LINE_NBYTES", "LineSplitter"]

MAX_LINE_NBYTES: Final = 1 << 20
"""A longer line is no log line; it is skipped as a whole without being held."""


class LineSplitter:
    """Turns pieces of a stream into blocks of whole lines.

    A block ends with a line end, apart from the last one of a stream; the first line is a block of its own. None
    stands for a line longer than `MAX_LINE_NBYTES` that did not fit what is held; a block may hold lines that are too
    long as well.
    """

    def __init__(self) -> None:
        self._carry: list[bytes] = []
        self._carried = 0
        self._dropping = False
        self._at_start = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held of a line that is not complete."""
        return not self._carry and not self._dropping

    def feed(self, data: bytes) -> Iterator[bytes | None]:
        """Yield what `data` completes: None for a line too long to hold, a stream's first line, a block of others."""
        if self._dropping:
            end = data.find(b"\n")
            if end < 0:
                return
            self._dropping = self._at_start = False
            yield None
            data = data[end + 1 :]
        last = data.rfind(b"\n")
        if last < 0:
            self._keep(data)
        else:
            block = b"".join((*self._carry, memoryview(data)[: last + 1]))
            self._carry, self._carried = [], 0
            self._keep(data[last + 1 :])
            if self._at_start:
                self._at_start = False
                end = block.index(b"\n") + 1
                yield block[:end]
                block = block[end:]
            if block:
                yield block

    def end(self) -> Iterator[bytes | None]:
        """Yield what is left: a last line without a line end. The next piece starts another stream."""
        rest, dropping = b"".join(self._carry), self._dropping
        self._carry, self._carried, self._dropping, self._at_start = [], 0, False, True
        if dropping:
            yield None
        elif rest:
            yield rest

    def _keep(self, data: bytes) -> None:
        if data:
            self._carry.append(data)
            self._carried += len(data)
        if self._carried > MAX_LINE_NBYTES:
            self._carry, self._carried, self._dropping = [], 0, True
