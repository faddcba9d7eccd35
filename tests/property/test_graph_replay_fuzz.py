"""Damaged images and Definitions: refused, or run within the memory of the regions; never another exception.

`ASYNC_ORCH_PROOFS=full` takes twenty times as many.
"""

from __future__ import annotations

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from async_orch.graph import Executor, ImageCorrupt, describe, execute, unroll
from tests.graph_replay_support import REGIONS, build_replays, make_builder, make_table, memory, reseal_definitions
from tests.graph_support import Bytes

TABLE = make_table()
EXAMPLES = 3000 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 150


def samples() -> dict[bool, tuple[Bytes, Bytes]]:
    """Image and Definitions, carried (False) and resident (True)."""
    builder = make_builder(TABLE)
    image = np.zeros(1 << 14, np.uint8)
    carried = image[: build_replays(builder, image)].copy()
    definitions = builder.place_definitions()
    placed = image[: build_replays(builder, image)].copy()
    return {False: (carried, np.zeros(0, np.uint8)), True: (placed, definitions)}


SAMPLES = samples()
BEHIND_INPUTS = 256
flips = st.lists(
    st.tuples(st.integers(0, 1 << 13), st.integers(1, 255)), min_size=1, max_size=4, unique_by=lambda f: f[0]
)


def damaged(changes: list[tuple[int, int]], placed: bool) -> tuple[Bytes, Bytes, list[int]]:
    """Copies with bytes flipped in image and Definitions, and where they were, counted over both."""
    image, definitions = (array.copy() for array in SAMPLES[placed])
    size = image.size + definitions.size
    positions = []
    for given_at, mask in changes:
        at = given_at % size
        positions.append(at)
        target = image if at < image.size else definitions
        target[at if at < image.size else at - image.size] ^= mask
    return image, definitions, positions


@given(flips, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_flipped_bytes_are_refused_or_are_data(changes: list[tuple[int, int]], placed: bool) -> None:
    """Bytes flipped outside the inputs are refused, in Definitions as well; flipped inputs are other inputs."""
    image, definitions, positions = damaged(changes, placed)
    same = np.array_equal(image, SAMPLES[placed][0]) and np.array_equal(definitions, SAMPLES[placed][1])
    try:
        execute(image, memory(), TABLE, definitions=definitions)
    except ImageCorrupt:
        refused = True
    else:
        refused = False
    assert same or refused == any(not 192 <= at < BEHIND_INPUTS for at in positions)


@given(flips, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_flips_under_right_checksums_are_refused_or_run(changes: list[tuple[int, int]], placed: bool) -> None:
    """Without the help of checksums and fingerprints the bounds hold: refused, or run on memory of the regions."""
    image, definitions, _ = damaged(changes, placed)
    try:
        reseal_definitions(image, definitions)
    except ValueError:
        return  # the places themselves are damaged beyond a checksum
    held = np.full(4096, 0xA5, np.uint8)
    regions = {}
    start = 512
    for name, nbytes in REGIONS.items():
        regions[name] = held[start : start + nbytes]
        regions[name][:] = 0
        start += nbytes + 512
    before = (image.copy(), definitions.copy())
    try:
        execute(image, regions, TABLE, definitions=definitions)
        describe(image, TABLE)
        unroll(image, TABLE, definitions=definitions)
    except ImageCorrupt:
        pass
    np.testing.assert_array_equal(image, before[0])
    np.testing.assert_array_equal(definitions, before[1])
    for array in regions.values():
        array[:] = 0xA5
    assert (held == 0xA5).all()


@given(flips, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_an_executor_refuses_what_execute_refuses(changes: list[tuple[int, int]], placed: bool) -> None:
    """A kept plan changes nothing: the same images are refused, and the others leave the same memory."""
    image, definitions, _ = damaged(changes, placed)
    try:
        reseal_definitions(image, definitions)
    except ValueError:
        return
    run = Executor(TABLE)
    good, resident = SAMPLES[placed]
    run(good, memory(), definitions=resident)
    outcomes = []
    for call in (run, run, Executor(TABLE)):
        regions = memory()
        try:
            call(image, regions, definitions=definitions)
        except ImageCorrupt as error:
            outcomes.append((str(error), b""))
        else:
            outcomes.append(("", b"".join(array.tobytes() for array in regions.values())))
    assert outcomes[0] == outcomes[1] == outcomes[2]
