"""`KernelTable`: names, ids and signatures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_orch.graph import GraphError, KernelTable
from tests.graph_support import make_table


def test_kernels_are_numbered_in_order_of_registration() -> None:
    """Ids count from 0, the decorator gives the function back, and names can be looked up."""
    table = KernelTable()

    def first() -> None: ...

    assert table.kernel("first")(first) is first
    assert table.add("second", lambda x: None, outputs=(0,)) == 1
    assert table.names == ("first", "second")
    assert (len(table), "first" in table, "third" in table) == (2, True, False)
    assert table.id_of("second") == 1
    with pytest.raises(GraphError, match=r"unknown kernel 'third'; the table has: first, second"):
        table.id_of("third")
    assert repr(table) == "KernelTable(first, second)"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda a, b: None, 2),
        (lambda: None, 0),
        (lambda *a: None, -1),
        (lambda a, b=1: None, -1),
        (lambda a, *, b=1: None, 1),
        (np.add, -1),
    ],
)
def test_the_argument_count_comes_from_the_signature(function: Any, expected: int) -> None:
    """A fixed signature fixes the count; defaults, ``*args`` and unreadable signatures leave it open."""
    table = KernelTable()
    table.add("k", function)
    table.add("stated", function, n_args=5)
    assert [entry.n_args for entry in table.entries] == [expected, 5]


@pytest.mark.parametrize(
    ("name", "function", "options", "message"),
    [
        ("add", lambda: None, {}, r"'add' is taken"),
        ("", lambda: None, {}, r"'' is empty"),
        ("k", lambda a: None, {"outputs": (1,)}, r"output positions \(1,\) must lie in 0 to 0"),
        ("k", lambda *a: None, {"outputs": (62,)}, r"must lie in 0 to 61"),
        ("k", lambda *a: None, {"outputs": (-1,)}, r"must lie in 0 to 61"),
        ("k", lambda *, a: None, {}, r"required keyword argument"),
    ],
)
def test_a_wrong_registration_is_refused(name: str, function: Any, options: dict[str, Any], message: str) -> None:
    """Taken and empty names, impossible positions and kernels that cannot be called are refused."""
    with pytest.raises(GraphError, match=message):
        make_table().add(name, function, **options)


def test_the_fingerprint_tells_tables_apart() -> None:
    """Equal registrations have equal fingerprints; a name, an order, a count or an output makes another."""

    def table(*entries: tuple[str, int, tuple[int, ...] | None]) -> int:
        made = KernelTable()
        for name, n_args, outputs in entries:
            made.add(name, lambda *a: None, n_args=n_args, outputs=outputs)
        return made.fingerprint

    base = table(("a", 1, None), ("b", 2, (0,)))
    assert base == table(("a", 1, None), ("b", 2, (0,)))
    others = {
        table(("b", 2, (0,)), ("a", 1, None)),
        table(("a", 1, ()), ("b", 2, (0,))),
        table(("a", 1, None), ("b", 3, (0,))),
        table(("a", 1, None), ("c", 2, (0,))),
        table(("a", 1, None)),
    }
    assert len(others | {base}) == 6
