"""Shapes, offsets and task ids as callers give them, and how a wrong value is shown in one short line."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, NoReturn

import numpy as np

from async_orch.exceptions import GraphError

__all__ = ["as_dims", "as_element", "as_offset", "as_task_ids", "refuse_after", "shown"]

_MAX_CHARACTERS = 100
_MAX_BITS = 256


class _Short(reprlib.Repr):
    """Containers by their first items, long numbers by their size: writing out many digits is slow, or refused."""

    def repr_int(self, x: int, level: int) -> str:
        """Of a number, its digits or how many bits it has."""
        del level
        return repr(x) if x.bit_length() <= _MAX_BITS else f"<int of {x.bit_length()} bits>"


_short = _Short()
_short.maxstring = _short.maxother = _MAX_CHARACTERS


def shown(value: object) -> str:
    """A value for a message: one line, of a hundred characters or a few more."""
    text = " ".join(_short.repr(value).split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}..."


def as_dims(shape: Iterable[Any], what: str) -> tuple[int, ...]:
    """A shape as ints; `GraphError`, beginning with `what`, for anything but a sequence of whole numbers."""
    try:
        return tuple(map(index, shape))
    except TypeError:
        raise GraphError(f"{what}: shape {shown(shape)} is not a sequence of whole numbers") from None


def as_element(dtype: Any, what: str) -> np.dtype[Any]:
    """A dtype; `GraphError`, beginning with `what`, for what numpy does not know as one."""
    try:
        element: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise GraphError(f"{what}: dtype {shown(dtype)} is not a dtype of numpy") from None
    return element


def as_offset(offset: Any, what: str) -> int:
    """A byte offset as an int; `GraphError`, beginning with `what`, for anything but a whole number."""
    try:
        return index(offset)
    except TypeError:
        raise GraphError(f"{what}: offset {shown(offset)} is not a whole number of bytes") from None


def as_task_ids(after: int | Sequence[int], before: int, where: str) -> list[int]:
    """The tasks that an ``after`` names; `GraphError`, beginning with `where`, for what is no id below `before`."""
    try:
        ids = [after] if isinstance(after, int) else list(map(index, after))
    except TypeError:
        refuse_after(where, after)
    for task in ids:
        if not 0 <= task < before:
            raise GraphError(f"{where}: after={shown(task)} is not an earlier task's id")
    return ids


def refuse_after(where: str, after: object) -> NoReturn:
    """Raise `GraphError` for an ``after`` that is neither a task's id nor a sequence of ids."""
    raise GraphError(f"{where}: after={shown(after)} is neither an earlier task's id nor a sequence of such ids")
