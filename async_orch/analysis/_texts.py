"""Texts that are looked for at many places at once, cut into pieces of a few sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_TEXT_NBYTES", "PIECE_NBYTES", "Pieces", "Texts"]

MAX_TEXT_NBYTES: Final = 1 << 14
"""Bytes of the longest text that is looked for."""
_SIZES: Final = (16, 32, 64)  # few, so that each takes part in few calls of numpy
PIECE_NBYTES: Final = _SIZES[-1]
"""Bytes of the longest piece."""
_LEAST_LINES: Final = 1024


class Pieces:
    """Pieces of ``nbytes`` each: ``offsets``, shape (pieces, 1), in the texts of the numbers ``of_text``."""

    def __init__(self, nbytes: int, found: Sequence[tuple[int, int, bytes]]) -> None:
        self.nbytes = nbytes
        self.of_text = np.array([number for number, _, _ in found], np.intp)
        self.offsets = np.array([[offset] for _, offset, _ in found], np.int64)
        self._expected = _words([piece.ljust(nbytes, b"\0") for *_, piece in found])
        self._masks = _words([(b"\xff" * len(piece)).ljust(nbytes, b"\0") for *_, piece in found])
        self._repeat(_LEAST_LINES)

    def _repeat(self, lines: int) -> None:
        self._lines = lines
        self._all_expected, self._all_masks = (np.tile(words, (1, lines)) for words in (self._expected, self._masks))

    def expected(self, lines: int) -> npt.NDArray[np.uint64]:
        """The words of the pieces, zeros behind them, again for each line: shape (pieces, lines x words)."""
        if lines > self._lines:
            self._repeat(lines)
        return self._all_expected[:, : lines * self._expected.shape[1]]

    def masks(self, lines: int) -> npt.NDArray[np.uint64]:
        """Ones where those words hold text, in the same shape."""
        if lines > self._lines:
            self._repeat(lines)
        return self._all_masks[:, : lines * self._masks.shape[1]]


class Texts:
    """Texts to look for, as ``pieces`` of each size that occurs."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        found: dict[int, list[tuple[int, int, bytes]]] = {}
        for number, text in enumerate(texts):
            for offset in range(0, len(text), PIECE_NBYTES):
                piece = text[offset : offset + PIECE_NBYTES]
                size = next(size for size in _SIZES if size >= len(piece))
                found.setdefault(size, []).append((number, offset, piece))
        self.pieces = [Pieces(size, some) for size, some in sorted(found.items())]


def _words(pieces: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    return np.frombuffer(b"".join(pieces), "<u8").astype(np.uint64).reshape(len(pieces), -1)
