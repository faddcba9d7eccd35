"""Images and Definitions with one wrong field under right checksums: what the device side says about each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_orch._graph_format import ARG, DEFINITION, FANIN, OPERAND, REGION, TASK
from async_orch.graph import Definition, Executor, ImageCorrupt, Recorder, execute, unroll
from tests.graph_replay_support import build_replays, make_builder, make_table, memory, reseal_definitions
from tests.graph_support import Bytes, pool, reseal, set_field


def sample() -> Bytes:
    """An image that carries the Definitions layer (number 0) and pair (1)."""
    image = np.zeros(1 << 14, np.uint8)
    return image[: build_replays(make_builder(make_table()), image)]


def definition(image: Bytes, number: int) -> Bytes:
    """The bytes of a carried Definition, writable."""
    record = pool(image, 6, DEFINITION)[number]
    return image[int(record["offset"]) :][: int(record["nbytes"])]


IMAGE_CASES: list[tuple[int, Any, str, int, Any, str]] = [
    (2, TASK, "kind", 2, 2, r"image: tasks.kind\[2\] is 2, must be 0 \(a kernel call\) or 1 \(a replay\)"),
    (2, TASK, "kind", 2, 1, r"image: tasks.arg_count\[2\] is 3, must be 4, the parameters of definition 1"),
    (2, TASK, "kernel", 0, 2, r"image: tasks.kernel\[0\] is 2, must be below 2, the Definitions named"),
    (2, TASK, "kernel", 0, 0, r"image: task 0 binds operand \d+ to parameter 1 of definition 0, which differs in kind"),
    (5, OPERAND, "dtype", 0, 6, r"image: task 1 binds operand 0 to parameter 0 of definition 0, which differs in kind"),
    (5, OPERAND, "kind", 0, 3, r"image: operands.kind\[0\] is 3, must be at most 2"),
    (4, ARG, "", 2, 4, r"image: task 0 binds operand 4 to parameter 2 of definition 1, which differs in kind"),
    (6, DEFINITION, "where", 0, 2, r"image: definitions.where\[0\] is 2, 0, must be 0 or 1, 0"),
    (6, DEFINITION, "reserved", 1, 1, r"image: definitions.where\[1\] is 0, 1, must be 0 or 1, 0"),
    (6, DEFINITION, "where", 0, 1, r"image: definitions\[0\] lies in resident memory, and the device side was given n"),
    (6, DEFINITION, "offset", 1, 64, r"image: definitions\[1\] is \d+ bytes at 64, must lie in \d+ to \d+"),
    (6, DEFINITION, "offset", 1, 1 << 63, r"image: definitions\[1\] is \d+ bytes at 9223372036854775808"),
    (6, DEFINITION, "nbytes", 1, 1 << 63, r"image: definitions\[1\] is 9223372036854775808 bytes at"),
    (6, DEFINITION, "nbytes", 1, 100, r"image: definitions.fingerprint\[1\] is 0x[0-9a-f]{16}, the bytes give 0x"),
]


@pytest.mark.parametrize(("index", "record", "field", "row", "value", "message"), IMAGE_CASES)
def test_a_wrong_field_of_an_image_is_named(
    index: int, record: Any, field: str, row: int, value: Any, message: str
) -> None:
    """An image with replays, a right checksum and one wrong field is refused, with field, value and bound."""
    image = sample()
    set_field(pool(image, index, record), field, row, value)
    reseal(image)
    refuse(image, message)


DEFINITION_CASES: list[tuple[int, int, Any, str, int, Any, str]] = [
    (0, 1, REGION, "nbytes", 1, 5, r"definition 0: its regions differ from the image's"),
    (0, 2, TASK, "kind", 0, 1, r"definition 0: tasks.kind\[0\] is 1, must be 0 \(a kernel call\)"),
    (0, 2, TASK, "kernel", 0, 9, r"definition 0: tasks.kernel\[0\] is 9, must be below 2"),
    (0, 3, FANIN, "", 0, 1, r"definition 0: fanin has a cycle: 2 of 3 tasks can never run"),
    (0, 4, ARG, "", 0, 77, r"definition 0: args\[0\] is 77, must lie in 0 to"),
    (0, 5, OPERAND, "region", 0, 4, r"definition 0: operands.region\[0\] is 4, must be below 4, the parameters"),
    (0, 5, OPERAND, "offset", 0, 4, r"definition 0: operands.offset\[0\] is 4, must lie in 0 to 0 .* in parameter 0"),
    (0, 5, OPERAND, "region", 0, 3, r"definition 0: operands.offset\[0\] is 0, is a part of a number"),
    (0, 5, OPERAND, "dtype", 0, 11, r"definition 0: operands.dtype\[0\] is 11, has larger items than its parameter"),
    (0, 5, OPERAND, "kind", 0, 4, r"definition 0: operands.kind\[0\] is 4, must be at most 3"),
    (0, 5, OPERAND, "region", 2, 0, r"definition 0: operands.offset\[2\] is 512, must lie in 0 to -16"),
    (0, 7, OPERAND, "kind", 0, 3, r"definition 0: parameters.kind\[0\] is 3, must be at most 2"),
    (0, 7, OPERAND, "offset", 0, 64, r"definition 0: parameters.offset\[0\] is 64, must be 0"),
    (0, 7, OPERAND, "region", 0, 1, r"definition 0: parameters.region\[0\] is 1, must be 0"),
    (0, 7, OPERAND, "shape", 0, (8, 1, 1, 1), r"definition 1: task 0 binds operand \d to parameter 0 of definition 0"),
    (1, 2, TASK, "kernel", 0, 1, r"definition 1: tasks.kernel\[0\] is 1, must be below 1, the Definitions named"),
    (
        1,
        6,
        DEFINITION,
        "fingerprint",
        0,
        5,
        r"definition 1: definitions.fingerprint\[0\] is 0x0+5, must be that of a D",
    ),
]


@pytest.mark.parametrize(("number", "index", "record", "field", "row", "value", "message"), DEFINITION_CASES)
def test_a_wrong_field_of_a_definition_is_named(
    number: int, index: int, record: Any, field: str, row: int, value: Any, message: str
) -> None:
    """A Definition with right checksums and one wrong field is refused, with field, value and bound."""
    image = sample()
    set_field(pool(definition(image, number), index, record), field, row, value)
    reseal_definitions(image)
    refuse(image, message)


def test_a_definition_named_twice_is_refused() -> None:
    """Definitions in an image are different from each other, and come before those that replay them."""
    image = sample()
    records = pool(image, 6, DEFINITION)
    records[:] = records[[1, 0]]
    reseal_definitions(image)
    refuse(image, r"definition 0: definitions.fingerprint\[0\] is 0x[0-9a-f]{16}, must be that of a Definition before")
    image = sample()
    records = pool(image, 6, DEFINITION)
    records[1] = records[0]
    reseal_definitions(image)
    refuse(image, r"image: definitions.fingerprint\[1\] repeats that of 0")


def test_an_output_in_the_image_is_refused_through_a_replay() -> None:
    """A replay that would let a kernel write an input of the step is refused, wherever the kernel call lies."""
    image = sample()
    operands, args = pool(image, 5, OPERAND), pool(image, 4, ARG)
    inside = int(np.flatnonzero((operands["kind"] == 0) & (operands["region"] == 0))[0])
    args[2] = inside  # the pair's y
    reseal_definitions(image)
    refuse(image, r"is an output of task 0 \(kernel 'scale'\), so it must be a tensor outside the image")


def nested_image(levels: int, replays: int) -> Bytes:
    """A chain of Definitions, each of which replays the one before a number of times."""
    table = make_table()
    builder = make_builder(table, max_definitions=levels + 1)
    x = builder.tensor("workspace", 0, (4,), np.float32)
    definition = builder.record("level 0", lambda recorder: recorder.task("scale", x, 2, x))
    for level in range(1, levels):

        def nested(recorder: Recorder, inner: Definition = definition) -> None:
            for _ in range(replays):
                recorder.replay(inner, [])

        definition = builder.record(f"level {level}", nested)
    image = np.zeros(1 << 18, np.uint8)
    builder.reset(image)
    builder.replay(definition, [])
    return image[: builder.finish()]


def test_the_device_bounds_depth_and_size_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that a builder without limits wrote is refused: nested too deep, or growing too large when expanded."""
    monkeypatch.setattr("async_orch._graph_record.MAX_DEPTH", 1000)
    refuse(nested_image(70, 1), r"definition 64: is nested 65 deep, must be at most 64")
    image = nested_image(5, 6)
    execute(image, memory(), make_table())
    monkeypatch.setattr("async_orch._graph_expand.MAX_EXPANDED", 1000)
    refuse(image, r"definition 3: expands to over 1000 tasks, arguments and operands at task \d")


