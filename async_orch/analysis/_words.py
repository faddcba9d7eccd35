"""Text in a numpy array, eight bytes at a time: what stands at many places at once.

A word holds eight neighbouring bytes, the first of them lowest. Reading a million integers this way costs numpy some
passes over arrays, where Python would make a million objects.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from async_orch.analysis._texts import MAX_TEXT_NBYTES, PIECE_NBYTES, Texts

__all__ = ["MAX_DIGITS", "MAX_STRING_NBYTES", "Mask", "Places", "Text", "Words"]

Places: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_DIGITS: Final = 18
"""Digits of the longest integer that is read: any of them fits 64 bits with its sign."""
MAX_STRING_NBYTES: Final = 32
"""Bytes of the longest string that is looked at."""

_WORD_NBYTES: Final = 8
# A place may be so far behind the text, and the piece from there on is looked at whole.
_AFTER_WORDS: Final = (MAX_TEXT_NBYTES + PIECE_NBYTES) // _WORD_NBYTES + 2


def _each_byte(value: int) -> np.uint64:
    return np.uint64(value * 0x0101010101010101)


_ONES: Final = _each_byte(1)
_HIGH_BITS: Final = _each_byte(0x80)
_ZEROS: Final = _each_byte(ord("0"))
_QUOTES: Final = _each_byte(ord('"'))
_BACKSLASHES: Final = _each_byte(ord("\\"))
_SPACES: Final = _each_byte(ord(" "))
_TEN_TO_HIGH_BIT: Final = _each_byte(0x80 - 10)
# Eight digits in three steps: to four numbers below 100, to two below 10,000, to one. Each product adds ten, a hundred
# or ten thousand times the lower half of a pair to the upper one; shift and mask leave those sums.
_STEPS: Final = tuple(
    (np.uint64((scale << bits) + 1), np.uint64(bits), np.uint64(mask))
    for scale, bits, mask in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10_000, 32, 0xFFFFFFFF))
)
_SCALES: Final = tuple(np.uint64(10 ** (_WORD_NBYTES * number)) for number in range(3))
_STRING_WORDS: Final = np.arange(0, MAX_STRING_NBYTES, _WORD_NBYTES)[:, None, None]
_WORD_BITS: Final = np.uint64(64)
_NULL: Final = np.uint64(int.from_bytes(b"null", "little"))
_NULL_MASK: Final = np.uint64(0xFFFFFFFF)


class Text:
    """A text that is read at many places at once: methods take positions in it, in arrays of shape (places, lines).

    A position up to `MAX_TEXT_NBYTES` outside gives some bytes or other: whoever finds places in a text that may be
    anything need not look at each before reading.
    """

    def __init__(self) -> None:
        self.bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._words: Words = np.empty(0, np.uint64)
        self.zero = 0, 0  # a place behind the text where a 0 stands: its byte, and the end

    def room(self, nbytes: int) -> memoryview:
        """Memory for another text, the same if it is large enough; `hold` says how much of it is one."""
        words = nbytes // _WORD_NBYTES + 1 + _AFTER_WORDS
        if words > len(self._words):
            self._words = np.zeros(words, "<u8")
            self._words.view(np.uint8)[-1] = ord("0")
            self.zero = _WORD_NBYTES * words - 1, _WORD_NBYTES * words
        self.bytes = self._words.view(np.uint8)[:nbytes]
        return self.bytes.data

    def hold(self, nbytes: int) -> None:
        """The text is the first `nbytes` of the room."""
        self.bytes = self.bytes[:nbytes]

    def load(self, text: bytes) -> None:
        """Take another text."""
        self.room(len(text))[:] = text

    def places_of(self, codes: tuple[int, ...]) -> Places:
        """Where a byte is one of `codes`, in order."""
        found = self.bytes == codes[0]
        for code in codes[1:]:
            found |= self.bytes == code
        return np.flatnonzero(found)

    def bytes_at(self, places: Places) -> npt.NDArray[np.uint8]:
        """The bytes at `places`."""
        return self.bytes.take(places, mode="clip")

    def equals(self, places: Places, texts: Texts) -> Mask:
        """Of each line, whether all of `texts` stand at its `places`, which have the shape (texts, lines)."""
        lines = places.shape[1]
        differing = np.zeros(lines, np.uint64)
        for pieces in texts.pieces:
            words = pieces.nbytes // _WORD_NBYTES
            at = places[pieces.of_text]
            at += pieces.offsets
            # Copying whole pieces, wherever they begin, takes numpy half as long as gathering aligned words.
            found = self._pieces(pieces.nbytes)[at].view(np.uint64)
            found ^= pieces.expected(lines)
            found &= pieces.masks(lines)
            differing |= np.bitwise_or.reduce(np.bitwise_or.reduce(found, axis=0).reshape(lines, words), axis=1)
        same: Mask = differing == 0
        return same

    def _pieces(self, nbytes: int) -> npt.NDArray[np.void]:
        """The text as pieces of so many bytes, one from each place on; places before it give some from the end."""
        return np.ndarray((self._words.nbytes - nbytes,), f"V{nbytes}", self._words.data, strides=(1,))

    def integers(self, starts: Places, ends: Places) -> tuple[npt.NDArray[np.int64], Mask]:
        """The integers from `starts` to `ends`, and of each line, whether all of its are integers.

        It has 1 to `MAX_DIGITS` digits, and no 0 in front of others, which JSON does not allow.
        """
        widths = ends - starts
        less = widths - 1
        fits = less.view(np.uint64).max(axis=0) < MAX_DIGITS  # a negative one is a large one without its sign
        fits &= ~np.any((self.bytes_at(starts) == ord("0")) & (less != 0), axis=0)
        total = self._eight_digits(ends, widths, 0, fits)
        longest = widths.max(axis=1, initial=0)
        for number in (1, 2):
            longer = np.flatnonzero(longest > _WORD_NBYTES * number)
            if not len(longer):
                break
            values = self._eight_digits(ends[longer], widths[longer], number, fits)
            values *= _SCALES[number]
            total[longer] += values
        return total.view(np.int64), fits

    def are_null(self, starts: Places, ends: Places) -> Mask:
        """Where the text from `starts` to `ends` is ``null``."""
        null: Mask = self._words_at(starts) & _NULL_MASK == _NULL
        null &= ends - starts == len("null")
        return null

    def _eight_digits(self, ends: Places, widths: Places, number: int, fits: Mask) -> Words:
        """The values of up to eight digits: those in the word `number`, from 0, before `ends`.

        Clears `fits` where one is no digit.
        """
        nbytes = _WORD_NBYTES * number
        values = self._words_at(ends - (nbytes + _WORD_NBYTES))
        values ^= _ZEROS
        # Bits of the word that are not the integer's, 0 to 64.
        unused = np.maximum(8 * (nbytes + _WORD_NBYTES) - 8 * widths, 0)
        values >>= unused.view(np.uint64)
        values <<= unused.view(np.uint64)
        # A byte of 10 or more gets its high bit, or has it.
        odd = values + _TEN_TO_HIGH_BIT
        odd |= values
        fits &= np.bitwise_or.reduce(odd, axis=0) & _HIGH_BITS == 0
        for product, bits, mask in _STEPS:
            values *= product
            values >>= bits
            values &= mask
        return values

    def _words_at(self, places: Places) -> Words:
        """The words that begin at `places`; the bytes before the text are any.

        Those are looked at where an integer of few digits ends close to the text's start.
        """
        # Two aligned words and two shifts take numpy half as long as one word that is not aligned.
        index = places >> 3
        words = self._words.take(index, mode="clip")
        index += 1
        upper = self._words.take(index, mode="clip")
        bits = ((places & 7) << 3).view(np.uint64)
        words >>= bits
        upper <<= _WORD_BITS - bits  # a shift by 64 gives 0
        words |= upper
        return words

    def plain_strings(self, starts: Places, ends: Places) -> Mask:
        """Where the text from `starts` to `ends` needs no escape in a string.

        It has up to `MAX_STRING_NBYTES` bytes, all of them ASCII from the space on, and neither quote nor backslash.
        """
        widths = ends - starts
        first = _STRING_WORDS[: -(-int(widths.max(initial=0)) // _WORD_NBYTES)]
        words = self._words_at(starts + first)
        # The high bit of a byte that is odd: borrowed where a byte is too small, or its own. Those behind it may have
        # it as well.
        odd = (words ^ _QUOTES) - _ONES
        odd |= (words ^ _BACKSLASHES) - _ONES
        odd |= words - _SPACES
        odd |= words
        odd &= _HIGH_BITS
        # What is behind the string's end is shifted out: 0 to 64 bits of each word.
        odd <<= np.clip(64 - 8 * (widths - first), 0, 64).astype(np.uint64)
        good: Mask = np.bitwise_or.reduce(odd, axis=0) == 0
        good &= (widths >= 0) & (widths <= MAX_STRING_NBYTES)
        return good
