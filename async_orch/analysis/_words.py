"""Text in a numpy array, eight bytes at a time: what stands at many places at once.

A word holds eight neighbouring bytes, the first of them lowest. Reading a million integers this way costs numpy some
passes over arrays, where Python would make a million objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_DIGITS", "MAX_STRING_NBYTES", "WORD_NBYTES", "Mask", "Places", "Text", "Texts", "Words"]

Places: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WORD_NBYTES: Final = 8
MAX_DIGITS: Final = 18
"""Digits of the longest integer that is read: any of them fits 64 bits with its sign."""
MAX_STRING_NBYTES: Final = 32
"""Bytes of the longest string that is looked at."""

_BEFORE_WORDS: Final = 3  # an integer is read in words up to its end, which may begin before the text
_AFTER_WORDS: Final = 2


def _each_byte(value: int) -> np.uint64:
    return np.uint64(value * 0x0101010101010101)


_ALL: Final = np.uint64(2**64 - 1)
_ONES: Final = _each_byte(1)
_HIGH_BITS: Final = _each_byte(0x80)
_ZEROS: Final = _each_byte(ord("0"))
_QUOTES: Final = _each_byte(ord('"'))
_BACKSLASHES: Final = _each_byte(ord("\\"))
_SPACES: Final = _each_byte(ord(" "))
_TEN_TO_HIGH_BIT: Final = _each_byte(0x80 - 10)
# Eight digits in three steps: to four numbers below 100, to two below 10,000, to one. Each product adds ten, a hundred
# or ten thousand times the lower half of a pair to the upper one, and the shift leaves that sum.
_STEPS: Final = tuple(
    (np.uint64(mask), np.uint64((scale << bits) + 1), np.uint64(bits))
    for mask, scale, bits in ((2**64 - 1, 10, 8), (0x00FF00FF00FF00FF, 100, 16), (0x0000FFFF0000FFFF, 10_000, 32))
)
_SCALES: Final = tuple(np.uint64(10 ** (WORD_NBYTES * number)) for number in range(3))
_STRING_WORDS: Final = np.arange(0, MAX_STRING_NBYTES, WORD_NBYTES)[:, None, None]
_64: Final = np.uint64(64)


def _first_bytes(counts: Places) -> Words:
    """Masks of the first `counts` bytes of a word, 0 to 8."""
    return ~(_ALL << (counts.astype(np.uint64) << np.uint64(3)))  # a shift by 64 gives 0


class Texts:
    """Texts to look for, in words. Between two of them is a word that nothing is expected of."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        counts = [-(-len(text) // WORD_NBYTES) + 1 for text in texts]
        self.of_word = np.repeat(np.arange(len(texts)), counts)
        self.offsets = _BEFORE_WORDS + np.concatenate([np.arange(count) for count in counts])[:, None]
        filled = b"".join(text.ljust(WORD_NBYTES * count, b"\0") for text, count in zip(texts, counts, strict=True))
        self.expected = np.frombuffer(filled, "<u8").astype(np.uint64)[:-1, None]
        sizes = np.array([len(text) for text in texts])[self.of_word]
        starts = WORD_NBYTES * (self.offsets[:, 0] - _BEFORE_WORDS)
        self.masks = _first_bytes(np.clip(sizes - starts, 0, WORD_NBYTES))[:-1, None]


