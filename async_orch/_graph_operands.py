"""Tensors and scalars as rows of the operand pool, and the handles that stand for them while a graph is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from async_orch._graph_format import (
    CODE_OF_DTYPE,
    DTYPES,
    KIND_FLOAT,
    KIND_INT,
    KIND_TENSOR,
    MAX_NBYTES,
    MAX_NDIM,
    OPERAND,
    PACK_FLOAT,
    PACK_TENSOR,
)
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["STEP_HANDLES", "Number", "Operand", "OperandRows"]

STEP_HANDLES: Final = 1 << 32
"""Handles from here on are of one step: scalars and inputs in the image, which no kernel may write."""

Number = int | float | np.integer[Any] | np.floating[Any]

_ROW_NBYTES = OPERAND.itemsize
_ONES = (1, 1, 1, 1)


class Operand(int):
    """Handle of a tensor or scalar, given out by a `GraphBuilder` and passed to its `task`. Holds no memory."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Operand({int(self)})"


class OperandRows:
    """Preallocated rows: tensors that outlive a step fill them from the front, operands of one step from the back.

    A lasting operand's handle is its row. Handles of one step are numbered upwards over all steps and never given
    out twice, so that one kept too long is recognised. `scalars` are the step's numbers by type and value.
    """

    def __init__(self, regions: Mapping[str, int], n_rows: int) -> None:
        self._regions = {name: (index, nbytes) for index, (name, nbytes) in enumerate(regions.items(), 1)}
        self._rows = np.zeros(n_rows, OPERAND)
        self._plain = self._rows.view(f"V{_ROW_NBYTES}")  # the same rows, gathered faster without fields
        self._bytes = self._rows.view(np.uint8).data
        self._used = np.zeros(n_rows, np.bool_)
        self._renumbered = np.zeros(n_rows, np.int64)
        self._tensors: dict[tuple[str, int, tuple[int, ...], np.dtype[Any]], Operand] = {}
        self.scalars: dict[tuple[type, Number], Operand] = {}
        self._n_fixed = 0
        self._n_step = 0
        self._step_base = STEP_HANDLES

    def next_step(self) -> None:
        """End the handles of the step so far."""
        self._step_base += self._n_step
        self._n_step = 0
        self.scalars.clear()

    def tensor(self, region: str, offset: int, dims: tuple[int, ...], element: np.dtype[Any]) -> Operand:
        """The lasting handle of a tensor in a region; the same one for the same tensor."""
        known = self._tensors.get((region, offset, dims, element))
        if known is not None:
            return known
        if region not in self._regions:
            names = ", ".join(self._regions) or "none"
            raise GraphError(f"unknown region {region!r}; declared: {names} (per-step inputs go through put())")
        index, available = self._regions[region]
        code, nbytes = tensor_type(dims, element)
        if offset < 0 or offset % element.itemsize or offset + nbytes > available:
            raise GraphError(
                f"tensor {dims} of {element} at byte {offset} of region {region!r}: the offset must be a multiple of "
                f"{element.itemsize} and the {nbytes} bytes must end within {available}"
            )
        self._require_row()
        self._pack_tensor(self._n_fixed, code, index, offset, dims)
        operand = self._tensors[region, offset, dims, element] = Operand(self._n_fixed)
        self._n_fixed += 1
        return operand

    def step_tensor(self, code: int, offset: int, dims: tuple[int, ...]) -> Operand:
        """The handle, for this step, of a tensor in the image."""
        self._require_row()
        self._pack_tensor(self._last_row(), code, 0, offset, dims)
        return self._step_operand()

    def scalar(self, value: Number) -> Operand:
        """The handle, for this step, of a number; mostly the same one for the same number."""
        key = (value.__class__, value)
        known = self.scalars.get(key)
        if known is not None:
            return known
        number = value.item() if isinstance(value, np.generic) else value
        self._require_row()
        at = self._last_row() * _ROW_NBYTES
        if isinstance(number, float):
            PACK_FLOAT.pack_into(self._bytes, at, KIND_FLOAT, 0, 0, 0, number, *_ONES)
        elif isinstance(number, int) and -(1 << 63) <= number < 1 << 63:
            PACK_TENSOR.pack_into(self._bytes, at, KIND_INT, 0, 0, 0, number, *_ONES)
        else:
            raise GraphError(f"{value!r} is not an operand of this builder, an int of 64 bits or a float")
        operand = self._step_operand()
        if number or isinstance(number, int):  # 0.0 and -0.0 are equal as keys
            self.scalars[key] = operand
        return operand

    def resolve(
        self, handles: Sequence[int], refuse: Callable[[int], NoReturn]
    ) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Indices into the operand pool for `handles`, and the pool: the rows in use and no others.

        Calls `refuse` with the position of a handle that stands for nothing.
        """
        n_rows = len(self._rows)
        # struct reads int subclasses at a tenth of numpy's time
        given = np.frombuffer(pack(f"<{len(handles)}q", *handles), np.int64)
        rows = np.where(given < self._n_fixed, given, self._step_base + (n_rows - 1) - given)
        used = self._used
        used.fill(False)
        in_range = not rows.size or (rows.min() >= 0 and rows.max() < n_rows)
        if in_range:
            used[rows] = True
        if not in_range or used[self._n_fixed : n_rows - self._n_step].any():
            known = ((rows >= 0) & (rows < self._n_fixed)) | ((rows >= n_rows - self._n_step) & (rows < n_rows))
            refuse(int(known.argmin()))
        rows_used = np.flatnonzero(used)
        self._renumbered[rows_used] = np.arange(rows_used.size)
        return self._renumbered[rows], self._plain[rows_used].view(OPERAND)

    def _pack_tensor(self, row: int, code: int, region: int, offset: int, dims: tuple[int, ...]) -> None:
        ndim = len(dims)
        PACK_TENSOR.pack_into(
            self._bytes, row * _ROW_NBYTES, KIND_TENSOR, code, region, ndim, offset, *dims, *_ONES[ndim:]
        )

    def _require_row(self) -> None:
        used = self._n_fixed + self._n_step
        if used >= len(self._rows):
            raise GraphOverflow(
                f"operands: {used} used ({self._n_fixed} tensors, {self._n_step} inputs and scalars of the step), "
                f"{len(self._rows)} available, 1 more requested; raise max_operands"
            )

    def _last_row(self) -> int:
        return len(self._rows) - 1 - self._n_step

    def _step_operand(self) -> Operand:
        operand = Operand(self._step_base + self._n_step)
        self._n_step += 1
        return operand


def tensor_type(dims: tuple[int, ...], dtype: DTypeLike) -> tuple[int, int]:
    """Dtype code and bytes of a contiguous tensor; `GraphError` if the format cannot express it."""
    element = np.dtype(dtype)
    code = CODE_OF_DTYPE.get(element)
    if code is None:
        raise GraphError(f"dtype {element} is not supported; use one of {', '.join(str(d) for d in DTYPES)}")
    if len(dims) > MAX_NDIM:
        raise GraphError(f"shape {dims} has {len(dims)} dimensions; at most {MAX_NDIM} are supported")
    nbytes = extent = element.itemsize
    for dim in dims:
        if not 0 <= dim < 1 << 31:
            raise GraphError(f"shape {dims}: each dimension must lie in 0 to {(1 << 31) - 1}")
        nbytes *= dim
        extent *= max(dim, 1)
    if extent > MAX_NBYTES:
        raise GraphError(f"shape {dims} of {element} exceeds {MAX_NBYTES} bytes")
    return code, nbytes
