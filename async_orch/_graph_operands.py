"""Tensors and scalars as rows of the operand pool, and the handles that stand for them while a graph is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import pack
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from async_orch._graph_arguments import shown
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

__all__ = ["HOST_MEMORY", "STEP_HANDLES", "Number", "Operand", "OperandRows"]

STEP_HANDLES: Final = 1 << 52
"""Handles from here on are of one step: scalars and inputs in the image, which no kernel may write."""

_MAX_ROWS: Final = 1 << 24

Number = int | float | np.integer[Any] | np.floating[Any]

HOST_MEMORY: Final = (
    "memory that no handle stands for, such as an array on the host; pass a tensor() of a region of the device, or "
    "put() the array in the image"
)
Ints = NDArray[np.int64]

_ROW_NBYTES = OPERAND.itemsize
_ONES = (1, 1, 1, 1)


class Operand(int):
    """Handle of a tensor or scalar, given out by a `GraphBuilder` and passed to its `task`. Holds no memory."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Operand({int(self)})"


class OperandRows:
    """Preallocated rows: tensors that outlive a step fill them from the front, operands of one step from the back.

    A lasting operand's handle is its row behind a base of this object's own, so that another builder's is recognised.
    Handles of one step are numbered upwards over all steps and never given out twice, so that one kept too long is.
    `scalars` are the step's numbers by type and value, `signatures` a small integer for each handle's kind, dtype,
    shape and region.
    """

    def __init__(self, regions: Mapping[str, int], n_rows: int) -> None:
        if not 1 <= n_rows <= _MAX_ROWS:
            raise GraphError(f"max_operands is {n_rows}; it must lie in 1 to {_MAX_ROWS}")
        self._regions = {name: (index, nbytes) for index, (name, nbytes) in enumerate(regions.items(), 1)}
        self.region_names = ("", *regions)
        self._rows = np.zeros(n_rows, OPERAND)
        self._plain = self._rows.view(f"V{_ROW_NBYTES}")  # the same rows, gathered faster without fields
        self._bytes = self._rows.view(np.uint8).data
        self._used = np.zeros(n_rows, np.bool_)
        self._renumbered = np.zeros(n_rows, np.int64)
        self._tensors: dict[tuple[str, int, tuple[int, ...], np.dtype[Any]], Operand] = {}
        self.scalars: dict[tuple[type, Number], Operand] = {}
        self.signatures: dict[object, int] = {}
        self._step_operands: list[Operand] = []
        self._signature_ids: dict[tuple[int, int, tuple[int, ...], int], int] = {}
        self._n_fixed = 0
        self._n_step = 0
        self._base = (id(self) >> 4) % (STEP_HANDLES // _MAX_ROWS) * _MAX_ROWS  # objects that live have other ids
        self._step_base = STEP_HANDLES + self._base

    def next_step(self) -> None:
        """End the handles of the step so far."""
        for operand in self._step_operands:
            del self.signatures[operand]
        self._step_operands.clear()
        self._step_base += self._n_step
        self._n_step = 0
        self.scalars.clear()

    def tensor(self, region: str, offset: int, dims: tuple[int, ...], element: np.dtype[Any]) -> Operand:
        """The lasting handle of a tensor in a region; the same one for the same tensor."""
        known = self._tensors.get((region, offset, dims, element)) if isinstance(region, str) else None
        if known is not None:
            return known
        if not isinstance(region, str) or region not in self._regions:
            names = ", ".join(self._regions) or "none"
            raise GraphError(f"unknown region {shown(region)}; declared: {names} (per-step inputs go through put())")
        index, available = self._regions[region]
        code, nbytes = tensor_type(dims, element)
        if offset < 0 or offset % element.itemsize or offset + nbytes > available:
            raise GraphError(
                f"tensor {dims} of {element} at byte {offset} of region {region!r}: the offset must be a multiple of "
                f"{element.itemsize} and the {nbytes} bytes must end within {available}"
            )
        self._require_row()
        self._pack_tensor(self._n_fixed, code, index, offset, dims)
        operand = self._tensors[region, offset, dims, element] = Operand(self._base + self._n_fixed)
        self.signatures[operand] = self._signature(KIND_TENSOR, code, dims, index)
        self._n_fixed += 1
        return operand

    def lasting_row(self, operand: Operand) -> bytes | None:
        """The record of a tensor in a region; None for handles of a step and of others."""
        row = operand - self._base
        return self._rows[row].tobytes() if 0 <= row < self._n_fixed else None

    def record_of(self, operand: Operand) -> np.void | None:
        """The record of a handle that is good now; None for others."""
        if operand not in self.signatures:
            return None
        step = operand >= STEP_HANDLES
        record: np.void = self._rows[self._step_base + len(self._rows) - 1 - operand if step else operand - self._base]
        return record

    def step_tensor(self, code: int, offset: int, dims: tuple[int, ...]) -> Operand:
        """The handle, for this step, of a tensor in the image."""
        self._require_row()
        self._pack_tensor(self._last_row(), code, 0, offset, dims)
        return self._step_operand(self._signature(KIND_TENSOR, code, dims, 0))

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
            kind = KIND_FLOAT
            PACK_FLOAT.pack_into(self._bytes, at, kind, 0, 0, 0, number, *_ONES)
        elif isinstance(number, int) and -(1 << 63) <= number < 1 << 63:
            kind = KIND_INT
            PACK_TENSOR.pack_into(self._bytes, at, kind, 0, 0, 0, number, *_ONES)
        else:
            raise GraphError(f"{shown(value)} is not an operand of this builder, an int of 64 bits or a float")
        operand = self._step_operand(self._signature(kind, 0, (), 0))
        if number or isinstance(number, int):  # 0.0 and -0.0 are equal as keys
            self.scalars[key] = operand
        return operand

    def handles(
        self, args: Sequence[Operand | Number], where: str, names: Sequence[str] | None = None
    ) -> list[Operand]:
        """The arguments with handles for the numbers among them; `where` and `names` are for errors."""
        known = self.scalars
        try:
            return [arg if isinstance(arg, Operand) else known[arg.__class__, arg] for arg in args]
        except (KeyError, TypeError):  # a number that is new in this step, or no number
            operands: list[Operand] = []
        for position, arg in enumerate(args):
            if isinstance(arg, Operand):
                operands.append(arg)
                continue
            try:
                operands.append(self.scalar(arg))
            except GraphOverflow:
                raise
            except (GraphError, TypeError) as error:  # TypeError: not hashable, so not a number either
                argument = position if names is None else repr(names[position])
                why = HOST_MEMORY if hasattr(arg, "nbytes") else error
                raise GraphError(f"{where}, argument {argument}: {why}") from None
        return operands

    def place(self, template: NDArray[np.void], formal: Ints, bound: Sequence[Operand]) -> int:
        """Rows of the step for a Definition's operands, with those bound in place of the parameters.

        `formal` are the entries that stand for parts of tensors. Gives the first handle; the others follow it.
        """
        count = template.size
        self._require_row(count)
        rows = template.copy()
        given = self._rows[self._row_numbers(np.frombuffer(pack(f"<{len(bound)}q", *bound), np.int64))]
        whole = given[rows["region"][formal]]
        rows["kind"][formal] = KIND_TENSOR
        rows["region"][formal] = whole["region"]
        rows["offset"][formal] += whole["offset"]
        end = len(self._rows) - self._n_step
        self._plain[end - count : end] = rows.view(self._plain.dtype)[::-1]
        self._n_step += count
        return self._step_base + self._n_step - count

    def _row_numbers(self, given: Ints) -> Ints:
        last = len(self._rows) - 1
        return np.where(given < STEP_HANDLES, given - self._base, self._step_base + last - given)

    def resolve(self, given: Ints, refuse: Callable[[int], NoReturn]) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """Indices into the operand pool for the handles `given`, and the pool: the rows in use and no others.

        Calls `refuse` with the position of a handle that stands for nothing.
        """
        n_rows = len(self._rows)
        rows = self._row_numbers(given)
        used = self._used
        used.fill(False)
        in_range = not rows.size or (rows.min() >= 0 and rows.max() < n_rows)
        if in_range:
            used[rows] = True
        if not in_range or used[self._n_fixed : n_rows - self._n_step].any():
            lasting = (given < STEP_HANDLES) & (rows >= 0) & (rows < self._n_fixed)
            known = lasting | (given >= STEP_HANDLES) & (rows >= n_rows - self._n_step) & (rows < n_rows)
            refuse(int(known.argmin()))
        rows_used = np.flatnonzero(used)
        self._renumbered[rows_used] = np.arange(rows_used.size)
        return self._renumbered[rows], self._plain[rows_used].view(OPERAND)

    def _pack_tensor(self, row: int, code: int, region: int, offset: int, dims: tuple[int, ...]) -> None:
        ndim = len(dims)
        PACK_TENSOR.pack_into(
            self._bytes, row * _ROW_NBYTES, KIND_TENSOR, code, region, ndim, offset, *dims, *_ONES[ndim:]
        )

    def _signature(self, kind: int, code: int, dims: tuple[int, ...], region: int) -> int:
        return self._signature_ids.setdefault((kind, code, dims, region), len(self._signature_ids))

    def _require_row(self, count: int = 1) -> None:
        used = self._n_fixed + self._n_step
        if used + count > len(self._rows):
            raise GraphOverflow(
                f"operands: {used} used ({self._n_fixed} tensors, {self._n_step} inputs and scalars of the step), "
                f"{len(self._rows)} available, {count} more requested; raise max_operands"
            )

    def _last_row(self) -> int:
        return len(self._rows) - 1 - self._n_step

    def _step_operand(self, signature: int) -> Operand:
        operand = Operand(self._step_base + self._n_step)
        self.signatures[operand] = signature
        self._step_operands.append(operand)
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
