"""`record`, `replay` and `inline`: Definitions, where they lie, and what a replay does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from async_orch.graph import (
    Executor,
    GraphBuilder,
    GraphError,
    GraphOverflow,
    ImageCorrupt,
    KernelTable,
    Recorder,
    describe,
    execute,
    unroll,
)
from tests.graph_replay_support import (
    REGIONS,
    build_replays,
    expected,
    make_builder,
    make_table,
    memory,
    record_layer,
    record_pair,
)


def test_replays_compute_what_their_tasks_would() -> None:
    """Nested and differing Definitions run on what each replay binds, with new inputs and numbers in every step."""
    table = make_table()
    builder = make_builder(table)
    image = np.zeros(1 << 14, np.uint8)
    run = Executor(table)
    for step in range(4):
        regions, values = memory(), (step, 2, 3, 4)
        build_replays(builder, image, values, 0.5 + step)
        run(image, regions)
        assert regions["output"].view(np.float32)[:4].tolist() == expected(values, 0.5 + step)


def test_placed_definitions_leave_the_image() -> None:
    """Once placed, a Definition is named by the image and read from resident memory; before, it is carried."""
    table = make_table()
    builder = make_builder(table)
    image = np.zeros(1 << 14, np.uint8)
    carried_nbytes = build_replays(builder, image)
    definitions = builder.place_definitions()
    layer, pair = record_layer(builder), record_pair(builder)
    nbytes = build_replays(builder, image)
    assert definitions.size == layer.nbytes + pair.nbytes == carried_nbytes - nbytes
    regions = memory()
    execute(image, regions, table, definitions=definitions)
    assert regions["output"].view(np.float32)[:4].tolist() == expected()


def test_the_image_does_not_grow_with_the_definition() -> None:
    """A replay costs the image its task, arguments and new operands, however many tasks the Definition has."""
    table, image, sizes = make_table(), np.zeros(1 << 16, np.uint8), []
    for n_tasks in (1, 200):
        builder = make_builder(table)

        def chain(recorder: Recorder, n_tasks: int = n_tasks) -> None:
            x = recorder.parameter("x", (4,), np.float32)
            for _ in range(n_tasks):
                recorder.task("scale", x, 2, x)

        definition = builder.record("chain", chain)
        builder.place_definitions()
        builder.reset(image)
        builder.replay(definition, [builder.tensor("workspace", 0, (4,), np.float32)])
        sizes.append(builder.finish())
        assert definition.n_tasks == n_tasks
    assert sizes[0] == sizes[1]


def test_a_definition_is_kept_once() -> None:
    """The same structure gives the same Definition, a changed one a new one; with a key the function is not called."""
    builder = make_builder(make_table())
    calls = []

    def of(size: int) -> Callable[[Recorder], None]:
        def function(recorder: Recorder) -> None:
            calls.append(size)
            x = recorder.parameter("x", (size,), np.float32)
            recorder.task("add", x, x, x)

        return function

    first = builder.record("layer", of(4))
    assert builder.record("layer", of(4)) is first
    assert builder.record("layer", of(8)) is not first
    assert builder.record("other", of(4)) is not first
    assert builder.record("layer", of(16), key=16) is builder.record("layer", of(16), key=16)
    assert calls == [4, 4, 8, 4, 16]


def test_definitions_keep_their_places() -> None:
    """Those recorded later are carried until all are placed again, and the earlier bytes stay where they were."""
    table = make_table()
    builder = make_builder(table)
    record_layer(builder)
    first = builder.place_definitions()
    image = np.zeros(1 << 14, np.uint8)
    build_replays(builder, image)  # the pair is new, and carried
    regions = memory()
    execute(image, regions, table, definitions=first)
    assert regions["output"].view(np.float32)[:4].tolist() == expected()
    second = builder.place_definitions()
    assert second.size > first.size
    np.testing.assert_array_equal(second[: first.size], first)


def test_resident_memory_must_hold_what_the_image_names() -> None:
    """Missing, short, stale or damaged resident memory is refused before any kernel runs, also by a kept plan."""
    table = make_table()
    builder = make_builder(table)
    record_pair(builder)
    definitions = builder.place_definitions()
    image = np.zeros(1 << 14, np.uint8)
    build_replays(builder, image)
    run = Executor(table)
    run(image, memory(), definitions=definitions)
    damaged = definitions.copy()
    damaged[-300] ^= 1
    for wrong, message in (
        (None, r"definitions\[0\] lies in resident memory, and the device side was given none"),
        (definitions[:100], r"definitions\[0\] is \d+ bytes at 0, must lie in 0 to 100"),
        (np.zeros_like(definitions), r"definitions.fingerprint\[0\] is 0x[0-9a-f]{16}, the bytes give 0x"),
        (damaged, r"definitions.fingerprint\[1\] is 0x[0-9a-f]{16}, the bytes give 0x"),
    ):
        regions = memory()
        with pytest.raises(ImageCorrupt, match=message):
            run(image, regions, definitions=wrong)
        assert not regions["output"].any()
    with pytest.raises(GraphError, match=r"definitions must be a contiguous one-dimensional uint8 array"):
        run(image, memory(), definitions=definitions[::2])


def test_dependencies_cross_the_boundary() -> None:
    """A replay's first calls wait for what its task waits for, and what comes after it waits for its last calls."""
    table = make_table()
    builder = make_builder(table)
    image = np.zeros(1 << 14, np.uint8)
    build_replays(builder, image)
    calls = unroll(image, table)
    assert [call.kernel for call in calls] == ["add", "scale", "scale"] * 3 + ["scale"]
    assert [call.origin for call in calls] == [0] * 6 + [1] * 3 + [2]
    assert [sorted(call.after) for call in calls] == [[], *([position] for position in range(9))]
    assert calls[0].args[0] == ("image", 192, (4,), "float32")
    assert calls[4].args[1] == 0.5


