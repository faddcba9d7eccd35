"""Damaged images: refused, or run like any other; never another exception."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from async_orch.graph import Executor, ImageCorrupt, describe, execute
from tests.graph_support import Bytes, build_sample, make_table, memory, reseal

TABLE = make_table()
SAMPLE = np.zeros(1 << 12, np.uint8)
SAMPLE = SAMPLE[: build_sample(SAMPLE, TABLE)]
BEHIND_INPUTS = 256

flips = st.lists(
    st.tuples(st.integers(0, SAMPLE.size - 1), st.integers(1, 255)), min_size=1, max_size=4, unique_by=lambda f: f[0]
)


def damaged(changes: list[tuple[int, int]]) -> Bytes:
    image = SAMPLE.copy()
    for at, mask in changes:
        image[at] ^= mask
    return image


@given(flips)
@settings(max_examples=300, deadline=None)
def test_flipped_bytes_are_refused_or_are_data(changes: list[tuple[int, int]]) -> None:
    """Bytes flipped outside the inputs are refused; flipped inputs are other inputs, and the graph runs."""
    try:
        execute(damaged(changes), memory(), TABLE)
    except ImageCorrupt:
        refused = True
    else:
        refused = False
    assert refused == any(not 192 <= at < BEHIND_INPUTS for at, _ in changes)


@given(flips)
@settings(max_examples=600, deadline=None)
def test_flips_under_a_right_checksum_are_refused_or_run(changes: list[tuple[int, int]]) -> None:
    """Without the checksum's help the bounds hold: an image is refused, or its tasks run on memory of the regions."""
    image = damaged(changes)
    try:
        reseal(image)
    except ValueError:
        return  # the header's own places are damaged beyond a checksum
    held = np.full(8192, 0xA5, np.uint8)
    regions = {"workspace": held[1024:5120], "output": held[6144:6400]}
    regions["workspace"][:] = regions["output"][:] = 0
    before = image.copy()
    try:
        execute(image, regions, TABLE)
        describe(image, TABLE)
    except ImageCorrupt:
        pass
    np.testing.assert_array_equal(image, before)
    assert (np.concatenate((held[:1024], held[5120:6144], held[6400:])) == 0xA5).all()


@given(st.lists(st.tuples(st.integers(BEHIND_INPUTS, SAMPLE.size - 1), st.integers(1, 255)), max_size=2), st.booleans())
@settings(max_examples=300, deadline=None)
def test_an_executor_refuses_what_execute_refuses(changes: list[tuple[int, int]], twice: bool) -> None:
    """A kept plan changes nothing: the same images are refused, and the others leave the same memory."""
    image = reseal(damaged(changes))
    run = Executor(TABLE)
    run(SAMPLE, memory())
    outcomes = []
    for call in (run, run if twice else lambda i, r: execute(i, r, TABLE), lambda i, r: execute(i, r, TABLE)):
        regions = memory()
        try:
            call(image, regions)
        except ImageCorrupt as error:
            outcomes.append((str(error), b""))
        else:
            outcomes.append(("", b"".join(array.tobytes() for array in regions.values())))
    assert outcomes[0] == outcomes[1] == outcomes[2]


@given(st.binary(max_size=600), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_refused(content: bytes, with_header: bool) -> None:
    """Bytes that nobody built are refused, also behind a good header."""
    image = np.frombuffer(content, np.uint8)
    if with_header:
        image = np.concatenate((SAMPLE[:192], image))
    try:
        execute(image, memory(), TABLE)
    except ImageCorrupt:
        return
    assert image[: SAMPLE.size].tobytes()[256:] == SAMPLE.tobytes()[256:]
