"""A growing pool of integers: short pieces as they come, long ones as arrays."""

from __future__ import annotations

from struct import pack
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["IntPool"]


class IntPool:
    """Integers in order. `tail` takes single ones; `extend` a whole array behind everything so far.

    `flushed` counts those before the tail, so ``flushed + len(tail)`` are all.
    """

    __slots__ = ("_arrays", "_code", "_dtype", "flushed", "tail")

    def __init__(self, code: Literal["I", "i", "q"]) -> None:
        self._code = code
        self._dtype = np.dtype(f"<{code}")
        self._arrays: list[NDArray[np.integer]] = []
        self.tail: list[int] = []
        self.flushed = 0

    @property
    def total(self) -> int:
        """How many there are."""
        return self.flushed + len(self.tail)

    def clear(self) -> None:
        self._arrays.clear()
        self.tail.clear()
        self.flushed = 0

    def extend(self, numbers: NDArray[np.integer]) -> None:
        """Append an array, which must not change afterwards."""
        if self.tail:
            self._arrays.append(self._packed())
            self.flushed += len(self.tail)
            self.tail.clear()
        self._arrays.append(numbers)
        self.flushed += numbers.size

    def array(self) -> NDArray[np.integer]:
        """All of them; not to be changed."""
        if not self._arrays:
            return self._packed()
        return np.concatenate([*self._arrays, self._packed()]).astype(self._dtype, copy=False)

    def _packed(self) -> NDArray[np.integer]:
        # struct takes half of numpy's time for a list, and a tenth for one of int subclasses
        return np.frombuffer(pack(f"<{len(self.tail)}{self._code}", *self.tail), self._dtype)
