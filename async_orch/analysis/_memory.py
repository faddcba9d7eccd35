"""Memory for arrays that come and go."""

from __future__ import annotations

from typing import Final

import numpy as np

__all__ = ["keep_freed"]

_NBYTES: Final = 1 << 24  # more than what is made of a block of lines, and dropped, takes together


def keep_freed() -> None:
    """Let the C library keep what is freed for what is allocated next, where it learns from what it sees.

    glibc gives memory back to the kernel at once if it is larger than any that was freed before (mallopt(3): the
    threshold for mmap is dynamic). Arrays of a megabyte would come with fresh pages each time, and first touches of
    those cost more than what is done with the arrays.
    """
    freed = np.empty(_NBYTES, np.uint8)
    del freed
