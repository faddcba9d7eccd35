"""Records a Definition: the tasks of a piece of graph, on parameters that each replay binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from async_orch._graph_arguments import as_dims, as_element, as_offset, as_task_ids
from async_orch._graph_definition import Definition, DefinitionSet, Parameter, check_name
from async_orch._graph_dependencies import replay_accesses
from async_orch._graph_formals import Argument, FormalRows, parameter_record
from async_orch._graph_format import (
    ARG,
    DEFINITION,
    DEFINITION_MAGIC,
    FANIN,
    HEADER_NBYTES,
    KIND_FLOAT,
    KIND_INT,
    KIND_TENSOR,
    MAX_DEPTH,
    OPERAND,
    SECTION_NBYTES,
    TASK_GRAPH,
    fingerprint,
)
from async_orch._graph_infer import Access, Derivation, Range, merged, refuse_overlaps
from async_orch._graph_kernels import KernelTable
from async_orch._graph_operands import Operand, OperandRows, tensor_type
from async_orch._graph_write import lay_out, seal, words
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["Recorder", "in_order"]


class Recorder:
    """Given to the function that `GraphBuilder.record` calls: declares parameters and adds tasks.

    Tensors of regions, from `GraphBuilder.tensor`, may be used as they are; every replay then uses the same memory.
    Inputs of a step may not: they are parameters. Numbers given as they are become constants.
    """

    def __init__(
        self,
        name: str,
        table: KernelTable,
        regions: NDArray[np.void],
        operands: OperandRows,
        definitions: DefinitionSet,
        *,
        infer: bool,
    ) -> None:
        self._encoded_name = check_name(name)
        self._name = name
        self._table = table
        self._regions = regions
        self._outer = operands
        self._definitions = definitions
        self._derivation = Derivation() if infer else None
        self._parameters: dict[str, Parameter] = {}
        self._rows = FormalRows(self, operands, [name.decode() for name in regions["name"].tolist()])
        self._tasks: list[int] = []
        self._args: list[int] = []
        self._fanin: list[int] = []
        self._uses: dict[int, int] = {}  # number of a Definition: its place among those that this one replays
        self._outputs: set[int] = set()
        self._unwritten: list[Range] = []
        self._n_kernel_calls = 0
        self._n_records = 0
        self._ended = False

    def parameter(self, name: str, shape: Sequence[int], dtype: DTypeLike, *, region: str = "") -> Parameter:
        """Declare a tensor that each replay binds: exactly this shape and dtype, in `region` if that is given."""
        what = f"{self._name}: parameter {name!r}"
        dims, element = as_dims(shape, what), as_element(dtype, what)
        code, _ = tensor_type(dims, element)
        if region and region.encode() not in self._regions["name"].tolist():
            raise GraphError(f"{self._name}: parameter {name!r} asks for unknown region {region!r}")
        return self._declare(Parameter(name, len(self._parameters), KIND_TENSOR, dims, code, 0, region, self))

    def number(self, name: str, kind: type[int | float]) -> Parameter:
        """Declare an int (64 bits, signed) or float (64 bits) that each replay binds."""
        if kind not in (int, float):
            raise GraphError(f"{self._name}: number {name!r} must be int or float, not {kind!r}")
        code = KIND_INT if kind is int else KIND_FLOAT
        return self._declare(Parameter(name, len(self._parameters), code, owner=self))

    def part(
        self, parameter: Parameter, offset: int, shape: Sequence[int], dtype: DTypeLike | None = None
    ) -> Parameter:
        """A contiguous part of a parameter's tensor, from its byte `offset` on; parts may overlap.

        The dtype is the parameter's unless given; its items must not be larger than the parameter's.
        """
        if parameter.owner is not self:
            raise GraphError(f"{self._name}: parameter {parameter.name!r} belongs to another Definition")
        if parameter.kind != KIND_TENSOR:
            raise GraphError(f"{self._name}: parameter {parameter.name!r} is {parameter}, which has no parts")
        whole = self._parameters[parameter.name]
        what = f"{self._name}: a part of parameter {parameter.name!r}"
        element = parameter.dtype if dtype is None else as_element(dtype, what)
        dims, offset = as_dims(shape, what), as_offset(offset, what)
        code, nbytes = tensor_type(dims, element)
        available = parameter.nbytes
        if (
            element.itemsize > whole.dtype.itemsize
            or offset % element.itemsize
            or not 0 <= offset <= available - nbytes
        ):
            raise GraphError(
                f"{self._name}: a part of {nbytes} bytes of {element} at byte {offset} of parameter "
                f"{parameter.name!r}: it must end within {available} bytes, at a multiple of {element.itemsize}, in "
                f"items of at most {whole.dtype.itemsize} bytes"
            )
        return Parameter(
            whole.name, whole.position, KIND_TENSOR, dims, code, parameter.offset + offset, whole.region, self
        )

    def task(self, kernel: str, *args: Argument, after: int | Sequence[int] = ()) -> int:
        """Add a call of `kernel`; as `GraphBuilder.task`, with ids that count from 0 in this Definition."""
        where = f"{self._name}, task {self.n_tasks} ({kernel})"
        entry = self._table.by_name.get(kernel) if isinstance(kernel, str) else None
        if entry is None:
            raise GraphError(f"{self._name}, task {self.n_tasks}: {self._table.unknown(kernel)}")
        if len(args) != entry.n_args >= 0:
            raise GraphError(f"{where}: {len(args)} arguments given, the kernel takes {entry.n_args}")
        if self._derivation is not None and entry.outputs is None:
            raise GraphError(f"{where}: infer=True needs outputs=(...) in the kernel's registration")
        if entry.outputs and entry.outputs[-1] >= len(args):
            raise GraphError(
                f"{where}, argument {entry.outputs[-1]}: the kernel writes it, but only {len(args)} arguments are given"
            )
        written = range(len(args)) if entry.outputs is None else entry.outputs
        rows = [self._rows.place(arg, f"{where}, argument {position}") for position, arg in enumerate(args)]
        accesses: list[Access] = []
        for position, arg in enumerate(args):
            output = position in written
            if output and entry.outputs is not None:
                if isinstance(arg, Parameter) and arg.kind == KIND_TENSOR:
                    self._outputs.add(arg.position)
                elif not isinstance(arg, Operand):
                    raise GraphError(f"{where}, argument {position}: the kernel writes it, but it is a number")
            base, start, end = self._rows.span(arg)
            accesses += [Access(base, start, end, output, position)] if base else []
        self._n_kernel_calls += 1
        self._n_records += 1 + len(args)
        return self._append(0, entry.id, rows, accesses, after, where)

    def replay(
        self,
        definition: Definition,
        bindings: Mapping[str, Argument] | Sequence[Argument],
        *,
        after: int | Sequence[int] = (),
    ) -> int:
        """Add a replay of another Definition of the same builder; as `GraphBuilder.replay`."""
        where = f"{self._name}, task {self.n_tasks} ({definition.name})"
        if definition.owner is not self._definitions:
            raise GraphError(f"{where}: the Definition is another builder's; record it with this one")
        given = in_order(definition, bindings, where)
        bound: list[tuple[int, int]] = []
        rows: list[int] = []
        for wanted, arg in zip(definition.parameters, given, strict=True):
            rows.append(self._rows.place(arg, f"{where}, argument {wanted.name!r}"))
            self._check_binding(where, wanted, arg, writes=wanted.position in definition.outputs)
            bound.append(self._rows.span(arg)[:2])
        accesses = replay_accesses(definition, bound)
        refuse_overlaps(accesses, definition.names, where)
        number = self._uses.setdefault(definition.number, len(self._uses))
        self._n_kernel_calls += definition.n_tasks
        self._n_records += definition.n_records
        return self._append(TASK_GRAPH, number, rows, accesses, after, where)

    @property
    def n_tasks(self) -> int:
        """Tasks added so far; a replay is one."""
        return len(self._tasks) // 6

    def end(self) -> Definition:
        """The Definition, complete; the recorder takes nothing more."""
        self._ended = True
        name = np.frombuffer(self._encoded_name, np.uint8)
        parameters = b"".join(parameter_record(one) for one in self._parameters.values())
        numbers = list(self._uses)
        depth = 1 + max([self._definitions.items[number].depth for number in numbers], default=0)
        if depth > MAX_DEPTH:
            raise GraphOverflow(
                f"nesting: {depth - 1} used, {MAX_DEPTH} available, 1 more requested by {self._name!r}; replay fewer "
                "Definitions inside each other"
            )
        uses = np.zeros(len(numbers), DEFINITION)
        uses["fingerprint"] = [self._definitions.items[number].fingerprint for number in numbers]
        tasks, fanin = words(self._tasks, 6), np.array(self._fanin, FANIN)
        args = np.array(self._args, np.int64)
        pools: list[NDArray[np.generic]] = [
            self._regions,
            tasks.reshape(-1),
            fanin,
            args.astype(ARG),
            self._rows.records(),
            uses,
            np.frombuffer(parameters, OPERAND),
        ]
        record_nbytes = (*SECTION_NBYTES[1:-1], OPERAND.itemsize)
        counts = [array.nbytes // nbytes for array, nbytes in zip(pools, record_nbytes, strict=True)]
        places, nbytes = lay_out(HEADER_NBYTES + name.size, counts, record_nbytes)
        content = np.zeros(nbytes, np.uint8)
        content[HEADER_NBYTES : HEADER_NBYTES + name.size] = name
        for start, array in zip(places[2::2], pools, strict=True):
            content[start : start + array.nbytes] = array.view(np.uint8)
        seal(content, DEFINITION_MAGIC, self._table, places, nbytes)
        content.flags.writeable = False
        declared = tuple(self._parameters.values())
        return Definition(
            name=self._name,
            parameters=declared,
            outputs=frozenset(self._outputs),
            n_tasks=self._n_kernel_calls,
            n_records=self._n_records + len(self._rows),
            content=content,
            fingerprint=fingerprint(content),
            accesses=self._accesses(),
            number=len(self._definitions.items),
            depth=depth,
            uses=frozenset(numbers).union(*(self._definitions.items[number].uses for number in numbers)),
            names=tuple(self._parameters),
            numbers=tuple(one.position for one in declared if one.kind != KIND_TENSOR),
            template=None if numbers else self._rows.template(tasks, args, fanin, list(declared)),
            owner=self._definitions,
        )

    def _declare(self, parameter: Parameter) -> Parameter:
        if parameter.name in self._parameters or not parameter.name:
            raise GraphError(f"{self._name}: parameter name {parameter.name!r} is empty or taken")
        self._require_open()
        self._parameters[parameter.name] = parameter
        return parameter

    def _require_open(self) -> None:
        if self._ended:
            raise GraphError(f"{self._name}: the Definition is complete; record another one")

    def _check_binding(self, where: str, wanted: Parameter, arg: Argument, *, writes: bool) -> None:
        where = f"{where}, argument {wanted.name!r}"
        given = self._rows.as_parameter(arg, where)
        if (given.kind, given.dtype_code, given.shape) != (wanted.kind, wanted.dtype_code, wanted.shape):
            raise GraphError(f"{where}: it must be {wanted}, but {given} is bound")
        if wanted.region and given.region != wanted.region:
            raise GraphError(f"{where}: it must be {wanted}, but {given} is bound")
        if writes and isinstance(arg, Parameter):
            self._outputs.add(arg.position)

    def _append(
        self,
        kind: int,
        number: int,
        rows: list[int],
        accesses: list[Access],
        after: int | Sequence[int],
        where: str,
    ) -> int:
        self._require_open()
        task = self.n_tasks
        producers = as_task_ids(after, task, where)
        if self._derivation is not None:
            producers, unwritten = self._derivation.add(task, accesses, producers)
            self._unwritten += [(access.base, access.start, access.end) for access in unwritten]
        self._tasks += (kind, number, len(self._fanin), len(producers), len(self._args), len(rows))
        self._args += rows
        self._fanin += producers
        return task

    def _accesses(self) -> tuple[Access, ...]:
        """What a replay reads before writing it, and what it writes."""
        if self._derivation is None:
            return ()
        return tuple(
            Access(base, start, end, written, -1 - base if base < 0 else -1)
            for ranges, written in ((self._unwritten, False), (self._derivation.written(), True))
            for base, start, end in merged(ranges)
        )


def in_order(
    definition: Definition, bindings: Mapping[str, Argument] | Sequence[Argument], where: str
) -> Sequence[Argument]:
    """The bindings in the order of the parameters; `GraphError` names those that are missing or unknown."""
    names = definition.names
    if isinstance(bindings, Mapping):
        missing = [name for name in names if name not in bindings]
        unknown = [name for name in bindings if name not in names]
        if missing or unknown:
            wrong = [f"{what} {found}" for what, found in (("without", missing), ("with unknown", unknown)) if found]
            raise GraphError(f"{where}: bindings {', '.join(wrong)}; the Definition takes {', '.join(names) or 'none'}")
        return [bindings[name] for name in names]
    if len(bindings) != len(names):
        raise GraphError(f"{where}: {len(bindings)} arguments bound, the Definition takes {len(names)}")
    return bindings
