"""`record` and `replay`: Definitions, where they lie, what a replay does, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from async_orch.graph import (
    Definition,
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


def wrong_replays() -> list[tuple[Any, str]]:
    """Changes to a good set of bindings, and what is said about each."""
    return [
        ({"x": ("tensor", "workspace", 64, (4,), "i4")}, r"argument 'x': it must be a tensor of float32, .* int32"),
        ({"x": ("tensor", "workspace", 64, (2, 2), "f4")}, r"argument 'x': .* shape \(4,\), but .* shape \(2, 2\) in"),
        ({"weight": ("tensor", "output", 0, (4,), "f4")}, r"'weight': .* in region 'weights', but .* region 'output'"),
        (
            {"x": np.zeros(4, np.float32)},
            r"argument 'x': memory that no handle stands for, such as an array on the hos",
        ),
        ({"factor": 2}, r"argument 'factor': it must be a float, but an int is bound"),
        ({"factor": "two"}, r"argument 'factor': 'two' is not an operand of this builder"),
        ({"x": "two"}, r"argument 'x': 'two' is not an operand of this builder"),
        ({"x": 1.5}, r"argument 'x': it must be a tensor of float32, shape \(4,\), but a float is bound"),
        ({"y": ("put",)}, r"argument 'y': the Definition writes it, but it is an input in the image"),
        ({"y": ("old",)}, r"argument 'y': the handle is not one of this builder's, or it came from put\(\)"),
        ({"y": ("foreign",)}, r"argument 'y': the handle is not one of this builder's"),
        ({"z": 1}, r"with unknown \['z'\]; the Definition takes x, weight, y, factor"),
        ({"x": None}, r"bindings without \['x'\]"),
    ]


@pytest.mark.parametrize(("change", "message"), wrong_replays())
def test_a_wrong_binding_names_task_and_argument(change: dict[str, Any], message: str) -> None:
    """Kind, dtype, shape, region, memory and names of what is bound must be the parameter's; nothing is added else."""
    builder = make_builder(make_table())
    layer = record_layer(builder)
    builder.reset(np.zeros(1 << 14, np.uint8))
    old = builder.put(np.zeros(4, np.float32))
    builder.reset(np.zeros(1 << 14, np.uint8))
    foreign = make_builder(make_table()).tensor("workspace", 64, (4,), np.float32)
    bindings: dict[str, Any] = {
        "x": builder.tensor("workspace", 0, (4,), np.float32),
        "weight": builder.tensor("weights", 0, (4,), np.float32),
        "y": builder.tensor("workspace", 64, (4,), np.float32),
        "factor": 1.0,
    }
    for name, value in change.items():
        if value is None:
            del bindings[name]
        elif isinstance(value, tuple):
            kind, *rest = value
            made = {"old": old, "foreign": foreign}
            bindings[name] = (
                builder.tensor(*rest) if kind == "tensor" else made.get(kind) or builder.put(np.zeros(4, np.float32))
            )
        else:
            bindings[name] = value
    with pytest.raises(GraphError, match=rf"task 0 \(layer\).*{message}"):
        builder.replay(layer, bindings)
    assert builder.n_tasks == 0


def test_a_definition_of_another_builder_is_refused() -> None:
    """Definitions name regions and kernels of the builder that recorded them, and serve no other."""
    layer = record_layer(make_builder(make_table()))
    builder = make_builder(make_table())
    builder.reset(np.zeros(1024, np.uint8))
    with pytest.raises(GraphError, match=r"task 0 \(layer\): the Definition is another builder's"):
        builder.replay(layer, {})
    with pytest.raises(GraphError, match=r"outer, task 0 \(layer\): the Definition is another builder's"):
        builder.record("outer", lambda recorder: recorder.replay(layer, {}))


