"""The table that gives each kernel a name, a small integer id and a signature."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from async_orch.exceptions import GraphError

__all__ = ["ALL_WRITABLE", "Kernel", "KernelTable", "output_flags"]

Kernel = Callable[..., object]
"""Called with the task's arguments in order: numpy views for tensors, `int` or `float` for scalars."""

_K = TypeVar("_K", bound=Callable[..., Any])

MAX_OUTPUT_POSITION = 61  # one bit for each position in an int64, one more for "every tensor"
ALL_WRITABLE = -1  # every bit set: a kernel that does not say what it writes may write all


class KernelEntry(NamedTuple):
    """One kernel: its id, its callable, its number of arguments (-1: any) and its output positions."""

    id: int
    name: str
    function: Kernel
    n_args: int
    outputs: tuple[int, ...] | None


class KernelTable:
    """Kernels by name and by id (their order of registration).

    Host and device side must register the same kernels in the same order; the image carries the table's
    `fingerprint`, so that a device with another table refuses it.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, KernelEntry] = {}
        self.entries: list[KernelEntry] = []
        self._summary: tuple[NDArray[np.int64], NDArray[np.int64], int] | None = None

    def kernel(
        self, name: str, *, outputs: Sequence[int] | None = None, n_args: int | None = None
    ) -> Callable[[_K], _K]:
        """Decorator form of `add`; gives the function back unchanged."""

        def register(function: _K) -> _K:
            self.add(name, function, outputs=outputs, n_args=n_args)
            return function

        return register

    def add(
        self, name: str, function: Kernel, *, outputs: Sequence[int] | None = None, n_args: int | None = None
    ) -> int:
        """Register `function` under `name` and return its id.

        Parameters
        ----------
        outputs:
            Positions (0 to 61) of the arguments that the kernel writes. All other tensors then arrive read-only.
            ``None``: not declared, every tensor outside the image arrives writable, and `GraphBuilder` cannot
            infer dependencies.
        n_args:
            Number of arguments. Left out, it is taken from the function's signature where that is fixed;
            a kernel with defaults or ``*args`` accepts any number, -1 says so explicitly.

        Raises `GraphError` for a name that is taken and for positions that cannot be.
        """
        if not name or name in self.by_name:
            raise GraphError(f"kernel name {name!r} is {'taken' if name else 'empty'}; each kernel needs its own")
        count = _fixed_arity(function) if n_args is None else n_args
        written = None if outputs is None else tuple(sorted(set(outputs)))
        if written:
            limit = count - 1 if count >= 0 else MAX_OUTPUT_POSITION
            limit = min(limit, MAX_OUTPUT_POSITION)
            if written[0] < 0 or written[-1] > limit:
                raise GraphError(f"kernel {name!r}: output positions {written} must lie in 0 to {limit}")
        entry = KernelEntry(len(self.entries), name, function, count, written)
        self.entries.append(entry)
        self.by_name[name] = entry
        self._summary = None
        return entry.id

    def id_of(self, name: str) -> int:
        """The id of the kernel called `name`; `GraphError` lists the kernels there are if it is unknown."""
        entry = self.by_name.get(name)
        if entry is None:
            raise GraphError(self.unknown(name))
        return entry.id

    def unknown(self, name: str) -> str:
        """What to tell somebody who asked for a kernel that is not in the table."""
        return f"unknown kernel {name!r}; the table has: {', '.join(self.by_name) or 'none'}"

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels' names in the order of their ids."""
        return tuple(self.by_name)

    @property
    def fingerprint(self) -> int:
        """64-bit hash of all names, argument counts and output positions, in order."""
        return self.summary()[2]

    def summary(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """For each kernel its argument count and its bit mask of outputs, and the fingerprint; computed once."""
        if self._summary is None:
            masks = [
                ALL_WRITABLE if entry.outputs is None else sum(1 << position for position in entry.outputs)
                for entry in self.entries
            ]
            text = "\n".join(f"{entry.name}\0{entry.n_args}\0{entry.outputs}" for entry in self.entries)
            digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
            counts = np.array([entry.n_args for entry in self.entries], np.int64)
            self._summary = (counts, np.array(masks, np.int64), int.from_bytes(digest, "little"))
        return self._summary

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    def __repr__(self) -> str:
        return f"KernelTable({', '.join(self.by_name)})"


def output_flags(masks: NDArray[np.int64], arg_counts: NDArray[np.int64], n_args: int) -> NDArray[np.bool_]:
    """For each entry of the argument pool, whether its task's kernel writes it; `masks` has one entry a task."""
    ends = np.cumsum(arg_counts)
    positions = np.arange(n_args) - np.repeat(ends - arg_counts, arg_counts)
    flags: NDArray[np.bool_] = (np.repeat(masks, arg_counts) >> np.minimum(positions, 62)) & 1 != 0
    return flags


def _fixed_arity(function: Kernel) -> int:
    """The number of positional arguments, or -1 where the signature leaves it open or cannot be read."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # numpy ufuncs and some built-in functions have none
        return -1
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters):
        raise GraphError(f"kernel {function!r} has a required keyword argument; kernels are called by position only")
    fixed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in fixed]
    has_rest = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if has_rest or any(p.default is not p.empty for p in positional):
        return -1
    return len(positional)
