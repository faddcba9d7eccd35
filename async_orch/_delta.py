"""What of an image differs from what the device has already, and in which few copies it goes there.

The cost of a copy is taken as ``overhead + nbytes``, in bytes: ``overhead`` is the number of bytes that the device
copies in the time that one more copy takes (`Backend.copy_overhead_nbytes`). So two differing ranges less than
``overhead`` apart are one copy, and all of the image goes in one copy where that is no dearer than the ranges.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from async_orch.abc import ByteArray, Fence
from async_orch.exceptions import OutOfDeviceMemory

__all__ = ["Delta", "Shadow"]

BLOCK_NBYTES: Final = 64
"""Images are compared in blocks of this size: eight 64-bit words, whose eight results are one word again."""

CHUNK_NBYTES: Final = 1 << 20
"""Bytes a numpy call, which lets go of the GIL: large enough for its fixed cost, and the results stay in the cache."""

MAX_COPIES: Final = 16
"""Copies a step at most: each costs the event loop a call of the driver. The smallest gaps are closed first."""

_Blocks = npt.NDArray[np.intp]
_NO_BLOCKS: Final[_Blocks] = np.empty(0, np.intp)


class Delta(NamedTuple):
    """The part of an image that has to be copied: pairs of first byte and number of bytes, in ascending order."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """Bytes that are copied."""
        return sum(nbytes for _, nbytes in self.ranges)

    def nbytes_below(self, end: int) -> int:
        """Those of them that lie before ``end``."""
        return sum(max(0, min(start + nbytes, end) - start) for start, nbytes in self.ranges)


class Shadow:
    """A copy, in host memory, of what a slot's device image holds.

    From `compare` on nothing is known of the device image, until the slot is free again and the fence behind the
    copies says that they went well: only then is the shadow what the device has. A step that failed or was removed on
    the way, or whose copy failed, leaves nothing known, and the next image is copied whole.
    """

    __slots__ = ("_bytes", "_fence", "_hoped_nbytes", "_known_nbytes", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        try:
            self._bytes: ByteArray = np.empty(nbytes, np.uint8)
        except MemoryError as exc:
            raise OutOfDeviceMemory(f"no host memory for the shadow of an image of {nbytes} B") from exc
        self._bytes.fill(0)  # touched, as every buffer of a ring is
        self._known_nbytes = 0
        self._hoped_nbytes = 0
        self._fence: Fence | None = None

    def compare(self, image: ByteArray, nbytes: int, overhead_nbytes: int) -> Delta:
        """Find what of the first ``nbytes`` of ``image`` to copy, and take them over.

        Callable from any thread, but one at a time, and only by who leased the slot.
        """
        known, self._known_nbytes = self._known_nbytes, 0
        self._fence = None
        self._hoped_nbytes = max(known, nbytes)
        shared = min(known, nbytes)
        end = shared // BLOCK_NBYTES * BLOCK_NBYTES
        blocks = self._differing_blocks(image, end)
        if end < shared and np.array_equal(self._bytes[end:shared], image[end:shared]):
            end = shared
        ranges = _merged(blocks, overhead_nbytes)
        if end < nbytes:
            # What lies behind the last whole block, or was not known before.
            self._bytes[end:nbytes] = image[end:nbytes]
            if ranges and end - sum(ranges[-1]) <= overhead_nbytes:
                end = ranges.pop()[0]
            ranges.append((end, nbytes - end))
        if sum(size for _, size in ranges) + overhead_nbytes * len(ranges) >= nbytes + overhead_nbytes:
            ranges = [(0, nbytes)] if nbytes else []
        return Delta(tuple(ranges))

    def _differing_blocks(self, image: ByteArray, nbytes: int) -> _Blocks:
        """Indices of the blocks within the first ``nbytes`` that differ; they are taken over."""
        mine, theirs = self._bytes[:nbytes].view(np.uint64), image[:nbytes].view(np.uint64)
        words = min(CHUNK_NBYTES, nbytes) // 8
        scratch = np.empty(words, np.bool_)
        found: list[_Blocks] = []
        for start in range(0, nbytes // 8, words or 1):
            end = min(start + words, nbytes // 8)
            differs = scratch[: end - start]
            np.not_equal(mine[start:end], theirs[start:end], out=differs)
            blocks = np.flatnonzero(differs.view(np.uint64))
            if blocks.size:
                found.append(blocks + start // 8)
                touched = slice(start + int(blocks[0]) * 8, start + (int(blocks[-1]) + 1) * 8)
                mine[touched] = theirs[touched]
        return np.concatenate(found) if found else _NO_BLOCKS

    def copied(self, fence: Fence) -> None:
        """The copies are enqueued, with ``fence`` behind them."""
        self._fence = fence

    def settle(self) -> None:
        """The slot is free: what was copied is known if the copies went well, and stays known if none were begun."""
        fence, self._fence = self._fence, None
        hoped, self._hoped_nbytes = self._hoped_nbytes, 0
        if fence is not None and fence.query() and fence.error is None:
            self._known_nbytes = hoped

    def forget(self) -> None:
        """Somebody else writes to the device image: nothing is known of it."""
        self._known_nbytes = self._hoped_nbytes = 0
        self._fence = None


def _merged(blocks: _Blocks, overhead_nbytes: int) -> list[tuple[int, int]]:
    """Ranges that hold the blocks, in bytes: no gap up to ``overhead_nbytes``, and fewer than `MAX_COPIES`."""
    if not blocks.size:
        return []
    gaps = blocks[1:] - blocks[:-1] - 1
    breaks = np.flatnonzero(gaps * BLOCK_NBYTES > overhead_nbytes)
    most = MAX_COPIES - 2  # one less than ranges, of which the caller may add one
    if breaks.size > most:
        breaks = np.sort(breaks[np.argpartition(gaps[breaks], -most)[-most:]])
    starts = np.concatenate((blocks[:1], blocks[breaks + 1])) * BLOCK_NBYTES
    ends = np.concatenate((blocks[breaks], blocks[-1:])) * BLOCK_NBYTES + BLOCK_NBYTES
    return list(zip(starts.tolist(), (ends - starts).tolist(), strict=True))
