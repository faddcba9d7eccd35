"""The device side: an image with its Definitions, each read from the place that the image names, and checked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_check import CheckedPools, Ints, check_parameters, check_pools
from async_orch._graph_format import (
    ALIGNMENT,
    HEADER_NBYTES,
    KIND_PARAMETER,
    KIND_TENSOR,
    MAX_DEPTH,
    OPERAND,
    WHERE_CARRIED,
    WHERE_RESIDENT,
    Bytes,
    fingerprint,
    require_bytes,
)
from async_orch._graph_header import Pools, read_pools
from async_orch._graph_kernels import KernelTable
from async_orch.exceptions import ImageCorrupt

__all__ = ["Loaded", "load", "read_definitions"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked image and its Definitions, nested ones first.

    `children` are, for each Definition and at last for the image, the places of those that its GRAPH tasks name.
    """

    image: CheckedPools
    definitions: tuple[CheckedPools, ...]
    names: tuple[str, ...]
    children: tuple[tuple[int, ...], ...]


def read_definitions(pools: Pools, resident: Bytes | None) -> list[Bytes]:
    """Private copies of the bytes of every Definition that the image names, carried or resident."""
    copies: list[Bytes] = []
    records: list[tuple[int, int, int, int, int]] = pools.definitions.tolist()
    if not records:
        return copies
    carried_at, n_carried = pools.sections[7]
    for position, (_, offset, nbytes, where, reserved) in enumerate(records):
        if reserved or where not in (WHERE_CARRIED, WHERE_RESIDENT):
            raise ImageCorrupt(
                f"image: definitions.where[{position}] is {where}, {reserved}, must be {WHERE_CARRIED} or "
                f"{WHERE_RESIDENT}, 0"
            )
        if where == WHERE_CARRIED:
            source, base, first, end = pools.content, pools.sections[1].offset, carried_at, carried_at + n_carried
        elif resident is None:
            raise ImageCorrupt(
                f"image: definitions[{position}] lies in resident memory, and the device side was given none; pass it "
                "as definitions="
            )
        else:
            source, base, first, end = require_bytes(resident, "definitions", writable=False), 0, 0, resident.size
        if offset % ALIGNMENT or not first <= offset <= end or nbytes > end - offset:
            raise ImageCorrupt(
                f"image: definitions[{position}] is {nbytes} bytes at {offset}, must lie in {first} to {end}, at a "
                f"multiple of {ALIGNMENT}"
            )
        copies.append(source[offset - base :][:nbytes].copy())
    return copies


def load(pools: Pools, contents: list[Bytes], sizes: Ints, table: KernelTable) -> Loaded:
    """Check the image, its Definitions, and that every replay binds what its Definition's parameters ask for.

    `sizes` are the bytes of each region; of the image's, which is number 0, the header tells.
    """
    user = pools.sections[0]
    first = np.zeros(sizes.size, np.int64)
    first[0] = user.offset
    ends = sizes.copy()
    ends[0] = user.offset + user.n_records
    image = check_pools(pools, (first, ends), table, pools.definitions.size)

    known: dict[int, int] = {}
    checked: list[CheckedPools] = []
    names: list[str] = []
    depths: list[int] = []
    children: list[tuple[int, ...]] = []
    nowhere = np.zeros(sizes.size, np.int64)
    own_ends = sizes.copy()
    own_ends[0] = 0  # a Definition has no inputs of its own
    for position, (stored, content) in enumerate(zip(pools.definitions["fingerprint"].tolist(), contents, strict=True)):
        actual = fingerprint(content)
        if actual != stored:
            raise ImageCorrupt(
                f"image: definitions.fingerprint[{position}] is {stored:#018x}, the bytes give {actual:#018x}; upload "
                "what place_definitions() gives before the image runs"
            )
        if stored in known:
            raise ImageCorrupt(f"image: definitions.fingerprint[{position}] repeats that of {known[stored]}")
        one = _definition(position, content, (nowhere, own_ends), pools, table)
        uses = one[1].definitions["fingerprint"].tolist()
        for number, used in enumerate(uses):
            if used not in known:
                raise ImageCorrupt(
                    f"{one[1].what}: definitions.fingerprint[{number}] is {used:#018x}, must be that of a Definition "
                    "before it in the image"
                )
        own = tuple(known[used] for used in uses)
        depths.append(1 + max([depths[place] for place in own], default=0))
        if depths[-1] > MAX_DEPTH:
            raise ImageCorrupt(f"{one[1].what}: is nested {depths[-1]} deep, must be at most {MAX_DEPTH}")
        _check_bindings(one[0], [checked[place] for place in own])
        known[stored] = position
        checked.append(one[0])
        names.append(one[2])
        children.append(own)
    _check_bindings(image, checked)
    return Loaded(image, tuple(checked), tuple(names), (*children, tuple(range(len(checked)))))


def _definition(
    position: int, content: Bytes, bounds: tuple[Ints, Ints], image: Pools, table: KernelTable
) -> tuple[CheckedPools, Pools, str]:
    what = f"definition {position}"
    pools = read_pools(content, what, definition=True)
    if pools.regions.tobytes() != image.regions.tobytes():
        raise ImageCorrupt(f"{what}: its regions differ from the image's; record it with the builder of the image")
    parameters = pools.tail.view(OPERAND)
    check_parameters(what, parameters)
    checked = check_pools(pools, bounds, table, pools.definitions.size, parameters)
    name = content[HEADER_NBYTES:][: pools.sections[0].n_records].tobytes().decode("utf-8", "replace")
    return checked, pools, name


def _check_bindings(caller: CheckedPools, definitions: list[CheckedPools]) -> None:
    """Each replay must bind as many operands as there are parameters, of exactly their kinds, dtypes and shapes."""
    replays = np.flatnonzero(caller.replays)
    for number in np.unique(caller.targets[replays]).tolist():
        parameters = definitions[number].parameters
        tasks = replays[caller.targets[replays] == number]
        counts = caller.arg_counts[tasks]
        if (counts != parameters.size).any():
            task = int(tasks[(counts != parameters.size).argmax()])
            raise ImageCorrupt(
                f"{caller.what}: tasks.arg_count[{task}] is {caller.arg_counts[task]}, must be {parameters.size}, the "
                f"parameters of {definitions[number].what}"
            )
        places = caller.args[caller.arg_starts[tasks][:, None] + np.arange(parameters.size)]
        bound = caller.operands[places]
        wrong = _kinds(caller, bound) != parameters["kind"]
        tensor = parameters["kind"] == KIND_TENSOR
        for field in ("dtype", "ndim"):
            wrong |= tensor & (bound[field] != parameters[field])
        wrong |= tensor & (bound["shape"] != parameters["shape"]).any(axis=2)
        if wrong.any():
            row, column = (int(index) for index in np.argwhere(wrong)[0])
            raise ImageCorrupt(
                f"{caller.what}: task {tasks[row]} binds operand {places[row, column]} to parameter {column} of "
                f"{definitions[number].what}, which differs in kind, dtype or shape"
            )


def _kinds(caller: CheckedPools, bound: NDArray[np.void]) -> NDArray[np.uint8]:
    """The kinds of operands, with those of the caller's own parameters looked up."""
    kinds: NDArray[np.uint8] = bound["kind"].copy()
    formal = kinds == KIND_PARAMETER
    kinds[formal] = caller.parameters["kind"][bound["region"][formal]]
    return kinds
