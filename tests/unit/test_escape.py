"""What holds memory of the output view, and how deep that is looked for."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from async_orch._escape import MAX_DEPTH, escapes

VIEW = np.zeros(16, np.uint8)


class Once(dict[str, Any]):
    """Its values can be iterated once, like those of a caller's own mapping may."""

    def values(self) -> Any:
        return iter(list(super().values()))


class Parts(list[Any]):
    """A sequence of the caller's own that counts how often it is iterated."""

    iterated = 0

    def __iter__(self) -> Iterator[Any]:
        type(self).iterated += 1
        return super().__iter__()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda part: part,
        memoryview,
        lambda part: [1, "two", part],
        lambda part: (3.0, part),
        lambda part: {"a": 1, "b": part},
        lambda part: MappingProxyType({"a": part}),
        lambda part: Once(a=1, b=part),
        lambda part: Parts((1, part)),
        lambda part: [[(1, {"x": part})]],
    ],
    ids=["array", "memoryview", "list", "tuple", "dict", "mapping", "values once", "a list's class", "nested"],
)
def test_memory_of_the_view_is_found_and_a_copy_is_none(wrap: Any) -> None:
    """In arrays, memoryviews, and the containers of them."""
    assert escapes(wrap(VIEW[4:8]), VIEW)
    assert not escapes(wrap(VIEW[4:8].copy()), VIEW)


@pytest.mark.parametrize("value", [None, 7, "text", b"bytes", 1.5, np.int64(3), (1, 2), [], {}, {"a": [1, (2, None)]}])
def test_plain_values_hold_no_memory_of_anybodys(value: Any) -> None:
    """Numbers, text and containers of them."""
    assert not escapes(value, VIEW)


def test_containers_are_looked_into_to_a_depth() -> None:
    """As many as `MAX_DEPTH` around each other, and no deeper: a list may hold itself."""
    value: Any = VIEW
    for _ in range(MAX_DEPTH):
        value = [value]
    assert escapes(value, VIEW)
    assert not escapes([value], VIEW)
    endless: list[Any] = []
    endless.append(endless)
    assert not escapes(endless, VIEW)


def test_a_sequence_is_iterated_once() -> None:
    """It may be the caller's own, and need not give the same twice."""
    Parts.iterated = 0
    assert escapes(Parts((1, VIEW)), VIEW)
    assert Parts.iterated == 1
