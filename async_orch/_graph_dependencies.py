"""Dependencies of a step's graph: derived once for each structure, and given again while it stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_definition import Definition
from async_orch._graph_format import TASK_GRAPH, structure_mask
from async_orch._graph_infer import Access, Derivation, Ints, refuse_overlaps, spans_of
from async_orch._graph_kernels import ALL_WRITABLE, KernelTable, output_flags
from async_orch.exceptions import GraphError

__all__ = ["DependencyInference", "replay_accesses"]

Words = NDArray[np.uint32]
"""Tasks as rows of six words, as in the image; the kernel of a GRAPH task is its Definition's number."""


class DependencyInference:
    """Derives fan-ins, and gives the last answer again while the same tasks touch the same bytes.

    Parameters
    ----------
    table:
        The kernels.
    regions:
        Names of the regions, the image first.
    scratch:
        Names of those whose contents are undefined when the graph starts.
    """

    def __init__(self, table: KernelTable, regions: Sequence[str], scratch: frozenset[str]) -> None:
        self._table = table
        self._regions = regions
        self._scratch = frozenset(number for number, name in enumerate(regions) if name in scratch)
        self._given: tuple[Words, NDArray[np.int32]] | None = None
        self._answer: tuple[Words, NDArray[np.int32]] = (np.zeros((0, 6), np.uint32), np.zeros(0, np.int32))
        self._args: Ints = np.zeros(0, np.int64)
        self._structure = np.zeros(0, np.bool_)
        self._operands = np.zeros(0, np.uint8)

    def __call__(
        self,
        tasks: Words,
        args: Ints,
        operands: NDArray[np.void],
        fanin: NDArray[np.int32],
        definitions: Sequence[Definition],
    ) -> tuple[Words, NDArray[np.int32]]:
        """The task pool and the fan-in pool with the inferred dependencies added; not to be changed.

        `args` index `operands`; `fanin` are the explicit dependencies, which `tasks` refers to. Raises `GraphError`
        for a kernel that does not declare its outputs, a read of scratch bytes that no earlier task wrote, and
        arguments of a replay that overlap.
        """
        rows = operands.view(np.uint8)
        if (
            self._given is None
            or not np.array_equal(tasks, self._given[0])
            or not np.array_equal(fanin, self._given[1])
            or not np.array_equal(args, self._args)
            or rows.size != self._operands.size
            or ((rows != self._operands) & self._structure).any()
        ):
            self._given = None
            self._answer = self._derived(tasks, args, operands, fanin, definitions)
            self._given = (tasks, fanin)
            self._args, self._operands, self._structure = args, rows, structure_mask(operands)
        return self._answer

    def _derived(
        self,
        tasks: Words,
        args: Ints,
        operands: NDArray[np.void],
        fanin: NDArray[np.int32],
        definitions: Sequence[Definition],
    ) -> tuple[Words, NDArray[np.int32]]:
        is_replay = tasks[:, 0] == TASK_GRAPH
        masks = np.where(is_replay, 0, self._table.summary()[1][np.where(is_replay, 0, tasks[:, 1])])
        if (masks == ALL_WRITABLE).any():
            task = int((masks == ALL_WRITABLE).argmax())
            name = self._table.names[tasks[task, 1]]
            raise GraphError(f"task {task} ({name}): infer=True needs outputs=(...) in the kernel's registration")
        arg_counts = tasks[:, 5].astype(np.int64)
        flags: list[bool] = output_flags(masks, arg_counts, args.size).tolist()
        spans: list[list[int]] = spans_of(operands)[args].tolist()
        explicit: list[int] = fanin.tolist()
        derivation = Derivation()
        counts: list[int] = []
        found: list[int] = []
        for task, (kind, number, fanin_at, n_fanin, arg_at, n_args) in enumerate(tasks.tolist()):
            bound = spans[arg_at : arg_at + n_args]
            if kind == TASK_GRAPH:
                definition = definitions[number]
                accesses = replay_accesses(definition, [(base, start) for base, start, _ in bound])
                refuse_overlaps(accesses, definition.names, f"task {task} ({definition.name})")
            else:
                accesses = [
                    Access(base, start, end, flags[arg_at + position], position)
                    for position, (base, start, end) in enumerate(bound)
                    if base
                ]
            producers, unwritten = derivation.add(task, accesses, explicit[fanin_at : fanin_at + n_fanin])
            for access in unwritten:
                if access.base in self._scratch:
                    self._refuse_unwritten(task, kind, number, access, definitions)
            counts.append(len(producers))
            found += producers
        answer = tasks.copy()
        answer[:, 3] = counts
        answer[:, 2] = np.cumsum(answer[:, 3]) - answer[:, 3]
        return answer, np.array(found, np.int32)

    def _refuse_unwritten(
        self, task: int, kind: int, number: int, access: Access, definitions: Sequence[Definition]
    ) -> NoReturn:
        if kind == TASK_GRAPH:
            definition = definitions[number]
            name = definition.name
            what = "a tensor fixed in it" if access.argument < 0 else f"argument {definition.names[access.argument]!r}"
        else:
            name, what = self._table.names[number], f"argument {access.argument}"
        raise GraphError(
            f"task {task} ({name}), {what}: reads bytes {access.start} to {access.end} of region "
            f"{self._regions[access.base]!r}, which no earlier task wrote; write them first, or do not declare the "
            "region as scratch"
        )


def replay_accesses(definition: Definition, bound: Sequence[tuple[int, int]]) -> list[Access]:
    """What one replay reads and writes; `bound` are base and first byte of what each parameter is bound to."""
    accesses: list[Access] = []
    for access in definition.accesses:
        if access.base >= 0:
            accesses.append(access)
            continue
        base, offset = bound[access.argument]
        if base:
            accesses.append(access._replace(base=base, start=offset + access.start, end=offset + access.end))
    return accesses
