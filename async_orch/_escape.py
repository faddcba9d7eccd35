"""Does a value hold memory of the output view? (promise 2: a collect must return a copy)"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from async_orch.abc import ByteArray

__all__ = ["PLAIN", "escapes"]

PLAIN = frozenset({int, float, bool, str, bytes, bytearray, complex, type(None), np.int32, np.int64, np.float32})
"""Types whose objects cannot hold memory of a view."""

MAX_DEPTH = 4
_SEQUENCES = (list, tuple, set, frozenset)


def escapes(value: Any, view: ByteArray, depth: int = 0) -> bool:
    """Whether ``value`` shares memory with ``view``: arrays, memoryviews, and lists, tuples, dicts of them.

    Looks `MAX_DEPTH` containers deep; arrays hidden in objects of the caller's own classes are not seen.
    """
    kind = type(value)
    if kind in PLAIN:
        return False
    items: Iterable[Any]
    if kind is tuple or kind is list:
        items = value  # most often; asked first, since every step's output comes by here
    elif isinstance(value, np.ndarray):
        return bool(np.may_share_memory(value, view))
    elif isinstance(value, memoryview):
        return bool(np.may_share_memory(np.asarray(value), view))
    elif isinstance(value, _SEQUENCES):  # a union would be made anew in each call
        items = tuple(value)  # it may be iterable only once, and is looked at twice
    elif isinstance(value, Mapping):
        items = tuple(value.values())
    else:
        return False
    if depth >= MAX_DEPTH or PLAIN.issuperset(map(type, items)):
        return False
    return any(escapes(item, view, depth + 1) for item in items)
