"""Records one at a time, in the order of the log: for code that selects among them, or looks at each."""

from __future__ import annotations

from collections.abc import Iterator

from async_orch.analysis._lines import MAX_LINE_NBYTES, LineSplitter
from async_orch.analysis._pieces import PieceReader, Record
from async_orch.analysis._reading import Reading
from async_orch.analysis._sources import ByteSource, Source, opened

__all__ = ["LogReader", "read"]

_CHUNK_NBYTES = 1 << 18


class LogReader:
    """Iterates over the records of one or more logs; `reading` tells at any time what was read and what was skipped.

    It reads as it is iterated, holds one chunk of a file at a time, and can be iterated once.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        self._pieces = PieceReader()
        self._records = self._iterate()

    @property
    def reading(self) -> Reading:
        """What was read and skipped up to now."""
        return self._pieces.reading()

    def __iter__(self) -> Iterator[Record]:
        return self._records

    def _iterate(self) -> Iterator[Record]:
        for source in self._sources:
            with opened(source, self._pieces.damaged.append) as stream:
                yield from self._read(stream)

    def _read(self, stream: ByteSource) -> Iterator[Record]:
        pieces, splitter = self._pieces, LineSplitter()
        first = True
        ended = False
        while not ended:
            data = stream.read(_CHUNK_NBYTES)
            ended = not data
            for block in splitter.end() if ended else splitter.feed(data):
                lines: list[bytes | None] = [None]
                if block is not None:
                    lines = [*block.split(b"\n")]
                    if not ended:
                        del lines[-1]  # what follows the last line end: nothing
                for line in lines:
                    pieces.lines += 1
                    start, first = first, False
                    if line is None or len(line) > MAX_LINE_NBYTES:
                        pieces.skip("too_long")
                        continue
                    yield from pieces.read_line(pieces.look_at_start(line) if start else line, open_end=ended)


def read(*sources: Source) -> LogReader:
    """Read one or more logs by path, or from anything with ``read(size) -> bytes``; gzip and zstd as well as text.

    A path is opened when iteration gets there. Raises `OSError` while iterating if a file cannot be opened or read;
    what a file holds never raises.
    """
    return LogReader(*sources)
