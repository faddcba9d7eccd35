"""The host side: collects a step's task graph in flat lists of integers and writes it into the image."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from async_orch._graph_arguments import as_dims, as_element, as_offset
from async_orch._graph_definition import Definition, DefinitionSet
from async_orch._graph_format import MAX_DEPTH, TASK_GRAPH, Bytes, aligned, require_bytes
from async_orch._graph_kernels import KernelTable
from async_orch._graph_operands import STEP_HANDLES, Number, Operand, OperandRows, tensor_type
from async_orch._graph_record import Recorder, in_order
from async_orch._graph_refuse import refuse_output, require_fit
from async_orch._graph_tasks import TaskPools
from async_orch._graph_write import Declared, write_image
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["GraphBuilder"]


_MAX_SIGNATURES: Final = 256
"""Kinds, dtypes, shapes and regions of bindings that are known to fit, for each Definition."""


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
    max_definitions:
        Most different Definitions that `record` keeps; they stay for the life of the builder.
    infer:
        Derive dependencies (read after write, write after write, write after read) from the bytes that tasks read
        and write. Every kernel used must then declare its ``outputs``. The derivation is kept and used again while
        the structure of the graph stays the same.
    scratch:
        With ``infer``, names of regions whose contents are undefined when the graph starts. `finish` refuses a read of
        bytes there that no earlier task wrote. Tensors that a kernel writes count as written as a whole.

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
        max_definitions: int = 64,
        infer: bool = False,
        scratch: Collection[str] = (),
    ) -> None:
        if max_tasks < 1:
            raise GraphError(f"max_tasks is {max_tasks}; it must be at least 1")
        self._table = table
        self._kernels = table.by_name
        self._accepted: dict[int, set[tuple[int | None, ...]]] = {}
        self._pools = TaskPools(
            max_tasks,
            4 * max_tasks if max_fanin is None else max_fanin,
            8 * max_tasks if max_args is None else max_args,
        )
        self._infer = infer
        self._n_recording = 0
        self._definitions = DefinitionSet(max_definitions)
        self._declared = Declared(table, regions, self._definitions, infer=infer, scratch=frozenset(scratch))
        self._operands = OperandRows(regions, 2 * max_tasks if max_operands is None else max_operands)
        self._image: Bytes = np.zeros(0, np.uint8)
        if image is not None:
            self.reset(image)

    def reset(self, image: Bytes) -> None:
        """Start the next graph in `image`. Handles of `put`, `reserve` and `scalar` end, those of `tensor` stay."""
        self._image = require_bytes(image, "image", writable=True)
        self._operands.next_step()
        self._pools.clear(image.size)

    def tensor(self, region: str, offset: int, shape: Sequence[int], dtype: DTypeLike) -> Operand:
        """Declare a contiguous tensor at byte `offset` of `region`; valid for the life of the builder.

        Asking again for the same tensor gives the same handle. At most 4 dimensions; `offset` must be a multiple of
        the item size. Raises `GraphError` if the region is unknown or the tensor does not lie within it.
        """
        offset, dims, element = as_offset(offset, "tensor"), as_dims(shape, "tensor"), as_element(dtype, "tensor")
        return self._operands.tensor(region, offset, dims, element)

    def scalar(self, value: Number) -> Operand:
        """An int (64 bits, signed) or float (64 bits) argument; valid until `reset`. `task` takes plain ones too."""
        return self._operands.scalar(value)

    def reserve(self, shape: Sequence[int], dtype: DTypeLike) -> tuple[Operand, NDArray[Any]]:
        """Room for a per-step input in the image: its handle, and a view to fill (not cleared), both until `reset`.

        The view starts at a multiple of 64 bytes. Kernels see it read-only. Raises `GraphOverflow`.
        """
        return self._reserve(as_dims(shape, "input"), as_element(dtype, "input"))

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
        task_id = self._pools.n_tasks
        try:
            kernel_id, _, _, arity, outputs = self._kernels[kernel]
        except (KeyError, TypeError):  # TypeError: not hashable, so no name
            raise GraphError(f"task {task_id}: {self._table.unknown(kernel)}") from None
        n_args = len(args)
        if n_args != arity >= 0:
            raise GraphError(f"task {task_id} ({kernel}): {n_args} arguments given, the kernel takes {arity}")
        operands: Sequence[Any] = args
        for arg in args:
            if arg.__class__ is not Operand:
                known = self._operands.scalars
                try:
                    operands = [arg if arg.__class__ is Operand else known[arg.__class__, arg] for arg in args]
                except (KeyError, TypeError):  # a number that is new in this step, or no number
                    operands = self._operands.handles(args, f"task {task_id} ({kernel})")
                break
        if outputs:
            for position in outputs:
                if position >= n_args or operands[position] >= STEP_HANDLES:
                    refuse_output(task_id, kernel, position, n_args)
        return self._pools.append(0, kernel_id, kernel, operands, after)

    def record(self, name: str, function: Callable[[Recorder], object], *, key: Hashable = None) -> Definition:
        """Record a piece of graph that `replay` then adds any number of times, in any step.

        Calls ``function(recorder)``, which declares parameters and adds tasks; see `Recorder`. A Definition is kept
        for the life of the builder: recording the same structure again under the same name gives the same one, a
        changed structure a new one. With a `key`, the Definition of an earlier call with the same name and key is
        given without calling `function`.

        Raises what `function` does, `GraphError` for a wrong call in it, and `GraphOverflow` if there are
        ``max_definitions`` already. A step in the making is not touched.
        """
        known = self._definitions.with_key(name, key)
        if known is not None:
            return known
        recorder = Recorder(
            name, self._table, self._declared.regions, self._operands, self._definitions, infer=self._infer
        )
        if self._n_recording >= MAX_DEPTH:
            raise GraphOverflow(
                f"{name}: {self._n_recording} recordings under way, {MAX_DEPTH} available inside each other, 1 more "
                "requested; does its function record itself?"
            )
        self._n_recording += 1
        try:
            function(recorder)
        finally:
            self._n_recording -= 1
        return self._definitions.add(recorder.end(), key)

    def place_definitions(self) -> Bytes:
        """All Definitions recorded so far, as the bytes to upload once to resident memory on the device.

        Images finished from now on name them there, at offsets in that memory, which the device side gets as
        ``definitions=``. Those recorded later travel in each image that uses them, until this is called again: then
        the bytes are more, those before in their old places. Upload them before the next such image runs (in
        `StepProgram.open`, or in a barrier).
        """
        return self._definitions.place()

    def replay(
        self,
        definition: Definition,
        bindings: Mapping[str, Operand | Number] | Sequence[Operand | Number],
        *,
        after: int | Sequence[int] = (),
    ) -> int:
        """Add one GRAPH task, which runs the Definition's tasks on the tensors and numbers bound; gives its id.

        `bindings` are handles and numbers by parameter name, or in the order of the parameters. The Definition's
        tasks start after the tasks in `after` and those found by ``infer``, and what comes after this task comes
        after all of them. With ``infer``, arguments may share memory only where the Definition does not write.

        Raises `GraphError` naming task and argument for a binding whose kind, dtype, shape or region differs from the
        parameter's, that is missing or unknown, in host memory or another builder's, or that would let a kernel write
        an input or scalar of the step; `GraphOverflow` as `task`. The task is then not added.
        """
        bound = self._bound(definition, bindings)
        pools = self._pools
        task_id = pools.append(TASK_GRAPH, definition.number, definition.name, bound, after)
        pools.n_expanded += definition.n_records
        pools.replayed.add(definition.number)
        return task_id

    def inline(
        self, definition: Definition, bindings: Mapping[str, Operand | Number] | Sequence[Operand | Number]
    ) -> range:
        """Write the Definition's tasks out as tasks of this graph, for devices without replays; gives their ids.

        The dependencies on other tasks are those of each task, rather than those of the whole. Needs ``infer``, and a
        Definition that replays no other. Raises as `replay`.
        """
        template = definition.template
        if not self._infer or template is None:
            why = "replays others; inline those" if template is None else "needs a builder with infer=True"
            raise GraphError(f"task {self._pools.n_tasks} ({definition.name}): inline() of a Definition that {why}")
        bound = self._bound(definition, bindings)
        handles = template.handles.copy()
        first = self._operands.place(template.made, template.parts, bound)
        handles[template.made_at] = np.arange(first, first + template.made.size)
        for place, position in template.numbers:
            handles[place] = bound[position]
        return self._pools.extend(template.tasks, handles[template.args], template.fanin)

    def finish(self) -> int:
        """Write the graph behind the inputs and the header in front of them; gives the image's bytes used.

        Raises `GraphOverflow` if the image or ``max_fanin`` (with ``infer``) is too small, `GraphError` for a handle
        of an earlier step, for a kernel that would write a scalar or the image, and with ``infer`` for a read of
        ``scratch`` bytes that nobody wrote and for arguments of a replay that overlap.
        """
        return write_image(self._image, self._declared, self._operands, self._pools)

    @property
    def n_tasks(self) -> int:
        """Tasks added since `reset`."""
        return self._pools.n_tasks

    def _bound(
        self, definition: Definition, bindings: Mapping[str, Operand | Number] | Sequence[Operand | Number]
    ) -> Sequence[Operand]:
        """The handles bound, in the order of the parameters; refuses what does not fit them."""
        task_id = self._pools.n_tasks
        if definition.owner is not self._definitions:
            raise GraphError(f"task {task_id} ({definition.name}): the Definition is another builder's; record it here")
        names = definition.names
        try:
            given = [bindings[name] for name in names] if isinstance(bindings, Mapping) else bindings
        except KeyError:
            given = ()
        if len(given) != len(names) or len(bindings) != len(names):
            in_order(definition, bindings, f"task {task_id} ({definition.name})")
        bound: Sequence[Any] = given
        for position in definition.numbers:
            if bound[position].__class__ is not Operand:
                bound = self._operands.handles(given, f"task {task_id} ({definition.name})", names)
                break
        known = self._operands.signatures
        try:
            signature = tuple([known.get(operand) for operand in bound])
        except TypeError:  # not hashable: an array, say
            signature = ()
        accepted = self._accepted.setdefault(definition.number, set())
        if signature not in accepted:
            require_fit(task_id, definition, bound, self._operands)
            if len(accepted) >= _MAX_SIGNATURES:
                accepted.clear()
            accepted.add(signature)
        return bound

    def _reserve(self, dims: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Operand, NDArray[Any]]:
        element = dtype if dtype.isnative else dtype.newbyteorder("<")
        code, nbytes = tensor_type(dims, element)
        start = aligned(self._pools.user_end)
        if start + nbytes > self._image.size:
            raise GraphOverflow(
                f"image bytes: {self._pools.user_end} used by inputs, {self._image.size} available, {nbytes} more "
                f"requested for an input of shape {dims} ({element}); enlarge the slot's image"
            )
        operand = self._operands.step_tensor(code, start, dims)
        if start != self._pools.user_end:
            self._image[self._pools.user_end : start] = 0  # so that equal graphs give equal bytes
        self._pools.user_end = start + nbytes
        return operand, np.ndarray(dims, element, self._image, start)
