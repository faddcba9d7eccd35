"""Where logs come from: files, pipes and compressed streams, told apart by their first bytes."""

from __future__ import annotations

import contextlib
import importlib
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

__all__ = ["COMPRESSED", "ByteSource", "Source", "chunks", "opened"]

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
COMPRESSED: Final = (_GZIP, _ZSTD)
"""How compressed files begin."""

_PIECE_NBYTES: Final = 1 << 14  # of compressed data; what it holds is many times that


class ByteSource(Protocol):
    """What is read from: a file opened in binary mode, a pipe, `io.BytesIO`."""

    def read(self, size: int, /) -> bytes: ...


Source = str | os.PathLike[str] | ByteSource
"""A path, or anything with ``read(size) -> bytes``."""


@contextlib.contextmanager
def opened(source: Source, damaged: Callable[[str], None]) -> Iterator[ByteSource]:
    """The plain bytes of a source; gzip and zstd are decompressed on the way, in bounded memory.

    `damaged` is told in words where compressed data breaks off or is corrupt; what came before it is still given, of
    corrupt zstd that of the pieces of 16 KiB before it.
    Raises `OSError` if a path cannot be opened. Reading may raise it too.
    """
    with contextlib.ExitStack() as stack:
        if isinstance(source, str | os.PathLike):
            raw: ByteSource = stack.enter_context(Path(source).open("rb"))
        else:
            raw = source
        head = raw.read(4)
        while 0 < len(head) < 4 and (more := raw.read(4 - len(head))):
            head += more
        whole = _Prefixed(head, raw)
        if head.startswith(_GZIP):
            yield _gzip(whole, damaged)
        elif head == _ZSTD:
            yield _zstd(whole, damaged)
        else:
            yield whole


def chunks(stream: ByteSource, nbytes: int) -> Iterator[bytes]:
    """The bytes of a stream in chunks of at least `nbytes`, apart from the last: compressed data comes in small pieces.

    Reading may raise `OSError`; what came before it is given first.
    """
    pieces: list[bytes] = []
    held = 0
    try:
        while piece := stream.read(nbytes):
            pieces.append(piece)
            held += len(piece)
            if held >= nbytes:
                yield b"".join(pieces)
                pieces, held = [], 0
    except OSError:
        yield b"".join(pieces)
        raise
    if pieces:
        yield b"".join(pieces)


class _Prefixed:
    """A source whose first bytes were read already."""

    def __init__(self, head: bytes, rest: ByteSource) -> None:
        self._head = head
        self._rest = rest

    def read(self, size: int = -1, /) -> bytes:
        if self._head:
            head, self._head = self._head[:size] if size >= 0 else self._head, b""
            return head
        return self._rest.read(size)


class _Members:
    """Decompresses a stream of one or more compressed members, one after the other.

    `make` gives the decompressor of a member, `inflate` lets it take a piece: the text, and what of the piece is left.
    `copy` copies a decompressor as it is, or gives None.
    """

    def __init__(
        self,
        name: str,
        raw: ByteSource,
        make: Callable[[], Any],
        inflate: Callable[[Any, bytes, int], tuple[bytes, bytes]],
        error: type[Exception],
        damaged: Callable[[str], None],
        copy: Callable[[Any], Any] = lambda member: None,
    ) -> None:
        self._name = name
        self._raw = raw
        self._make = make
        self._inflate = inflate
        self._error = error
        self._damaged = damaged
        self._copy = copy
        self._member = make()
        self._pending = b""
        self._given = 0
        self._over = False

    def read(self, size: int, /) -> bytes:
        while not self._over:
            if self._member.eof:
                self._pending = self._member.unused_data.lstrip(b"\x00") or self._raw.read(_PIECE_NBYTES)
                if not self._pending:
                    break
                self._member = self._make()
            elif not self._pending:
                self._pending = self._raw.read(_PIECE_NBYTES)
                if not self._pending:
                    self._end(f"the {self._name} data breaks off after {self._given} bytes of text")
                    break
            before = self._copy(self._member)
            try:
                data, self._pending = self._inflate(self._member, self._pending, size)
            except self._error as error:
                data = self._until_damage(before)
                self._end(f"the {self._name} data is corrupt after {self._given + len(data)} bytes of text ({error})")
            if data:
                self._given += len(data)
                return data
        return b""

    def _until_damage(self, member: Any) -> bytes:
        """What the pending piece holds before it is corrupt, if the decompressor could be copied."""
        found = bytearray()
        if member is not None:
            with contextlib.suppress(self._error):  # this is where it ends
                for position in range(len(self._pending)):
                    found += self._inflate(member, self._pending[position : position + 1], 0)[0]
        return bytes(found)

    def _end(self, text: str) -> None:
        self._over = True
        self._damaged(text)


def _gzip(raw: ByteSource, damaged: Callable[[str], None]) -> ByteSource:
    def inflate(member: Any, piece: bytes, size: int) -> tuple[bytes, bytes]:
        return member.decompress(piece, size), member.unconsumed_tail

    # A copy costs little beside what a piece does, and one that was given corrupt data keeps what was before it.
    return _Members(
        "gzip", raw, lambda: zlib.decompressobj(31), inflate, zlib.error, damaged, lambda member: member.copy()
    )


def _zstd(raw: ByteSource, damaged: Callable[[str], None]) -> ByteSource:
    library: Any
    make: Callable[[], Any]
    try:
        library = importlib.import_module("compression.zstd")  # Python 3.14
        make = library.ZstdDecompressor
    except ImportError:
        try:
            library = importlib.import_module("zstandard")
        except ImportError:
            raise OSError(
                0, "it is zstd-compressed and no zstd library is installed, see `pip install async-orch[analysis]`"
            ) from None

        def make() -> Any:
            return library.ZstdDecompressor().decompressobj()

    def inflate(member: Any, piece: bytes, _size: int) -> tuple[bytes, bytes]:
        return member.decompress(piece), b""

    return _Members("zstd", raw, make, inflate, library.ZstdError, damaged)
