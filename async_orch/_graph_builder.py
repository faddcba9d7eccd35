"""The host side: collects a step's task graph in flat lists of integers and writes it into the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from async_orch._graph_format import (
    CODE_OF_DTYPE,
    DTYPES,
    HEADER_NBYTES,
    IMAGE_REGION,
    KIND_FLOAT,
    KIND_INT,
    KIND_TENSOR,
    MAX_NDIM,
    OPERAND,
    PACK_FLOAT,
    PACK_TENSOR,
    Bytes,
    aligned,
    require_bytes,
)
from async_orch._graph_kernels import KernelTable
from async_orch._graph_write import Collected, Declared, region_records, write_image
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["GraphBuilder", "Operand"]

_TASK_NBYTES = 24
_INT_NBYTES = 4
_STEP_HANDLES = 1 << 32  # handles from here on are of one step: scalars and inputs, which nobody may write


class Operand(int):
    """Handle of a tensor or scalar, given out by a `GraphBuilder` and passed to its `task`. Holds no memory."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Operand({int(self)})"


class GraphBuilder:
    """Writes task graphs into images, one a step, with storage that is allocated once.

    Parameters
    ----------
    image:
        The first step's image, a writable contiguous one-dimensional uint8 array; ``None`` if `reset` comes first.
    table:
        The kernels that tasks may name.
    regions:
        Bytes of each memory region that tensors may lie in, by name (at most 24 bytes of UTF-8). The device side
        gives the memory under the same names. ``"image"`` is the image itself and not listed here.
    max_tasks, max_fanin, max_args, max_operands:
        Most tasks, dependencies, arguments, and distinct tensors and scalars of one graph. The image is sized by
        what is used, not by these; the defaults of the last three are 4, 8 and 2 times ``max_tasks``.
    infer:
        Derive dependencies (read after write, write after write, write after read) from the bytes that tasks read
        and write. Every kernel used must then declare its ``outputs``. The derivation is kept and used again while
        the structure of the graph stays the same.

    Between `reset` and `finish` the builder owns the image. It is not thread-safe.
    """

    def __init__(
        self,
        image: Bytes | None,
        table: KernelTable,
        regions: Mapping[str, int],
        *,
        max_tasks: int = 4096,
        max_fanin: int | None = None,
        max_args: int | None = None,
        max_operands: int | None = None,
        infer: bool = False,
    ) -> None:
        if max_tasks < 1:
            raise GraphError(f"max_tasks is {max_tasks}; it must be at least 1")
        self._table = table
        self._kernels = table.by_name
        self._sizes = dict(regions)
        self._region_ids = {name: position for position, name in enumerate((IMAGE_REGION, *regions))}
        self._max_tasks = max_tasks
        self._max_fanin = 4 * max_tasks if max_fanin is None else max_fanin
        self._max_args = 8 * max_tasks if max_args is None else max_args
        self._max_operands = 2 * max_tasks if max_operands is None else max_operands
        # Tensors that outlive a step fill the rows from the front, those of one step from the back.
        self._rows = np.zeros(self._max_operands, OPERAND)
        self._row_bytes = self._rows.view(np.uint8).data
        self._declared = Declared(table, region_records(regions), self._rows, infer)
        self._interned: dict[tuple[str, int, tuple[int, ...], np.dtype[np.generic]], Operand] = {}
        self._scalars: dict[tuple[type, int | float], Operand] = {}
        self._n_fixed = 0
        self._n_step = 0
        self._step_base = _STEP_HANDLES  # counts up over all steps, so that an old handle is recognised
        self._n_tasks = 0
        self._tasks: list[int] = []  # six fields a task, as in the image
        self._args: list[int] = []
        self._fanin: list[int] = []
        self._user_end = HEADER_NBYTES
        self._image: Bytes = np.zeros(0, np.uint8)
        if image is not None:
            self.reset(image)

    def reset(self, image: Bytes) -> None:
        """Start the next graph in `image`. Handles of `put`, `reserve` and `scalar` end, those of `tensor` stay."""
        self._image = require_bytes(image, "image", writable=True)
        self._step_base += self._n_step
        self._n_step = 0
        self._scalars.clear()
        self._n_tasks = 0
        self._tasks.clear()
        self._args.clear()
        self._fanin.clear()
        self._user_end = HEADER_NBYTES

    def tensor(self, region: str, offset: int, shape: Sequence[int], dtype: DTypeLike) -> Operand:
        """Declare a contiguous tensor at byte `offset` of `region`; valid for the life of the builder.

        Asking again for the same tensor gives the same handle. At most 4 dimensions; `offset` must be a multiple of
        the item size. Raises `GraphError` if the region is unknown or the tensor does not lie within it.
        """
        element = np.dtype(dtype)
        dims = tuple(shape)
        known = self._interned.get((region, offset, dims, element))
        if known is not None:
            return known
        if region not in self._sizes:
            names = ", ".join(self._sizes) or "none"
            raise GraphError(f"unknown region {region!r}; declared: {names} (per-step inputs go through put())")
        code, nbytes = _tensor_type(dims, element)
        if offset < 0 or offset % element.itemsize or offset + nbytes > self._sizes[region]:
            raise GraphError(
                f"tensor {dims} of {element} at byte {offset} of region {region!r}: the offset must be a multiple of "
                f"{element.itemsize} and the {nbytes} bytes must end within {self._sizes[region]}"
            )
        row = self._n_fixed
        self._require_operand()
        _pack_tensor(self._row_bytes, row, code, self._region_ids[region], offset, dims)
        self._n_fixed = row + 1
        operand = self._interned[region, offset, dims, element] = Operand(row)
        return operand

    def scalar(self, value: float) -> Operand:
        """An int (64 bits, signed) or float (64 bits) argument; valid until `reset`. `task` takes plain ones too."""
        key = (value.__class__, value)
        known = self._scalars.get(key)
        if known is not None:
            return known
        number = value.item() if isinstance(value, np.generic) else value
        row = self._max_operands - 1 - self._n_step
        self._require_operand()
        if isinstance(number, float):
            PACK_FLOAT.pack_into(self._row_bytes, row * 32, KIND_FLOAT, 0, 0, 0, number, 1, 1, 1, 1)
        elif isinstance(number, int) and -(1 << 63) <= number < 1 << 63:
            PACK_TENSOR.pack_into(self._row_bytes, row * 32, KIND_INT, 0, 0, 0, number, 1, 1, 1, 1)
        else:
            raise GraphError(f"{value!r} is not an operand of this builder, an int of 64 bits or a float")
        operand = self._step_operand()
        if number or isinstance(number, int):  # 0.0 and -0.0 are equal as keys
            self._scalars[key] = operand
        return operand

    def reserve(self, shape: Sequence[int], dtype: DTypeLike) -> tuple[Operand, NDArray[Any]]:
        """Room for a per-step input in the image: its handle, and a view to fill (not cleared), both until `reset`.

        The view starts at a multiple of 64 bytes. Kernels see it read-only. Raises `GraphOverflow`.
        """
        element = np.dtype(dtype)
        dims = tuple(shape)
        code, nbytes = _tensor_type(dims, element)
        start = aligned(self._user_end)
        if start + nbytes > self._image.size:
            raise GraphOverflow(
                f"image bytes: {self._user_end} used by inputs, {self._image.size} available, {nbytes} more requested "
                f"for an input of shape {dims} ({element}); enlarge the slot's image"
            )
        row = self._max_operands - 1 - self._n_step
        self._require_operand()
        _pack_tensor(self._row_bytes, row, code, 0, start, dims)
        if start != self._user_end:
            self._image[self._user_end : start] = 0  # so that equal graphs give equal bytes
        self._user_end = start + nbytes
        return self._step_operand(), np.ndarray(dims, element, self._image, start)

    def put(self, array: ArrayLike) -> Operand:
        """Copy a per-step input into the image; the handle is valid until `reset`. See `reserve`."""
        source = np.asarray(array)
        operand, view = self.reserve(source.shape, source.dtype.newbyteorder("<"))
        view[...] = source
        return operand

    def task(self, kernel: str, *args: Operand | float, after: int | Sequence[int] = ()) -> int:
        """Add a call of `kernel` and return its task id: 0, 1, 2, ... in the order of the calls.

        `args` are handles, ints and floats, in the kernel's order. `after` names earlier tasks that must be done
        first. Raises `GraphError` naming kernel and argument, `GraphOverflow` naming the exhausted resource; the
        task is then not added.
        """
        task_id = self._n_tasks
        entry = self._kernels.get(kernel)
        if entry is None:
            raise GraphError(f"task {task_id}: {self._table.unknown(kernel)}")
        n_args = len(args)
        if n_args != entry.n_args >= 0:
            raise GraphError(f"task {task_id} ({kernel}): {n_args} arguments given, the kernel takes {entry.n_args}")
        operands = cast("tuple[Operand, ...]", args)
        for arg in args:
            if arg.__class__ is not Operand:
                operands = self._with_scalars(kernel, args)
                break
        if entry.outputs:
            for position in entry.outputs:
                if position >= n_args or operands[position] >= _STEP_HANDLES:
                    self._refuse_output(kernel, position, n_args)
        producers: Sequence[int] = (after,) if isinstance(after, int) else after
        for producer in producers:
            if not 0 <= producer < task_id:
                raise GraphError(f"task {task_id} ({kernel}): after={producer} is not an earlier task's id")
        n_fanin = len(producers)
        fanin_start = len(self._fanin)
        arg_start = len(self._args)
        fanin_end = fanin_start + n_fanin
        arg_end = arg_start + n_args
        if (
            task_id >= self._max_tasks
            or arg_end > self._max_args
            or fanin_end > self._max_fanin
            or self._user_end + _TASK_NBYTES * (task_id + 1) + _INT_NBYTES * (arg_end + fanin_end) > self._image.size
        ):
            self._refuse_overflow(n_args, n_fanin)
        self._tasks += (0, entry.id, fanin_start, n_fanin, arg_start, n_args)
        self._args += operands
        if n_fanin:
            self._fanin += producers
        self._n_tasks = task_id + 1
        return task_id

    def finish(self) -> int:
        """Write the graph behind the inputs and the header in front of them; gives the image's bytes used.

        Raises `GraphOverflow` if the image or ``max_fanin`` (with ``infer``) is too small, `GraphError` for a handle
        of an earlier step and for a kernel that would write a scalar or the image.
        """
        return write_image(
            self._image,
            self._declared,
            Collected(
                tasks=self._tasks,
                args=self._args,
                fanin=self._fanin,
                n_fixed=self._n_fixed,
                step_base=self._step_base,
                n_step=self._n_step,
                user_end=self._user_end,
                max_fanin=self._max_fanin,
            ),
        )

    @property
    def n_tasks(self) -> int:
        """Tasks added since `reset`."""
        return self._n_tasks

    def _with_scalars(self, kernel: str, args: tuple[Operand | float, ...]) -> tuple[Operand, ...]:
        operands = []
        for position, arg in enumerate(args):
            if isinstance(arg, Operand):
                operands.append(arg)
                continue
            try:
                operands.append(self.scalar(arg))
            except GraphOverflow:
                raise
            except (GraphError, TypeError) as error:  # TypeError: not hashable, so not a number either
                raise GraphError(f"task {self._n_tasks} ({kernel}), argument {position}: {error}") from None
        return tuple(operands)

    def _refuse_output(self, kernel: str, position: int, n_args: int) -> NoReturn:
        if position >= n_args:
            why = f"the kernel writes it, but only {n_args} arguments are given"
        else:
            why = "the kernel writes it, but it is a scalar or an input in the image, which kernels may only read"
        raise GraphError(f"task {self._n_tasks} ({kernel}), argument {position}: {why}")

    def _require_operand(self) -> None:
        if self._n_fixed + self._n_step >= self._max_operands:
            raise GraphOverflow(
                f"operands: {self._n_fixed + self._n_step} used ({self._n_fixed} tensors, {self._n_step} of this step), "
                f"{self._max_operands} available, 1 more requested; raise max_operands"
            )

    def _step_operand(self) -> Operand:
        operand = Operand(self._step_base + self._n_step)
        self._n_step += 1
        return operand

    def _refuse_overflow(self, n_args: int, n_fanin: int) -> NoReturn:
        """Say which resource a task that was not added would exhaust."""
        n_tasks = self._n_tasks
        for resource, used, available, requested in (
            ("tasks", n_tasks, self._max_tasks, 1),
            ("args", len(self._args), self._max_args, n_args),
            ("fanin", len(self._fanin), self._max_fanin, n_fanin),
        ):
            if used + requested > available:
                raise GraphOverflow(
                    f"{resource}: {used} used, {available} available, {requested} more requested by task {n_tasks}; "
                    f"raise max_{resource}"
                )
        used = self._user_end + _TASK_NBYTES * n_tasks + _INT_NBYTES * (len(self._args) + len(self._fanin))
        raise GraphOverflow(
            f"image bytes: {used} used, {self._image.size} available, "
            f"{_TASK_NBYTES + _INT_NBYTES * (n_args + n_fanin)} more requested by task {n_tasks}; "
            "enlarge the slot's image"
        )


def _tensor_type(dims: tuple[int, ...], element: np.dtype[Any]) -> tuple[int, int]:
    """Dtype code and bytes of a contiguous tensor; `GraphError` if the format cannot express it."""
    code = CODE_OF_DTYPE.get(element)
    if code is None:
        raise GraphError(f"dtype {element} is not supported; use one of {', '.join(str(d) for d in DTYPES)}")
    if len(dims) > MAX_NDIM:
        raise GraphError(f"shape {dims} has {len(dims)} dimensions; at most {MAX_NDIM} are supported")
    nbytes = element.itemsize
    for dim in dims:
        if not 0 <= dim < 1 << 31:
            raise GraphError(f"shape {dims}: each dimension must lie in 0 to {(1 << 31) - 1}")
        nbytes *= dim
    return code, nbytes


def _pack_tensor(rows: memoryview, row: int, code: int, region: int, offset: int, dims: tuple[int, ...]) -> None:
    ndim = len(dims)
    PACK_TENSOR.pack_into(rows, row * 32, KIND_TENSOR, code, region, ndim, offset, *dims, *(1, 1, 1, 1)[ndim:])
