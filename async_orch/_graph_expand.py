"""The device side: one flat list of kernel calls, with every replay in the place of its GRAPH task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_check import CheckedPools, Ints
from async_orch._graph_format import KIND_PARAMETER, KIND_TENSOR, MAX_EXPANDED, OPERAND
from async_orch._graph_kernels import ALL_WRITABLE, KernelTable, output_flags
from async_orch._graph_load import Loaded
from async_orch.exceptions import ImageCorrupt

__all__ = ["Flat", "expand", "writable_args"]


@dataclass(frozen=True, slots=True)
class Flat:
    """Kernel calls in an order in which they may run.

    Attributes
    ----------
    kernels, arg_counts:
        Of each call.
    args:
        Indices into `operands`, those of call i behind those of call i - 1.
    operands:
        Operand records; in a Definition's own, some stand for parameters.
    sources:
        For each operand, the entry of the image's pool whose value counts, or -1: a constant of a Definition.
    origins, positions:
        For each call, the image's task that it comes from, and its place within that task's replay (0 if a kernel
        call). In a Definition's own, what counts is their number.
    """

    kernels: Ints
    arg_counts: Ints
    args: Ints
    operands: NDArray[np.void]
    sources: Ints
    origins: Ints
    positions: Ints


def expand(loaded: Loaded) -> Flat:
    """The image's graph without GRAPH tasks; `ImageCorrupt` if that would be more than the device takes."""
    done: list[Flat] = []
    for position, definition in enumerate(loaded.definitions):
        done.append(_expanded(definition, loaded.definitions, done, loaded.children[position]))
    return _expanded(loaded.image, loaded.definitions, done, loaded.children[-1])


def writable_args(flat: Flat, table: KernelTable) -> NDArray[np.bool_]:
    """For each argument whether its view may be written; `ImageCorrupt` for an output that may not be."""
    masks = table.summary()[1][flat.kernels] if len(table) else np.zeros(flat.kernels.size, np.int64)
    writable = output_flags(masks, flat.arg_counts, flat.args.size)
    fixed = (flat.operands["kind"] != KIND_TENSOR) | (flat.operands["region"] == 0)
    refused = writable & fixed[flat.args]
    declared = np.repeat(masks != ALL_WRITABLE, flat.arg_counts)
    bad = refused & declared
    if bad.any():
        arg = int(bad.argmax())
        call = int(np.repeat(np.arange(flat.kernels.size), flat.arg_counts)[arg])
        raise ImageCorrupt(
            f"image: args[{arg}] is {flat.args[arg]}, is an output of task {flat.origins[call]} (kernel "
            f"{table.names[flat.kernels[call]]!r}), so it must be a tensor outside the image"
        )
    allowed: NDArray[np.bool_] = writable & ~refused
    return allowed


def _expanded(
    pools: CheckedPools, definitions: tuple[CheckedPools, ...], done: list[Flat], children: tuple[int, ...]
) -> Flat:
    """The flat form of one image or Definition, given that of those it replays."""
    n_tasks = pools.targets.size
    order = np.arange(n_tasks) if pools.order is None else np.array(pools.order, np.int64)
    parts: list[Flat] = []
    n_operands = pools.operands.size
    n_records = n_operands
    start = 0
    for cut in (*np.flatnonzero(pools.replays[order]).tolist(), n_tasks):
        if cut > start:
            parts.append(_calls(pools, order[start:cut]))
            n_records += parts[-1].kernels.size + parts[-1].args.size
        start = cut + 1
        if cut == n_tasks:
            break
        task = int(order[cut])
        place = children[int(pools.targets[task])]
        child = done[place]
        n_records += child.kernels.size + child.args.size + child.operands.size
        if n_records > MAX_EXPANDED:
            raise ImageCorrupt(
                f"{pools.what}: expands to over {MAX_EXPANDED} tasks, arguments and operands at task {task}"
            )
        first = int(pools.arg_starts[task])
        bound = pools.args[first : first + int(pools.arg_counts[task])]
        parts.append(_replayed(child, definitions[place].parameters, pools.operands, bound, task, n_operands))
        n_operands += child.operands.size
    own = np.zeros(0, np.int64)
    parts.append(Flat(own, own, own, np.zeros(0, OPERAND), own, own, own))  # there may be no other
    sources = np.arange(pools.operands.size)
    return Flat(
        np.concatenate([part.kernels for part in parts]),
        np.concatenate([part.arg_counts for part in parts]),
        np.concatenate([part.args for part in parts]),
        _joined([pools.operands, *(part.operands for part in parts)]),
        np.concatenate([sources, *(part.sources for part in parts)]),
        np.concatenate([part.origins for part in parts]),
        np.concatenate([part.positions for part in parts]),
    )


def _joined(records: list[NDArray[np.void]]) -> NDArray[np.void]:
    """Operand records one behind the other; as bytes, since numpy would part the fields that share bytes."""
    joined: NDArray[np.void] = np.concatenate([part.view(np.uint8) for part in records]).view(OPERAND)
    return joined


def _calls(pools: CheckedPools, tasks: Ints) -> Flat:
    """Kernel calls of these tasks on the operands as they are."""
    counts = pools.arg_counts[tasks]
    ends = np.cumsum(counts)
    places = np.repeat(pools.arg_starts[tasks] - (ends - counts), counts) + np.arange(counts.sum())
    nothing = np.zeros(0, np.int64)
    return Flat(
        pools.targets[tasks],
        counts,
        pools.args[places],
        np.zeros(0, OPERAND),
        nothing,
        tasks,
        np.zeros(tasks.size, np.int64),
    )


def _replayed(
    child: Flat, parameters: NDArray[np.void], callers: NDArray[np.void], bound: Ints, task: int, first_operand: int
) -> Flat:
    """A Definition's calls, with what `bound` names among the caller's operands in place of the parameters."""
    operands = child.operands.copy()
    sources = np.full(operands.size, -1, np.int64)
    formal = np.flatnonzero(operands["kind"] == KIND_PARAMETER)
    parameter = operands["region"][formal]
    given = callers[bound[parameter]]
    number = parameters["kind"][parameter] != KIND_TENSOR
    operands["kind"][formal] = given["kind"]
    operands["region"][formal] = given["region"]
    operands["offset"][formal] += given["offset"]  # a number's own is 0, so its bits stay as they are
    sources[formal[number]] = bound[parameter[number]]
    return Flat(
        child.kernels,
        child.arg_counts,
        child.args + first_operand,
        operands,
        sources,
        np.full(child.kernels.size, task, np.int64),
        np.arange(child.kernels.size),
    )