def test_inlined_tasks_are_those_of_the_replay() -> None:
    """`inline` writes a Definition out as plain tasks, with the same calls, for devices that know no replays."""
    table = make_table()
    builder = make_builder(table)
    layer = record_layer(builder)
    image, found = np.zeros(1 << 14, np.uint8), []
    bindings = [builder.tensor("workspace", 0, (4,), np.float32), builder.tensor("weights", 0, (4,), np.float32)]
    for add in (builder.replay, builder.inline):
        builder.reset(image)
        builder.task("scale", bindings[1], 3, bindings[0])
        ids = add(layer, [*bindings, builder.tensor("output", 0, (4,), np.float32), 2.5])
        builder.finish()
        regions = memory()
        execute(image, regions, table)
        found.append(([call[:2] for call in unroll(image, table)], regions["output"].tobytes()))
    assert ids == range(1, 4)
    assert found[0] == found[1]
    assert describe(image).count("replay") == 0


def test_what_inline_does_not_take() -> None:
    """`inline` needs derived dependencies and a Definition without replays, and names what does not fit."""
    table = make_table()
    builder = make_builder(table, max_tasks=3, max_operands=64, max_args=64)
    pair, layer = record_pair(builder), record_layer(builder)
    image = np.zeros(1 << 14, np.uint8)
    builder.reset(image)
    with pytest.raises(
        GraphError, match=r"task 0 \(pair\): inline\(\) of a Definition that replays others; inline those"
    ):
        builder.inline(pair, {})
    x, y = (builder.tensor("workspace", offset, (4,), np.float32) for offset in (0, 64))
    bindings = [x, builder.tensor("weights", 0, (4,), np.float32), y, 1.0]
    with pytest.raises(GraphError, match=r"task 0 \(layer\), argument 'x': it must be a tensor .* but an int is bound"):
        builder.inline(layer, [5, *bindings[1:]])
    builder.inline(layer, bindings)
    with pytest.raises(GraphOverflow, match=r"tasks: 3 used, 3 available, 3 more requested by task 3; raise max_tasks"):
        builder.inline(layer, bindings)
    explicit = GraphBuilder(image, table, REGIONS)
    empty = explicit.record("empty", lambda recorder: None)
    with pytest.raises(
        GraphError, match=r"task 0 \(empty\): inline\(\) of a Definition that needs a builder with infer"
    ):
        explicit.inline(empty, [])


