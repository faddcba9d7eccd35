"""What `record` and `replay` refuse, and how it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from async_orch.graph import Definition, GraphBuilder, GraphError, GraphOverflow, Recorder
from tests.graph_replay_support import REGIONS, build_replays, make_builder, make_table, record_layer


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
        ({"factor": 10**400}, r"argument 'factor': <int of 1329 bits> is not an operand"),
        ({"x": 10**400}, r"argument 'x': <int of 1329 bits> is not an operand"),
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
    (lambda r, b: r.task("scale", b, 1, b, after=["a"]), r"layer, task 0 \(scale\): after=\['a'\] is neither an earl"),
    (lambda r, b: r.task("scale", b, 1, b, after=[None]), r"layer, task 0 \(scale\): after=\[None\] is neither"),
    (lambda r, b: r.task("scale", b, 10**400, b), r"task 0 \(scale\), argument 1: <int of 1329 bits> is not a param"),
    (lambda r, b: r.parameter("p", (1.5,), "f4"), r"layer: parameter 'p': shape \(1.5,\) is not a sequence of whole"),
    (lambda r, b: r.part(r.parameter("p", (8,), "f4"), 0.0, (1,)), r"a part of parameter 'p': offset 0.0 is not a who"),
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


def test_a_recording_that_records_itself_is_refused() -> None:
    """A function that records itself without end is named, and the builder records others afterwards."""
    builder = make_builder(make_table())

    def again(recorder: Any) -> None:
        del recorder
        builder.record("again", again)

    with pytest.raises(GraphOverflow, match=r"again: 64 recordings under way, .* does its function record itself"):
        builder.record("again", again)
    assert record_layer(builder).n_tasks


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


def test_nesting_has_a_limit() -> None:
    """Definitions inside each other are refused beyond 64, while they are recorded."""
    builder = make_builder(make_table(), max_definitions=100)
    definition = builder.record("level 0", lambda recorder: None)
    with pytest.raises(GraphOverflow, match=r"nesting: 64 used, 64 available, 1 more requested by 'level 64'"):
        for level in range(1, 100):

            def nested(recorder: Recorder, inner: Definition = definition) -> None:
                recorder.replay(inner, [])

            definition = builder.record(f"level {level}", nested)
