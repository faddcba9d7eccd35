"""`GraphBuilder`: what it writes, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_orch._graph_format import ARG, FANIN, HEADER, N_SECTIONS, OPERAND, TASK
from async_orch.graph import Executor, GraphBuilder, GraphError, GraphOverflow, KernelTable, Operand, describe, execute
from tests.graph_support import REGIONS, build_sample, make_table, memory, pool, tensors


def new_builder(nbytes: int = 1 << 14, **options: Any) -> GraphBuilder:
    return GraphBuilder(np.zeros(nbytes, np.uint8), make_table(), REGIONS, **options)


def fill_until_refused(builder: GraphBuilder, out: Operand) -> None:
    for value in (1, 2, 3):
        builder.task("fill", value, out, after=builder.n_tasks - 1)


def add_until_refused(builder: GraphBuilder, operand: Operand) -> None:
    for _ in range(12):
        builder.task("add", operand, operand, operand)


def test_the_pools_say_what_was_built() -> None:
    """Tasks, fan-ins, arguments and operands in the image are those that the calls described."""
    image = np.zeros(1 << 14, np.uint8)
    nbytes = build_sample(image, make_table())
    tasks, fanin = pool(image, 2, TASK), pool(image, 3, FANIN)
    args, operands = pool(image, 4, ARG), pool(image, 5, OPERAND)
    assert tasks["kernel"].tolist() == [2, 2, 0, 1, 3]
    assert tasks["arg_count"].tolist() == [2, 2, 3, 3, 3]
    assert tasks["fanin_count"].tolist() == [0, 0, 2, 1, 1]
    assert fanin.tolist() == [0, 1, 2, 3]
    values = [
        (row["kind"], row["offset"] if row["kind"] < 2 else row["real"], row["region"], row["shape"][0])
        for row in operands[args]
    ]
    a, b, c, out = ((0, offset, region, 4) for offset, region in ((0, 1), (64, 1), (128, 1), (0, 2)))
    given = (0, HEADER.itemsize, 0, 2)
    assert values == [
        *((1, 5, 0, 1), a),
        *((2, 3.0, 0, 1), b),
        *(a, b, c),
        *(c, given, out),
        *(given, (2, 1.5, 0, 1), out),
    ]
    assert nbytes % 64 == 0
    assert not image[nbytes:].any()


def test_every_pool_is_aligned_and_as_long_as_what_is_used() -> None:
    """Pools begin at multiples of 64 bytes, follow each other, and the capacity asked for plays no part."""
    sizes = []
    for max_tasks in (8, 4096):
        image = np.full(1 << 14, 0xDD, np.uint8)
        builder = GraphBuilder(image, make_table(), REGIONS, max_tasks=max_tasks)
        (a,) = tensors(builder, 1)
        for shape in ((3,), (1,), (65,)):
            builder.put(np.ones(shape, np.uint8))
        builder.task("fill", 1, a)
        sizes.append(builder.finish())
        header = image[: HEADER.itemsize].view(HEADER)[0]
        offsets, counts = header["sections"][:N_SECTIONS].T.tolist()
        assert all(offset % 64 == 0 for offset in offsets)
        assert counts == [64 + 64 + 65, 3, 1, 0, 2, 2]
    assert sizes[0] == sizes[1] == 192 + 256 + 128 + 64 + 0 + 64 + 64


def test_equal_graphs_give_equal_bytes() -> None:
    """What a staging buffer held before shows nowhere in the image."""
    images = [np.full(1 << 14, value, np.uint8) for value in (0x00, 0xDD)]
    used = [build_sample(image, make_table()) for image in images]
    assert used[0] == used[1]
    np.testing.assert_array_equal(images[0][: used[0]], images[1][: used[1]])


def test_a_builder_serves_step_after_step() -> None:
    """After `reset` the graph is empty, lasting handles still hold, and the new inputs and scalars count."""
    table = make_table()
    builder = GraphBuilder(None, table, REGIONS, max_tasks=4, max_operands=4)
    (out,) = tensors(builder, 1, "output")
    run = Executor(table)
    for step in range(20):
        image, regions = np.zeros(2048, np.uint8), memory()
        builder.reset(image)
        assert builder.n_tasks == 0
        given = builder.put(np.array([step], np.int32))
        builder.task("add", given, step, out)
        builder.finish()
        run(image, regions)
        assert regions["output"][0] == 2 * step
        assert builder.tensor("output", 0, [4], "u1") is out


def test_finish_may_be_called_again() -> None:
    """A graph can be finished, added to and finished again; the later image is the longer graph."""
    table, image, regions = make_table(), np.zeros(1 << 14, np.uint8), memory()
    builder = GraphBuilder(image, table, REGIONS)
    a, b = tensors(builder, 2)
    first = builder.task("fill", 7, a)
    builder.finish()
    builder.put(np.ones(100, np.uint8))
    builder.task("fill", a, b, after=first)
    builder.finish()
    execute(image, regions, table)
    assert regions["workspace"][64] == 28


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ">i4", ">f8"])
def test_every_dtype_and_rank_arrives_as_it_was_put(dtype: str) -> None:
    """An input reaches the kernel with its values, shape and (little-endian) dtype; also 0-d and empty ones."""
    table = KernelTable()
    seen: list[np.ndarray[Any, Any]] = []
    table.add("see", lambda array: seen.append(array.copy()), outputs=())
    image = np.zeros(1 << 12, np.uint8)
    builder = GraphBuilder(image, table, {})
    arrays = [np.ones(shape, dtype) for shape in ((), (3,), (2, 3), (1, 2, 3), (2, 1, 2, 1), (0, 5))]
    for array in arrays:
        builder.task("see", builder.put(array))
    builder.finish()
    execute(image, {}, table)
    for array, got in zip(arrays, seen, strict=True):
        assert got.dtype == array.dtype.newbyteorder("<")
        assert got.shape == array.shape
        np.testing.assert_array_equal(got, array)


def test_scalars_keep_type_and_bits() -> None:
    """Ints of 64 bits and floats, negative zero and infinities among them, arrive as they were given."""
    table = KernelTable()
    seen: list[object] = []
    table.add("see", lambda *values: seen.extend(values), outputs=())
    image = np.zeros(1 << 12, np.uint8)
    builder = GraphBuilder(image, table, {})
    values = (0, 1, 1.0, -0.0, 0.0, -(1 << 63), (1 << 63) - 1, float("inf"), 1e-300, True, np.int32(7), np.float32(0.5))
    builder.task("see", *values)
    builder.task("see", builder.scalar(float("nan")))
    builder.finish()
    execute(image, [], table)
    assert repr(seen[:-1]) == (
        "[0, 1, 1.0, -0.0, 0.0, -9223372036854775808, 9223372036854775807, inf, 1e-300, 1, 7, 0.5]"
    )
    assert seen[-1] != seen[-1]


def test_reserve_gives_room_to_fill_in_place() -> None:
    """The view of `reserve` is the memory that the kernel later reads."""
    table, regions, image = make_table(), memory(), np.zeros(2048, np.uint8)
    builder = GraphBuilder(image, table, REGIONS)
    operand, view = builder.reserve((2, 3), np.int16)
    view[...] = 2
    builder.task("fill", operand, *tensors(builder, 1, "output"))
    builder.finish()
    execute(image, regions, table)
    assert regions["output"][0] == 12


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ({"max_tasks": 2}, r"tasks: 2 used, 2 available, 1 more requested by task 2; raise max_tasks"),
        ({"max_args": 5}, r"args: 4 used, 5 available, 2 more requested by task 2; raise max_args"),
        ({"max_fanin": 1}, r"fanin: 1 used, 1 available, 1 more requested by task 2; raise max_fanin"),
        ({"max_operands": 2}, r"operands: 2 used \(1 tensors, 1 inputs and scalars of the step\), 2 available, 1 more"),
    ],
)
def test_an_exhausted_pool_is_named_with_numbers(limit: dict[str, int], message: str) -> None:
    """The call that does not fit raises, names the resource, and leaves the graph before it usable."""
    builder = new_builder(**limit)
    (a,) = tensors(builder, 1)
    builder.task("fill", 1, a)
    with pytest.raises(GraphOverflow, match=message):
        fill_until_refused(builder, a)
    assert builder.finish() > 0


def test_an_image_that_is_too_small_is_refused_with_numbers() -> None:
    """Inputs, tasks and pools that run past the image's end are refused when they do."""
    builder = new_builder(512)
    (a,) = tensors(builder, 1)
    with pytest.raises(GraphOverflow, match=r"image bytes: 192 used by inputs, 512 available, 400 more requested"):
        builder.put(np.zeros(100, np.int32))
    with pytest.raises(GraphOverflow, match=r"image bytes: 480 used, 512 available, 36 more requested by task 8"):
        add_until_refused(builder, a)
    with pytest.raises(GraphOverflow, match=r"image bytes: 192 used by header and inputs, 512 available, \d+ more"):
        builder.finish()
    with pytest.raises(GraphOverflow, match=r"image bytes: .* 100 available"):
        new_builder(100).finish()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b, a: b.task("nope", a), r"task 0: unknown kernel 'nope'; the table has: add, sub, fill, note"),
        (lambda b, a: b.task("fill", a), r"task 0 \(fill\): 1 arguments given, the kernel takes 2"),
        (lambda b, a: b.task("fill", "x", a), r"task 0 \(fill\), argument 0: 'x' is not an operand"),
        (lambda b, a: b.task("fill", [1], a), r"task 0 \(fill\), argument 0: unhashable"),
        (lambda b, a: b.task("fill", 1 << 63, a), r"task 0 \(fill\), argument 0: 9223372036854775808 is not"),
        (lambda b, a: b.task("fill", 1, 2), r"task 0 \(fill\), argument 1: the kernel writes it, but it is a scalar"),
        (lambda b, a: b.task("fill", 1, b.put([1])), r"argument 1: the kernel writes it, but it is .* in the image"),
        (lambda b, a: b.task("fill", 1, a, after=0), r"task 0 \(fill\): after=0 is not an earlier task's id"),
        (lambda b, a: b.task("fill", 1, a, after=(-1,)), r"after=-1 is not an earlier task's id"),
        (lambda b, a: b.tensor("nowhere", 0, (1,), "f4"), r"unknown region 'nowhere'; declared: workspace, output"),
        (lambda b, a: b.tensor("image", 0, (1,), "f4"), r"unknown region 'image'"),
        (lambda b, a: b.tensor("output", 0, (65,), "f4"), r"260 bytes must end within 256"),
        (lambda b, a: b.tensor("output", 2, (1,), "f4"), r"offset must be a multiple of 4"),
        (lambda b, a: b.tensor("output", -4, (1,), "f4"), r"at byte -4 of region 'output'"),
        (lambda b, a: b.tensor("output", 0, (1, 1, 1, 1, 1), "f4"), r"5 dimensions; at most 4"),
        (lambda b, a: b.tensor("output", 0, (-1,), "f4"), r"each dimension must lie in 0 to 2147483647"),
        (lambda b, a: b.tensor("output", 0, (1,), "c8"), r"dtype complex64 is not supported; use one of bool, uint8"),
        (lambda b, a: b.put(np.array(["x"])), r"dtype <U1 is not supported"),
        (
            lambda b, a: b.task("fill", 1, a, after=["a"]),
            r"task 0 \(fill\): after=\['a'\] is neither an earlier task's",
        ),
        (lambda b, a: b.task("fill", 1, a, after=[None]), r"task 0 \(fill\): after=\[None\] is neither"),
        (lambda b, a: b.task("fill", 1, a, after=None), r"task 0 \(fill\): after=None is neither"),
        (lambda b, a: b.task("fill", 1, a, after=1.5), r"task 0 \(fill\): after=1.5 is neither"),
        (lambda b, a: b.task(["fill"], 1, a), r"task 0: unknown kernel \['fill'\]"),
        (lambda b, a: b.task("fill", 10**400, a), r"argument 0: <int of 1329 bits> is not an operand"),
        (lambda b, a: b.task("fill", "x" * 1000, a), r"argument 0: 'x{40,60}\.\.\.x{40,60}' is not an operand"),
        (lambda b, a: b.tensor("output", 0, (1.5,), "f4"), r"tensor: shape \(1.5,\) is not a sequence of whole"),
        (lambda b, a: b.tensor("output", 0, None, "f4"), r"tensor: shape None is not a sequence of whole"),
        (lambda b, a: b.tensor("output", 0.0, (1,), "f4"), r"tensor: offset 0.0 is not a whole number of bytes"),
        (lambda b, a: b.tensor("output", 0, (1,), "nothing"), r"tensor: dtype 'nothing' is not a dtype of numpy"),
        (lambda b, a: b.tensor(["output"], 0, (1,), "f4"), r"unknown region \['output'\]"),
        (lambda b, a: b.reserve((2.5,), "f4"), r"input: shape \(2.5,\) is not a sequence of whole numbers"),
    ],
)
def test_a_wrong_call_names_task_and_argument(call: Any, message: str) -> None:
    """What cannot be part of a graph is refused by the call that asks for it."""
    builder = new_builder()
    (a,) = tensors(builder, 1)
    with pytest.raises(GraphError, match=message) as caught:
        call(builder, a)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert builder.n_tasks == 0