RECORDINGS: list[tuple[Callable[[Any, Any], object], str]] = [
    (lambda r, b: r.task("nope"), r"layer, task 0: unknown kernel 'nope'; the table has: add, scale"),
    (lambda r, b: r.task("add", 1), r"layer, task 0 \(add\): 1 arguments given, the kernel takes 3"),
    (
        lambda r, b: r.task("scale", 1.0, 2, 3),
        r"task 0 \(scale\), argument 2: the kernel writes it, but it is a number",
    ),
    (
        lambda r, b: r.task("add", "x", 1, b),
        r"task 0 \(add\), argument 0: 'x' is not a parameter, a tensor of a region",
    ),
    (lambda r, b: r.task("scale", b, 1 << 63, b), r"argument 1: 9223372036854775808 is not a parameter"),
    (lambda r, b: r.task("scale", b, 1, b, after=0), r"layer, task 0 \(scale\): after=0 is not an earlier task's id"),
    (lambda r, b: r.parameter("p", (2,), "f4") and r.parameter("p", (2,), "f4"), r"parameter name 'p' is empty or tak"),
    (lambda r, b: r.parameter("p", (2,), "f4", region="nowhere"), r"parameter 'p' asks for unknown region 'nowhere'"),
    (lambda r, b: r.parameter("p", (2,), "c8"), r"dtype complex64 is not supported"),
    (lambda r, b: r.number("n", str), r"number 'n' must be int or float, not <class 'str'>"),
    (lambda r, b: r.part(r.number("n", int), 0, (1,)), r"parameter 'n' is an int, which has no parts"),
    (lambda r, b: r.part(r.parameter("p", (2,), "f4"), 4, (2,)), r"8 bytes of float32 at byte 4 .* end within 8 bytes"),
    (lambda r, b: r.part(r.parameter("p", (2,), "f4"), 2, (1,)), r"at byte 2 of parameter 'p'"),
    (lambda r, b: r.part(r.parameter("p", (8,), "u1"), 0, (1,), "f4"), r"in items of at most 1 bytes"),
]


@pytest.mark.parametrize(("call", "message"), RECORDINGS)
def test_a_wrong_recording_names_definition_task_and_argument(call: Any, message: str) -> None:
    """What cannot be part of a Definition is refused while it is recorded, and no Definition is kept."""
    builder = make_builder(make_table())
    tensor = builder.tensor("workspace", 0, (4,), np.float32)
    with pytest.raises(GraphError, match=message):
        builder.record("layer", lambda recorder: call(recorder, tensor))
    assert builder.place_definitions().size == 0


def test_inputs_of_a_step_are_parameters() -> None:
    """A handle of `put` cannot be fixed in a Definition, since it ends with the step."""
    builder = make_builder(make_table())
    builder.reset(np.zeros(1024, np.uint8))
    given, out = builder.put(np.zeros(4, np.float32)), builder.tensor("output", 0, (4,), np.float32)
    with pytest.raises(GraphError, match=r"task 0 \(scale\), argument 0: only tensors of this builder's regions"):
        builder.record("layer", lambda recorder: recorder.task("scale", given, 1, out))


def test_a_recorder_ends_with_its_function() -> None:
    """Tasks and parameters added afterwards, or parameters used elsewhere, are refused."""
    builder = make_builder(make_table())
    kept: list[Any] = []
    builder.record("first", lambda recorder: kept.extend((recorder, recorder.parameter("x", (4,), np.float32))))
    recorder, x = kept
    with pytest.raises(GraphError, match=r"first: the Definition is complete; record another one"):
        recorder.task("add", x, x, x)
    with pytest.raises(GraphError, match=r"second, task 0 \(add\), argument 0: parameter 'x' belongs to another"):
        builder.record("second", lambda other: other.task("add", x, x, x))
    for name in ("", "x" * 65, "a\0b"):
        with pytest.raises(GraphError, match=r"Definition name .* must have 1 to 64 bytes and no NUL"):
            builder.record(name, lambda recorder: None)


def test_a_nested_binding_is_checked_while_recording() -> None:
    """Parameters and constants bound inside a Definition must fit as exactly as those of a graph."""
    builder = make_builder(make_table())
    layer = record_layer(builder)

    def outer(recorder: Recorder) -> None:
        x = recorder.parameter("x", (4,), np.float32)
        weight = recorder.parameter("weight", (4,), np.float32)
        recorder.replay(layer, {"x": x, "weight": weight, "y": x, "factor": 1.0})

    with pytest.raises(GraphError, match=r"outer, task 0 \(layer\), argument 'weight': .* region 'weights', but a ten"):
        builder.record("outer", outer)


def test_arguments_may_not_overlap_where_the_definition_writes() -> None:
    """The order inside a Definition was found for arguments that lie apart; sharing that would break it is refused."""
    builder = make_builder(make_table())
    layer = record_layer(builder)
    builder.reset(np.zeros(1 << 14, np.uint8))
    weight = builder.tensor("weights", 0, (4,), np.float32)
    x, near = (builder.tensor("workspace", offset, (4,), np.float32) for offset in (0, 8))
    builder.replay(layer, [x, weight, near, 1.0])
    with pytest.raises(GraphError, match=r"task 0 \(layer\): argument 'x' and argument 'y' share bytes 8 to 16"):
        builder.finish()
    builder.reset(np.zeros(1 << 14, np.uint8))
    builder.replay(layer, [builder.tensor("workspace", 512, (4,), np.float32), weight, x, 1.0])
    with pytest.raises(GraphError, match=r"share bytes 512 to 528|a tensor fixed in the Definition"):
        builder.finish()