class Text:
    """A text that is read at many places at once: methods take positions in it, in arrays of shape (places, lines).

    A position outside gives some bytes or other: whoever finds places in a text that may be anything need not look at
    each before reading.
    """

    def __init__(self) -> None:
        self.bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._words: Words = np.empty(0, np.uint64)
        self._memory = [self._words] * 3

    def load(self, text: bytes) -> None:
        """Take another text, in the same memory if it is large enough: fresh pages cost more than reading them."""
        words = _BEFORE_WORDS + len(text) // WORD_NBYTES + 1 + _AFTER_WORDS
        if words > len(self._words):
            self._words = np.zeros(words, "<u8")
        self.bytes = self._words[_BEFORE_WORDS:].view(np.uint8)[: len(text)]
        self.bytes[:] = np.frombuffer(text, np.uint8)

    def words(self, places: Places) -> Words:
        """The words that begin at `places`."""
        # Two aligned words and two shifts take numpy half as long as one word that is not aligned.
        index = places >> 3
        index += _BEFORE_WORDS
        bits = ((places & 7) << 3).view(np.uint64)
        words = self._words.take(index, mode="clip")
        words >>= bits
        index += 1
        upper = self._words.take(index, mode="clip")
        np.subtract(_64, bits, out=bits)
        upper <<= bits  # a shift by 64 gives 0
        words |= upper
        return words

    def equals(self, places: Places, texts: Texts) -> Mask:
        """The lines in which all of `texts` stand at `places`, shape (texts, lines)."""
        # Neighbouring words share an aligned word, and all words of a text are shifted alike.
        shape = len(texts.of_word), places.shape[1]
        index = self._scratch(0, shape).view(np.int64)
        np.take(places >> 3, texts.of_word, axis=0, out=index, mode="clip")
        index += texts.offsets
        aligned = np.take(self._words, index, out=self._scratch(1, shape), mode="clip")
        bits = self._scratch(0, (shape[0] - 1, shape[1]))
        np.take(((places & 7) << 3).view(np.uint64), texts.of_word[:-1], axis=0, out=bits, mode="clip")
        found = np.right_shift(aligned[:-1], bits, out=self._scratch(2, bits.shape))
        np.subtract(_64, bits, out=bits)
        upper = aligned[1:]
        upper <<= bits  # a shift by 64 gives 0
        found |= upper
        found ^= texts.expected
        found &= texts.masks
        same: Mask = np.bitwise_or.reduce(found, axis=0) == 0
        return same

    def _scratch(self, number: int, shape: tuple[int, int]) -> Words:
        """Memory that is used again: fresh pages cost more than what is done with them."""
        size = shape[0] * shape[1]
        if size > len(self._memory[number]):
            self._memory[number] = np.empty(size, np.uint64)
        return self._memory[number][:size].reshape(shape)

    def bytes_at(self, places: Places) -> npt.NDArray[np.uint8]:
        """The bytes at `places`."""
        return self.bytes.take(places, mode="clip")

    def integers(self, starts: Places, ends: Places) -> tuple[npt.NDArray[np.int64], Mask]:
        """The integers from `starts` to `ends`, and where there is one.

        It has 1 to `MAX_DIGITS` digits, and no 0 in front of others, which JSON does not allow.
        """
        widths = ends - starts
        good = (widths > 0) & (widths <= MAX_DIGITS)
        good &= (self.bytes_at(starts) != ord("0")) | (widths == 1)
        total, digits = self._eight_digits(ends - WORD_NBYTES, widths)
        good &= digits
        for number in (1, 2):
            longer = np.flatnonzero(widths.max(axis=1, initial=0) > WORD_NBYTES * number)
            if not len(longer):
                break
            counts = np.maximum(widths[longer] - WORD_NBYTES * number, 0)
            values, digits = self._eight_digits(ends[longer] - WORD_NBYTES * (number + 1), counts)
            values *= _SCALES[number]
            total[longer] += values
            good[longer] &= digits
        return total.view(np.int64), good

    def _eight_digits(self, places: Places, counts: Places) -> tuple[Words, Mask]:
        """The values of the last `counts` bytes, 8 at most, of the words at `places`, and where those are digits."""
        values = self.words(places)
        values ^= _ZEROS
        values &= ~_first_bytes(WORD_NBYTES - np.minimum(counts, WORD_NBYTES))
        # A byte of 10 or more gets its high bit, or has it.
        digits = ((values + _TEN_TO_HIGH_BIT) | values) & _HIGH_BITS == 0
        for mask, product, bits in _STEPS:
            values &= mask
            values *= product
            values >>= bits
        return values, digits

    def plain_strings(self, starts: Places, ends: Places) -> Mask:
        """Where the text from `starts` to `ends` needs no escape in a string.

        It has up to `MAX_STRING_NBYTES` bytes, all of them printable ASCII, and neither quote nor backslash.
        """
        widths = ends - starts
        first = _STRING_WORDS[: -(-int(widths.max(initial=0)) // WORD_NBYTES)]
        words = self.words(starts + first)
        # The high bit of a byte that is odd; those behind it may have it as well.
        odd = _zero_bytes(words ^ _QUOTES)
        odd |= _zero_bytes(words ^ _BACKSLASHES)
        odd |= (words - _SPACES) & ~words
        odd |= words
        odd &= _first_bytes(np.clip(widths - first, 0, WORD_NBYTES))
        odd &= _HIGH_BITS
        good: Mask = np.bitwise_or.reduce(odd, axis=0) == 0
        good &= (widths >= 0) & (widths <= MAX_STRING_NBYTES)
        return good


def _zero_bytes(words: Words) -> Words:
    """Words in which the first byte that was 0 has its high bit set, and none before it."""
    return (words - _ONES) & ~words