def test_a_handle_of_an_earlier_step_is_recognised() -> None:
    """An input or scalar handle kept over `reset` is refused, naming the task and argument that uses it."""
    builder = new_builder()
    (a,) = tensors(builder, 1)
    old = builder.put([1])
    builder.reset(np.zeros(2048, np.uint8))
    builder.put([2])
    builder.task("fill", 1, a)
    builder.task("add", a, old, a)
    with pytest.raises(GraphError, match=r"task 1 \(add\), argument 1: the handle is not one of this builder's, or"):
        builder.finish()


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (bytearray(10), r"image must be a numpy uint8 array, got bytearray"),
        (np.zeros(10, np.int8), r"contiguous one-dimensional uint8 array, got dtype int8, shape \(10,\)"),
        (np.zeros((5, 2), np.uint8), r"shape \(5, 2\)"),
        (np.zeros(10, np.uint8)[::2], r"contiguous"),
        (np.frombuffer(bytes(64), np.uint8), r"image is read-only"),
    ],
)
def test_an_image_must_be_writable_bytes(image: Any, message: str) -> None:
    """Anything but a writable, contiguous, one-dimensional uint8 array is refused with what it is."""
    with pytest.raises(GraphError, match=message):
        GraphBuilder(image, make_table(), REGIONS)


@pytest.mark.parametrize("regions", [{"image": 1}, {"": 1}, {"x" * 25: 1}, {"a\0b": 1}, {"a": -1}, {"a": 1 << 60}])
def test_a_region_needs_a_possible_name_and_size(regions: dict[str, int]) -> None:
    """Names that the format cannot hold, the image's own name and impossible sizes are refused."""
    with pytest.raises(GraphError, match=r"region"):
        GraphBuilder(None, make_table(), regions)


def test_describe_shows_the_graph() -> None:
    """The dump names pools, regions, kernels, arguments and dependencies, and cuts long graphs."""
    image, table = np.zeros(1 << 14, np.uint8), make_table()
    build_sample(image, table)
    text = describe(image, table, max_tasks=4)
    assert "region 1: workspace, 4096 bytes" in text
    assert "0: fill(5, workspace+0:uint8[4])" in text
    assert "3: sub(workspace+128:uint8[4], image+192:int32[2], output+0:uint8[4]) after [2]" in text
    assert "1 more tasks" in text
    assert "kernel 2(5, workspace" in describe(image)
