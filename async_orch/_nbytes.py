"""Numbers of bytes as hooks return them."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["as_nbytes"]


def as_nbytes(value: Any) -> int:
    """A hook's number of bytes. Raises `TypeError` for what is no integer, and for True and False."""
    if value is True or value is False:
        raise TypeError(f"returned {value}: return the bytes used, or None for all")
    return operator.index(value)
