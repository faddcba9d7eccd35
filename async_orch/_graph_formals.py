"""The operand pool of a Definition while it is recorded: parameters and their parts, fixed tensors, constants."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_arguments import shown
from async_orch._graph_definition import Parameter, Template, parameter_of
from async_orch._graph_format import (
    KIND_FLOAT,
    KIND_INT,
    KIND_PARAMETER,
    KIND_TENSOR,
    OPERAND,
    PACK_FLOAT,
    PACK_TENSOR,
)
from async_orch._graph_infer import spans_of
from async_orch._graph_operands import Number, Operand, OperandRows
from async_orch.exceptions import GraphError

__all__ = ["Argument", "FormalRows", "parameter_record"]

Argument = Operand | Parameter | Number
"""What a recorded task takes: a tensor of a region, a parameter or a part of one, a number."""

_ONES = (1, 1, 1, 1)


class FormalRows:
    """Distinct operands in the order of their first use. `owner` is the recorder whose parameters may be used."""

    def __init__(self, owner: object, outer: OperandRows, region_names: list[str]) -> None:
        self._owner = owner
        self._outer = outer
        self._region_names = region_names
        self._places: dict[bytes, int] = {}
        self._fixed: dict[int, Operand] = {}

    def __len__(self) -> int:
        return len(self._places)

    def records(self) -> NDArray[np.void]:
        """The operand pool."""
        return np.frombuffer(b"".join(self._places), OPERAND)

    def place(self, arg: Argument, where: str) -> int:
        """The argument's place in the pool; `GraphError` if it cannot be one, beginning with `where`."""
        place = self._places.setdefault(self._pack(arg, where), len(self._places))
        if isinstance(arg, Operand):
            self._fixed[place] = arg
        return place

    def template(
        self, tasks: NDArray[np.uint32], args: NDArray[np.int64], fanin: NDArray[np.int32], parameters: list[Parameter]
    ) -> Template:
        """What `GraphBuilder.inline` needs of a Definition of these tasks."""
        rows = self.records()
        formal = rows["kind"] == KIND_PARAMETER
        tensor = np.array([one.kind == KIND_TENSOR for one in parameters] or [False])
        number = formal & ~tensor[np.where(formal, rows["region"], 0)]
        handles = np.zeros(rows.size, np.int64)
        made = ~number
        for place, operand in self._fixed.items():
            handles[place] = operand
            made[place] = False
        made_at = np.flatnonzero(made)
        return Template(
            tasks,
            args,
            fanin,
            handles,
            rows[made_at],
            made_at,
            np.flatnonzero(formal[made_at]),
            tuple((int(place), int(rows["region"][place])) for place in np.flatnonzero(number)),
        )

    def span(self, arg: Argument) -> tuple[int, int, int]:
        """Base, first byte and byte behind the last; base 0 for numbers and for what is empty."""
        if isinstance(arg, Parameter):
            nbytes = arg.nbytes if arg.kind == KIND_TENSOR else 0
            return (-1 - arg.position, arg.offset, arg.offset + nbytes) if nbytes else (0, 0, 0)
        row = self._outer.lasting_row(arg) if isinstance(arg, Operand) else None
        if row is None:
            return 0, 0, 0
        base, start, end = spans_of(np.frombuffer(row, OPERAND))[0].tolist()
        return base, start, end

    def as_parameter(self, arg: Argument, where: str) -> Parameter:
        """What a parameter would have to be for `arg` to fit exactly; its region is empty where that is open."""
        if isinstance(arg, Parameter):
            return arg
        return parameter_of(np.frombuffer(self._pack(arg, where), OPERAND)[0], self._region_names)

    def _pack(self, arg: Argument, where: str) -> bytes:
        if isinstance(arg, Parameter):
            if arg.owner is not self._owner:
                raise GraphError(f"{where}: parameter {arg.name!r} belongs to another Definition")
            dims = arg.shape
            return PACK_TENSOR.pack(
                KIND_PARAMETER, arg.dtype_code, arg.position, len(dims), arg.offset, *dims, *_ONES[len(dims) :]
            )
        if isinstance(arg, Operand):
            row = self._outer.lasting_row(arg)
            if row is None:
                raise GraphError(
                    f"{where}: only tensors of this builder's regions can be fixed in a Definition; declare a "
                    "parameter for an input or scalar of the step"
                )
            return row
        number = arg.item() if isinstance(arg, np.generic) else arg
        if isinstance(number, float):
            return PACK_FLOAT.pack(KIND_FLOAT, 0, 0, 0, number, *_ONES)
        if isinstance(number, int) and -(1 << 63) <= number < 1 << 63:
            return PACK_TENSOR.pack(KIND_INT, 0, 0, 0, number, *_ONES)
        raise GraphError(
            f"{where}: {shown(arg)} is not a parameter, a tensor of a region, an int of 64 bits or a float"
        )


def parameter_record(parameter: Parameter) -> bytes:
    """A parameter as the Definition's last pool holds it."""
    dims = parameter.shape
    return PACK_TENSOR.pack(parameter.kind, parameter.dtype_code, 0, len(dims), 0, *dims, *_ONES[len(dims) :])
