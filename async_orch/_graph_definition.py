"""Definitions: recorded pieces of a graph, which replays run on other arguments, and the set that a program has."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import DEFINITION_NAME_NBYTES, DTYPES, KIND_INT, KIND_TENSOR, Bytes, aligned
from async_orch._graph_infer import Access
from async_orch.exceptions import GraphError, GraphOverflow

__all__ = ["Definition", "DefinitionSet", "Parameter", "Template", "check_name", "parameter_of"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """Stands, while a Definition is recorded, for a tensor or number that each replay binds, or a part of a tensor.

    Attributes
    ----------
    name:
        By which replays bind it.
    position:
        Its place among the Definition's parameters.
    kind:
        0 for a tensor, 1 for an int, 2 for a float.
    shape, dtype_code:
        Of a tensor, or of the part; the code is a position in the format's list of element types.
    offset:
        First byte of the part within the bound tensor.
    region:
        The region that a bound tensor must lie in, empty for any.
    """

    name: str
    position: int
    kind: int
    shape: tuple[int, ...] = ()
    dtype_code: int = 0
    offset: int = 0
    region: str = ""
    owner: object = field(default=None, repr=False, compare=False)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Element type of a tensor."""
        return DTYPES[self.dtype_code]

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor, or of the part."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        if self.kind != KIND_TENSOR:
            return "an int" if self.kind == KIND_INT else "a float"
        where = f" in region {self.region!r}" if self.region else ""
        return f"a tensor of {DTYPES[self.dtype_code]}, shape {self.shape}{where}"


@dataclass(frozen=True, eq=False, repr=False)
class Definition:
    """A recorded graph. Made by `GraphBuilder.record`, used by `GraphBuilder.replay`; immutable.

    Attributes
    ----------
    name:
        As given to `record`.
    parameters:
        What a replay binds, in order.
    outputs:
        Positions of the parameters that some task writes, or may write.
    n_tasks:
        Kernel calls of one replay, those of nested replays included.
    n_records:
        Tasks, arguments and operands of one replay, together; what the device's limit counts.
    content:
        The bytes that the device reads; read-only.
    fingerprint:
        64-bit hash of `content`, by which images name the Definition.
    accesses:
        What a replay reads before it writes it, and what it writes; empty without ``infer``.
    number:
        Its place among the builder's Definitions.
    numbers:
        Positions of the parameters that are numbers.
    depth:
        1, or one more than that of the deepest Definition that it replays.
    uses:
        Numbers of the Definitions that this one replays, directly or not.
    """

    name: str
    parameters: tuple[Parameter, ...]
    outputs: frozenset[int]
    n_tasks: int
    n_records: int
    content: Bytes
    fingerprint: int
    accesses: tuple[Access, ...]
    number: int
    depth: int
    uses: frozenset[int]
    names: tuple[str, ...]
    numbers: tuple[int, ...]
    template: Template | None
    owner: object

    def __repr__(self) -> str:
        return f"<Definition {self.name!r}: {self.n_tasks} tasks, {len(self.parameters)} parameters, {self.nbytes} B>"

    @property
    def nbytes(self) -> int:
        """Bytes of the Definition on the device."""
        return self.content.nbytes


@dataclass(frozen=True, slots=True)
class Template:
    """A Definition's tasks with ids, and places in the pools, counted from 0, and what its operands become.

    `handles` has an entry for each operand: its handle where that is fixed. `made` are the operands that each use makes
    anew, at the places `made_at`: constants, and parts of tensors, which `parts` picks out of them. `numbers` are place
    and parameter of the others.
    """

    tasks: NDArray[np.uint32]
    args: NDArray[np.int64]
    fanin: NDArray[np.int32]
    handles: NDArray[np.int64]
    made: NDArray[np.void]
    made_at: NDArray[np.int64]
    parts: NDArray[np.int64]
    numbers: tuple[tuple[int, int], ...]


class DefinitionSet:
    """The Definitions of one builder: each content once, and where the placed ones lie in resident memory."""

    def __init__(self, max_definitions: int) -> None:
        self.items: list[Definition] = []
        self.resident_at: list[int] = []
        """Offsets of the first Definitions in resident memory; those behind them are not placed."""
        self._max = max_definitions
        self._by_key: dict[tuple[str, Hashable], Definition] = {}
        self._by_content: dict[bytes, Definition] = {}

    def with_key(self, name: str, key: Hashable) -> Definition | None:
        """The Definition recorded under `name` and `key`."""
        return None if key is None else self._by_key.get((name, key))

    def add(self, definition: Definition, key: Hashable) -> Definition:
        """Keep a Definition, or give the one that is kept already with the same bytes, the name among them."""
        content = definition.content.tobytes()
        known = self._by_content.get(content)
        if known is None:
            if len(self.items) >= self._max:
                raise GraphOverflow(
                    f"definitions: {len(self.items)} used, {self._max} available, 1 more requested by "
                    f"{definition.name!r}; raise max_definitions, or record fewer different structures"
                )
            known = self._by_content[content] = definition
            self.items.append(definition)
        if key is not None:
            self._by_key[definition.name, key] = known
        return known

    def closure(self, numbers: Iterable[int]) -> list[int]:
        """The Definitions used by these, directly or not, and these; nested ones first."""
        found: set[int] = set()
        for number in numbers:
            found.add(number)
            found |= self.items[number].uses
        return sorted(found)  # a Definition is recorded after those that it replays

    def place(self) -> Bytes:
        """Give every Definition its place in resident memory, and all of their bytes; old places stay."""
        end = 0
        places: list[int] = []
        for definition in self.items:
            places.append(end)
            end = aligned(end + definition.nbytes)
        content = np.zeros(end, np.uint8)
        for start, definition in zip(places, self.items, strict=True):
            content[start : start + definition.nbytes] = definition.content
        self.resident_at = places
        return content


def check_name(name: str) -> bytes:
    """A Definition's name as the format holds it; `GraphError` if it cannot."""
    encoded = name.encode()
    if not encoded or len(encoded) > DEFINITION_NAME_NBYTES or b"\0" in encoded:
        raise GraphError(f"Definition name {name!r} must have 1 to {DEFINITION_NAME_NBYTES} bytes and no NUL")
    return encoded


def parameter_of(row: np.void, region_names: Sequence[str]) -> Parameter:
    """What a parameter would have to be for the operand in this record to fit exactly."""
    kind, ndim = int(row["kind"]), int(row["ndim"])
    region = region_names[int(row["region"])] if kind == KIND_TENSOR else ""
    return Parameter("", 0, kind, tuple(row["shape"][:ndim].tolist()), int(row["dtype"]), region=region)
