"""How much memory a model needs, known before any of it is allocated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from async_orch import SlotSpec
from examples.qwen3.config import ModelError
from examples.qwen3.weights import PART_NBYTES, Placement

__all__ = ["MemoryEstimate", "estimate", "readable"]


def readable(nbytes: int) -> str:
    """A size for people: 3.7 MiB, 15.3 GiB."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by purpose. Device and host memory together: on ``host`` and ``sim`` they are the same.

    Attributes
    ----------
    weights_nbytes:
        The tensors as float32, and the rotary tables.
    cache_nbytes:
        The key-value cache.
    rings_nbytes:
        All slots, their pinned outputs, and the staging buffers.
    loading_nbytes:
        What is needed only while the weights are loaded.
    """

    weights_nbytes: int
    cache_nbytes: int
    rings_nbytes: int
    loading_nbytes: int

    @property
    def total_nbytes(self) -> int:
        """All of it."""
        return self.weights_nbytes + self.cache_nbytes + self.rings_nbytes + self.loading_nbytes

    def __str__(self) -> str:
        return (
            f"{readable(self.total_nbytes)}: weights {readable(self.weights_nbytes)}, key-value cache "
            f"{readable(self.cache_nbytes)}, slots and staging {readable(self.rings_nbytes)}, loading "
            f"{readable(self.loading_nbytes)}"
        )

    def check(self, free_nbytes: int | None, remedy: str) -> None:
        """Raise `ModelError` with what is needed, what is free and ``remedy`` if it does not fit.

        ``free_nbytes`` is what `Backend.free_nbytes` said; where that is None, nothing is known and nothing refused.
        """
        if free_nbytes is None or self.total_nbytes <= free_nbytes:
            return
        if self.weights_nbytes + self.loading_nbytes > free_nbytes:
            remedy = "take a smaller model: its weights alone do not fit"
        raise ModelError(f"the model needs {self}; {readable(free_nbytes)} are free; {remedy}")


def estimate(
    *,
    weights: Mapping[str, Placement],
    weights_nbytes: int,
    cache_nbytes: int,
    slot: SlotSpec,
    slots: int,
    staging: int,
) -> MemoryEstimate:
    """The estimate for rings of ``slots`` slots and ``staging`` staging buffers of the sizes of ``slot``.

    Weights are loaded in parts, each of which lies in memory up to three times: as it was read, as float32 and in the
    buffer that is copied from.
    """
    device = slot.image_nbytes + slot.workspace_nbytes + slot.feed_nbytes + slot.output_nbytes
    pinned = slot.feed_nbytes + slot.output_nbytes
    rings = slots * (device + pinned) + staging * slot.image_nbytes
    part = min(PART_NBYTES, max(spot.nbytes for spot in weights.values()))
    return MemoryEstimate(weights_nbytes, cache_nbytes, rings, 3 * part)
