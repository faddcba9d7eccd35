"""The host side: collects a step's task graph in flat lists of integers and writes it into the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from async_orch._graph_format import ARG, HEADER_NBYTES, TASK, Bytes, aligned, require_bytes
from async_orch._graph_kernels import KernelTable
from async_orch._graph_operands import STEP_HANDLES, Number, Operand, OperandRows, tensor_type
from async_orch._graph_write import Collected, Declared, region_records, write_image
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["GraphBuilder"]

_TASK_NBYTES = TASK.itemsize
_INT_NBYTES = ARG.itemsize


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
        self._max_tasks = max_tasks
        self._max_fanin = 4 * max_tasks if max_fanin is None else max_fanin
        self._max_args = 8 * max_tasks if max_args is None else max_args
        self._declared = Declared(table, region_records(regions), infer)
        self._operands = OperandRows(regions, 2 * max_tasks if max_operands is None else max_operands)
        self._n_tasks = 0
        self._tasks: list[int] = []  # six fields a task, as in the image
        self._args: list[int] = []
        self._fanin: list[int] = []
        self._user_end = HEADER_NBYTES
        self._image: Bytes = np.zeros(0, np.uint8)
        self._capacity = 0
        if image is not None:
            self.reset(image)

    def reset(self, image: Bytes) -> None:
        """Start the next graph in `image`. Handles of `put`, `reserve` and `scalar` end, those of `tensor` stay."""
        self._image = require_bytes(image, "image", writable=True)
        self._capacity = image.size
        self._operands.next_step()
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
        return self._operands.tensor(region, offset, tuple(shape), np.dtype(dtype))

    def scalar(self, value: Number) -> Operand:
        """An int (64 bits, signed) or float (64 bits) argument; valid until `reset`. `task` takes plain ones too."""
        return self._operands.scalar(value)

    def reserve(self, shape: Sequence[int], dtype: DTypeLike) -> tuple[Operand, NDArray[Any]]:
        """Room for a per-step input in the image: its handle, and a view to fill (not cleared), both until `reset`.

        The view starts at a multiple of 64 bytes. Kernels see it read-only. Raises `GraphOverflow`.
        """
        return self._reserve(tuple(shape), np.dtype(dtype))

    def put(self, array: ArrayLike) -> Operand:
        """Copy a per-step input into the image; the handle is valid until `reset`. See `reserve`."""
        source = np.asarray(array)
        operand, view = self._reserve(source.shape, source.dtype)
        view[...] = source
        return operand

    def task(self, kernel: str, *args: Operand | Number, after: int | Sequence[int] = ()) -> int:
        """Add a call of `kernel` and return its task id: 0, 1, 2, ... in the order of the calls.

        `args` are handles, ints and floats, in the kernel's order. `after` names earlier tasks that must be done
        first. Raises `GraphError` naming kernel and argument, `GraphOverflow` naming the exhausted resource; the
        task is then not added.
        """
        task_id = self._n_tasks
        entry = self._kernels.get(kernel)
        if entry is None:
            raise GraphError(f"task {task_id}: {self._table.unknown(kernel)}")
        kernel_id, _, _, arity, outputs = entry
        n_args = len(args)
        if n_args != arity >= 0:
            raise GraphError(f"task {task_id} ({kernel}): {n_args} arguments given, the kernel takes {arity}")
        operands = cast("tuple[Operand, ...]", args)
        for arg in args:
            if arg.__class__ is not Operand:
                operands = self._with_scalars(kernel, args)
                break
        if outputs:
            for position in outputs:
                if position >= n_args or operands[position] >= STEP_HANDLES:
                    self._refuse_output(kernel, position, n_args)
        producers: Sequence[int] = (after,) if isinstance(after, int) else after
        for producer in producers:
            if not 0 <= producer < task_id:
                raise GraphError(f"task {task_id} ({kernel}): after={producer} is not an earlier task's id")
        n_fanin = len(producers)
        pool = self._args
        fanin = self._fanin
        fanin_start = len(fanin)
        arg_start = len(pool)
        fanin_end = fanin_start + n_fanin
        arg_end = arg_start + n_args
        if (
            task_id >= self._max_tasks
            or arg_end > self._max_args
            or fanin_end > self._max_fanin
            or self._user_end + _TASK_NBYTES * (task_id + 1) + _INT_NBYTES * (arg_end + fanin_end) > self._capacity
        ):
            self._refuse_overflow(n_args, n_fanin)
        self._tasks += (0, kernel_id, fanin_start, n_fanin, arg_start, n_args)
        pool += operands
        if n_fanin:
            fanin += producers
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
            self._operands,
            Collected(self._tasks, self._args, self._fanin, self._user_end, self._max_fanin),
        )

    @property
    def n_tasks(self) -> int:
        """Tasks added since `reset`."""
        return self._n_tasks

    def _reserve(self, dims: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Operand, NDArray[Any]]:
        element = dtype if dtype.isnative else dtype.newbyteorder("<")
        code, nbytes = tensor_type(dims, element)
        start = aligned(self._user_end)
        if start + nbytes > self._image.size:
            raise GraphOverflow(
                f"image bytes: {self._user_end} used by inputs, {self._image.size} available, {nbytes} more requested "
                f"for an input of shape {dims} ({element}); enlarge the slot's image"
            )
        operand = self._operands.step_tensor(code, start, dims)
        if start != self._user_end:
            self._image[self._user_end : start] = 0  # so that equal graphs give equal bytes
        self._user_end = start + nbytes
        return operand, np.ndarray(dims, element, self._image, start)

    def _with_scalars(self, kernel: str, args: tuple[Operand | Number, ...]) -> tuple[Operand, ...]:
        known = self._operands.scalars
        try:
            return tuple([arg if isinstance(arg, Operand) else known[arg.__class__, arg] for arg in args])
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
                raise GraphError(f"task {self._n_tasks} ({kernel}), argument {position}: {error}") from None
        return tuple(operands)

    def _refuse_output(self, kernel: str, position: int, n_args: int) -> NoReturn:
        if position >= n_args:
            why = f"the kernel writes it, but only {n_args} arguments are given"
        else:
            why = "the kernel writes it, but it is a scalar or an input in the image, which kernels may only read"
        raise GraphError(f"task {self._n_tasks} ({kernel}), argument {position}: {why}")

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
