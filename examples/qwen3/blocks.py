"""Blocks of the key-value cache: which are free, and when those of a finished sequence are free again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from async_orch import StepHandle
from examples.qwen3.paged_steps import DecodeBatch, PrefillBatch

__all__ = ["BlockAllocator", "OutOfBlocks", "Submitted"]


class OutOfBlocks(Exception):
    """Fewer blocks are free than were asked for."""


class Submitted(NamedTuple):
    """A step on its way: what was submitted, and its handle."""

    batch: DecodeBatch | PrefillBatch
    handle: StepHandle[Any]

    def left_device(self) -> bool:
        """Whether the device is done with the step, or will never get it.

        A handle that was cancelled settles while its step may still write to the cache, so the step's own fence
        decides; without one the step was not launched.
        """
        fence = self.batch.fence
        if fence is not None:
            return fence.query()
        return self.handle.status in ("failed", "cancelled")


class BlockAllocator:
    """The free blocks, as numbers 0 to ``total - 1``; for use on one thread.

    The block freed last is given out first: one that is reused too early shows at once.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._is_free = [True] * total
        self._waiting: list[tuple[list[Submitted], list[int]]] = []

    @property
    def available(self) -> int:
        """Blocks that `allocate` can give now."""
        self._take_back()
        return len(self._free)

    @property
    def waiting(self) -> int:
        """Blocks that are freed but may still be written to by a step on the device."""
        self._take_back()
        return sum(len(blocks) for _, blocks in self._waiting)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks, all or none. Raises `OutOfBlocks`."""
        if count > self.available:
            raise OutOfBlocks(
                f"{count} blocks of the key-value cache are needed, {len(self._free)} of {self.total} are free; wait "
                "for a sequence to end, or give the cache more blocks"
            )
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._is_free[block] = False
        return taken

    def free(self, blocks: Sequence[int], after: Iterable[Submitted] = ()) -> None:
        """Give blocks back; they are available once every step of ``after`` has left the device.

        ``after`` is the steps that use them and have not settled, or settled without a result. Steps leave the device
        in the order of submission, so the last of them is enough. Raises `ValueError` for a block that is not taken.
        """
        for block in blocks:
            if not 0 <= block < self.total or self._is_free[block]:
                raise ValueError(f"block {block} is freed, but nobody has it")
            self._is_free[block] = True
        self._waiting.append((list(after), list(blocks)))
        self._take_back()

    def device_at_rest(self) -> None:
        """Nothing is on the device any more: it was opened anew. Blocks that waited are free; taken ones stay taken."""
        for _, blocks in self._waiting:
            self._free += blocks
        self._waiting.clear()

    def _take_back(self) -> None:
        if not self._waiting:
            return
        still: list[tuple[list[Submitted], list[int]]] = []
        for steps, blocks in self._waiting:
            if on_device := [step for step in steps if not step.left_device()]:
                still.append((on_device, blocks))
            else:
                self._free += blocks
        self._waiting = still