def test_reading_what_nobody_wrote_is_refused() -> None:
    """Bytes of a scratch region must be written before they are read, by a kernel, a replay or inside a Definition."""
    table = make_table()
    builder = make_builder(table, scratch=("workspace", "output"))
    x, y = (builder.tensor("workspace", offset, (4,), np.float32) for offset in (0, 64))
    wide = builder.tensor("workspace", 64, (8,), np.float32)
    weight = builder.tensor("weights", 0, (4,), np.float32)
    layer = record_layer(builder)
    fixed = builder.record("fixed", lambda recorder: recorder.task("scale", y, 2, y) or recorder.task("add", x, x, y))

    def step(*tasks: Callable[[], object]) -> int:
        builder.reset(np.zeros(1 << 14, np.uint8))
        for task in tasks:
            task()
        return builder.finish()

    def write_y() -> int:
        return builder.task("scale", weight, 1, y)

    def replay_y() -> int:
        return builder.replay(layer, [y, weight, x, 1.0])

    assert step(write_y, replay_y, lambda: builder.replay(fixed, [])) > 0
    for tasks, message in (
        ((replay_y,), r"task 0 \(layer\), argument 'x': reads bytes 64 to 80 of region 'workspace', which no earlier"),
        ((lambda: builder.task("add", y, y, x),), r"task 0 \(add\), argument 0: reads bytes 64 to 80"),
        ((write_y, lambda: builder.task("add", wide, wide, x)), r"task 1 \(add\), argument 0: reads bytes 80 to 96"),
        ((lambda: builder.replay(fixed, []),), r"task 0 \(fixed\), a tensor fixed in it: reads bytes"),
    ):
        with pytest.raises(GraphError, match=message):
            step(*tasks)
    with pytest.raises(GraphError, match=r"scratch names unknown regions \['nowhere'\]"):
        make_builder(table, scratch=("nowhere",))
    with pytest.raises(GraphError, match=r"scratch needs infer=True"):
        GraphBuilder(None, table, REGIONS, scratch=("workspace",))


def test_exhausted_resources_are_named_with_numbers() -> None:
    """Definitions, the image's bytes, arguments and expanded records say what is used, available and requested."""
    table = make_table()
    builder = make_builder(table, max_definitions=1)
    layer = record_layer(builder)
    with pytest.raises(
        GraphOverflow, match=r"definitions: 1 used, 1 available, 1 more requested by 'empty'; raise max"
    ):
        builder.record("empty", lambda recorder: None)
    x, y = (builder.tensor("workspace", offset, (4,), np.float32) for offset in (0, 64))
    builder.reset(np.zeros(1024, np.uint8))
    weight = builder.tensor("weights", 0, (4,), np.float32)
    builder.replay(layer, [x, weight, y, 1.0])
    with pytest.raises(GraphOverflow, match=rf"and {layer.nbytes} bytes of Definitions that are not resident; enlarge"):
        builder.finish()
    small = make_builder(table, max_args=3)
    with pytest.raises(GraphOverflow, match=r"args: 0 used, 3 available, 4 more requested by task 0; raise max_args"):
        build_replays(small, np.zeros(1 << 14, np.uint8))


def test_an_explosion_of_nested_replays_is_refused() -> None:
    """Definitions of Definitions grow by powers; what would exceed the device's limit is refused when it is built."""
    table = make_table()
    builder = make_builder(table)
    x = builder.tensor("workspace", 0, (4,), np.float32)
    definition = builder.record("level", lambda recorder: [recorder.task("scale", x, 2, x) for _ in range(30)])
    for level in range(5):

        def nested(recorder: Recorder, inner: Definition = definition) -> None:
            for _ in range(30):
                recorder.replay(inner, [])

        definition = builder.record(f"level{level}", nested)
    builder.reset(np.zeros(1 << 16, np.uint8))
    builder.replay(definition, [])
    with pytest.raises(GraphOverflow, match=r"expanded records: 1 used by the graph, 4194304 available, \d+ more"):
        builder.finish()


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