def test_an_empty_definition_passes_dependencies_on() -> None:
    """A replay without calls still orders what comes after it behind what comes before."""
    table = KernelTable()
    table.add("touch", lambda x: None, outputs=())
    builder = GraphBuilder(np.zeros(1 << 12, np.uint8), table, {})
    empty = builder.record("empty", lambda recorder: None)
    image = np.zeros(1 << 12, np.uint8)
    builder.reset(image)
    first = builder.task("touch", 1)
    between = builder.replay(empty, {}, after=first)
    builder.task("touch", 2, after=between)
    builder.finish()
    assert [sorted(call.after) for call in unroll(image, table)] == [[], [0]]


def test_explicit_dependencies_reorder_a_definition() -> None:
    """Without ``infer`` a Definition's tasks, and replays, keep to `after` alone."""
    table, log = KernelTable(), list[int]()
    table.add("log", log.append, n_args=1, outputs=())
    builder = GraphBuilder(None, table, {})
    image = np.zeros(1 << 12, np.uint8)

    def steps(recorder: Recorder) -> None:
        number = recorder.number("number", int)
        first = recorder.task("log", number)
        recorder.task("log", -1, after=first)

    definition = builder.record("steps", steps)
    builder.reset(image)
    first = builder.replay(definition, {"number": 5})
    builder.replay(definition, {"number": 7}, after=[first])
    builder.finish()
    execute(image, [], table)
    assert log == [5, -1, 7, -1]
    assert [sorted(call.after) for call in unroll(image, table)] == [[], [0], [1], [2]]


def test_a_kernels_exception_names_the_definition() -> None:
    """The note says which task replayed which Definition, and which of its calls failed."""
    table = make_table()
    builder = make_builder(table)
    image = np.zeros(1 << 14, np.uint8)
    build_replays(builder, image)
    failing = KernelTable()
    failing.add("add", table.by_name["add"].function, outputs=(2,))

    def fail(a: Any, factor: float, out: Any) -> None:
        if factor == 0.5:
            raise ZeroDivisionError("boom")

    failing.add("scale", fail, outputs=(2,))
    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        execute(image, memory(), failing)
    assert caught.value.__notes__ == [
        "raised in task 0 (Definition 'pair', its call 4, kernel 'scale') of a task graph"
    ]


def test_describe_shows_replays() -> None:
    """The dump lists the Definitions and where they lie, and a replay with what it binds."""
    table = make_table()
    builder = make_builder(table)
    record_layer(builder)
    builder.place_definitions()
    image = np.zeros(1 << 14, np.uint8)
    build_replays(builder, image)
    text = describe(image, table)
    assert "bytes, resident at 0" in text
    assert "bytes, carried at" in text
    assert "0: replay of definition 1(image+192:float32[4], weights+0:float32[8], workspace+0:float32[4], 3.0)" in text
    assert "2: scale(output+0:float32[4], 10, output+0:float32[4]) after [1]" in text
    assert repr(record_layer(builder)).startswith("<Definition 'layer': 3 tasks, 4 parameters, ")


def test_builders_that_record_alike_agree() -> None:
    """Two builders that record the same in the same order give the same Definitions in the same places."""
    table = make_table()
    images, contents = [], []
    for _ in range(2):
        builder = make_builder(table)
        record_pair(builder)
        contents.append(builder.place_definitions())
        images.append(np.zeros(1 << 14, np.uint8))
        build_replays(builder, images[-1])
    np.testing.assert_array_equal(contents[0], contents[1])
    np.testing.assert_array_equal(images[0], images[1])
