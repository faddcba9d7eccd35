"""Says what is wrong with a task that a builder does not take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from async_orch._graph_arguments import shown
from async_orch._graph_definition import Definition, Parameter, parameter_of
from async_orch._graph_format import ARG, TASK
from async_orch._graph_operands import HOST_MEMORY, STEP_HANDLES, Operand, OperandRows
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["refuse_output", "refuse_overflow", "require_fit"]


def refuse_output(task: int, kernel: str, position: int, n_args: int) -> NoReturn:
    """Raise `GraphError` for an argument that the kernel writes and cannot."""
    if position >= n_args:
        why = f"the kernel writes it, but only {n_args} arguments are given"
    else:
        why = "the kernel writes it, but it is a scalar or an input in the image, which kernels may only read"
    raise GraphError(f"task {task} ({kernel}), argument {position}: {why}")


def refuse_overflow(
    task: int, pools: tuple[tuple[str, int, int, int], ...], inputs_end: int, image_nbytes: int
) -> NoReturn:
    """Raise `GraphOverflow` with the resource that a task exhausts.

    `pools` are name, used, available and requested of tasks, arguments and dependencies.
    """
    for resource, used, available, requested in pools:
        if used + requested > available:
            raise GraphOverflow(
                f"{resource}: {used} used, {available} available, {requested} more requested by task {task}; "
                f"raise max_{resource}"
            )
    item_nbytes = (TASK.itemsize, ARG.itemsize, ARG.itemsize)
    taken = inputs_end + sum(pool[1] * nbytes for pool, nbytes in zip(pools, item_nbytes, strict=True))
    more = sum(pool[3] * nbytes for pool, nbytes in zip(pools, item_nbytes, strict=True))
    raise GraphOverflow(
        f"image bytes: {taken} used, {image_nbytes} available, {more} more requested by task {task}; "
        "enlarge the slot's image"
    )


def require_fit(task: int, definition: Definition, bound: Sequence[object], rows: OperandRows) -> None:
    """Raise `GraphError` for the first of `bound` that its parameter does not accept."""
    for parameter, operand in zip(definition.parameters, bound, strict=True):
        why = _why_not(parameter, operand, rows, written=parameter.position in definition.outputs)
        if why:
            raise GraphError(f"task {task} ({definition.name}), argument {parameter.name!r}: {why}")


def _why_not(parameter: Parameter, operand: object, rows: OperandRows, *, written: bool) -> str:
    if not isinstance(operand, Operand):
        if isinstance(operand, (int, float, np.generic)):
            return f"it must be {parameter}, but the number {shown(operand)} is bound"
        return HOST_MEMORY if hasattr(operand, "nbytes") else f"{shown(operand)} is not an operand of this builder"
    record = rows.record_of(operand)
    if record is None:
        return (
            "the handle is not one of this builder's, or it came from put(), reserve() or scalar() of an earlier step; "
            "ask for it again after reset()"
        )
    given = parameter_of(record, rows.region_names)
    same = (given.kind, given.dtype_code, given.shape) == (parameter.kind, parameter.dtype_code, parameter.shape)
    if not same or (parameter.region and given.region != parameter.region):
        return f"it must be {parameter}, but {given} is bound"
    if written and operand >= STEP_HANDLES:
        return "the Definition writes it, but it is an input in the image, which kernels may only read"
    return ""