@pytest.mark.parametrize("placed", [False, True])
def test_any_changed_byte_is_refused(placed: bool) -> None:
    """Each flipped byte of header, pools and Definitions, carried or resident, is refused, also by a kept plan."""
    table = make_table()
    builder = make_builder(table)
    image = np.zeros(1 << 14, np.uint8)
    used = build_replays(builder, image)
    definitions = np.zeros(0, np.uint8)
    if placed:
        definitions = builder.place_definitions()
        used = build_replays(builder, image)
    image = image[:used]
    run = Executor(table)
    run(image, memory(), definitions=definitions)
    for source, positions in ((image, (*range(192), *range(256, used))), (definitions, range(definitions.size))):
        for at in positions:
            source[at] ^= 0xFF
            with pytest.raises(ImageCorrupt):
                run(image, memory(), definitions=definitions)
            source[at] ^= 0xFF
    run(image, memory(), definitions=definitions)


def refuse(image: Bytes, message: str) -> None:
    regions = memory()
    before = {name: array.copy() for name, array in regions.items()}
    with pytest.raises(ImageCorrupt, match=message):
        execute(image, regions, make_table())
    if "is an output" not in message:  # what only describes the graph does not ask what is written
        with pytest.raises(ImageCorrupt, match=message):
            unroll(image, make_table())
    for name, array in regions.items():
        np.testing.assert_array_equal(array, before[name])
