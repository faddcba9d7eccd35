"""`OpenCLDispatcher`: a graph runs from device memory in one launch, and a damaged one is refused as on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from async_orch._graph_format import FANIN, TASK
from async_orch.abc import Buffer
from async_orch.graph import GraphBuilder, GraphError, ImageCorrupt, KernelTable, OpenCLDispatcher, execute
from tests.graph_support import REGIONS, SAMPLE_RESULT, Bytes, build_sample, make_table, memory, pool, reseal, set_field
from tests.unit.test_graph_damage import CASES

pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from tests.graph_opencl_support import OPERATIONS, GraphDevice


def sample() -> Bytes:
    image = np.zeros(1 << 14, np.uint8)
    return image[: build_sample(image, make_table())]


@pytest.fixture(scope="module")
def device() -> Iterator[GraphDevice]:
    """The sample's operations on one lane."""
    with GraphDevice() as opened:
        yield opened


@pytest.fixture(scope="module")
def trusting() -> Iterator[GraphDevice]:
    """The same without comparing checksums, so that only the bounds stand between an image and memory."""
    with GraphDevice(checksum=False) as opened:
        yield opened


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_graph_runs_from_device_memory(lanes: int) -> None:
    """The regions hold byte for byte what the host's execution leaves, whatever the number of lanes."""
    with GraphDevice(lanes=lanes) as opened:
        found, expected = opened.run(sample()), memory()
    execute(sample(), expected, make_table())
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted)
    assert found["output"][:4].tolist() == [SAMPLE_RESULT] * 4


@pytest.mark.parametrize(("index", "record", "field", "row", "value", "message"), CASES)
def test_a_wrong_field_is_refused_as_on_the_host(
    device: GraphDevice, index: int, record: Any, field: str, row: int, value: Any, message: str
) -> None:
    """Each image with one wrong field that the host refuses fails on the device too; no operation has run."""
    image = sample()
    set_field(pool(image, index, record), field, row, value)
    with pytest.raises(ImageCorrupt, match="image"):
        device.run(reseal(image))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (0, "magic"),
        (8, "version"),
        (12, "header_nbytes"),
        (18, "image_nbytes"),
        (24, "checksum"),
        (28, "flags"),
        (32, "kernel table"),
        (40, "reserved"),
        (65, "the offset of pool 0"),
        (82, "pool 1"),
        (160, "the offset of pool 6"),
        (300, "checksum"),
    ],
)
def test_a_wrong_header_is_named(device: GraphDevice, at: int, message: str) -> None:
    """The status says which field of the header it was."""
    image = sample()
    image[at] ^= 0x5A
    with pytest.raises(ImageCorrupt, match=message):
        device.run(image)


def test_an_image_that_is_cut_short_is_refused(device: GraphDevice) -> None:
    """Memory smaller than a header, or than the image says it is, is not read beyond its end."""
    for nbytes in (0, 64, 191, 192, sample().size - 64):
        with pytest.raises(ImageCorrupt, match="image_nbytes"):
            device.run(sample()[:nbytes])


def test_random_damage_is_refused_or_runs_within_bounds(trusting: GraphDevice) -> None:
    """Where the device runs a damaged image the host does so too, with the same result; the guards stay as they are."""
    rng = np.random.default_rng(6)
    original, ran = sample(), 0
    for _ in range(400):
        image = original.copy()
        for at in rng.integers(64, image.size, rng.integers(1, 4)):
            image[at] ^= 1 << int(rng.integers(0, 8))
        expected, refused = memory(), ""
        try:
            execute(reseal(image), expected, make_table())
        except (ImageCorrupt, ValueError) as exc:
            refused = str(exc)
        try:
            found = trusting.run(image)
        except ImageCorrupt as exc:
            if refused or "must be an earlier task" in str(exc):  # the host may run tasks in another order than listed
                continue
            raise
        assert not refused
        ran += 1
        for name, wanted in expected.items():
            np.testing.assert_array_equal(found[name], wanted)
    assert ran > 20


def test_a_later_task_cannot_be_waited_for(device: GraphDevice) -> None:
    """The device walks the tasks as listed; the host would run this image in another order."""
    image = sample()
    pool(image, 3, FANIN)[0] = 3  # of task 2; task 3 waits for none, task 4 for 2 and 3
    pool(image, 2, TASK)["fanin_count"][2:5] = (2, 0, 2)
    pool(image, 2, TASK)["fanin_start"][2:5] = (0, 2, 2)
    execute(reseal(image), memory(), make_table())
    with pytest.raises(ImageCorrupt, match=r"fanin\[0\] is 3, must be an earlier task"):
        device.run(image)


def test_an_operation_that_refuses_ends_the_graph() -> None:
    """The status names the task and the kernel, and no later task runs."""
    table = KernelTable()
    table.add("mark", lambda out, flag: None, outputs=(0,))
    operations = "OPERATION(mark) { REQUIRE(arg[1].integer != 3); arg[0].data[arg[1].integer] = 1; return true; }"
    opened = GraphDevice(table=table, operations=operations)
    image = np.zeros(4096, np.uint8)
    builder = GraphBuilder(image, table, REGIONS)
    out = builder.tensor("output", 0, (16,), np.uint8)
    for flag in (1, 2, 3, 4):
        builder.task("mark", out, flag)
    with pytest.raises(ImageCorrupt, match=r"task 2 of a task graph: .* refused its arguments \(kernel 'mark'\)"):
        opened.run(image[: builder.finish()])
    opened.close()


def test_a_status_that_was_never_written_is_no_success(device: GraphDevice) -> None:
    """Zeros and scribbled memory are not taken for a graph that ran."""
    for byte in (0, 0xDD):
        with pytest.raises(ImageCorrupt, match="it did not run"):
            device.dispatcher.check(np.full(16, byte, np.uint8))


def test_what_cannot_be_dispatched_is_refused_at_once() -> None:
    """Kernels without operations, operations without kernels, open outputs and names that are none in C."""
    regions = tuple(REGIONS)
    with pytest.raises(GraphError, match=r"lack OPERATION\(sub\)"):
        OpenCLDispatcher(make_table(), regions, OPERATIONS.replace("OPERATION(sub)", "bool sub()"))
    with pytest.raises(GraphError, match=r"OPERATION\(mul\) has no kernel; unknown kernel 'mul'; the table has: add"):
        OpenCLDispatcher(make_table(), regions, OPERATIONS + "\nOPERATION(mul) { return true; }")
    with pytest.raises(GraphError, match="lanes=0"):
        OpenCLDispatcher(make_table(), regions, OPERATIONS, lanes=0)
    with pytest.raises(GraphError, match="table is empty"):
        OpenCLDispatcher(KernelTable(), regions, "")
    table = KernelTable()
    table.add("two words", lambda: None, outputs=())
    with pytest.raises(GraphError, match="'two words' cannot be an OpenCL operation"):
        OpenCLDispatcher(table, regions, "")
    table = KernelTable()
    table.add("mark", lambda out: None)
    with pytest.raises(GraphError, match="'mark' does not say what it writes"):
        OpenCLDispatcher(table, regions, "OPERATION(mark) { return true; }")


def test_arguments_are_checked(device: GraphDevice) -> None:
    """A missing region, and a status that does not fit or is not aligned, are named."""
    backend = device.backend
    image, output = backend.alloc(64), backend.alloc(64)
    with pytest.raises(GraphError, match="no memory was given for the regions workspace"):
        device.dispatcher.arguments(image, {"output": output}, output)
    regions = {"workspace": output, "output": output}
    for offset in (-8, 4, 56):
        with pytest.raises(GraphError, match=rf"16 B at offset {offset} must lie at a multiple of 8"):
            device.dispatcher.arguments(image, regions, output, offset)


def test_the_types_of_the_arguments_are_those_of_the_arguments(device: GraphDevice) -> None:
    """One for each, None for a buffer; all graphs here are launched with them."""
    buffer = device.backend.alloc(64)
    arguments = device.dispatcher.arguments(buffer, {"workspace": buffer, "output": buffer}, buffer)
    assert device.dispatcher.argument_types == [None if isinstance(arg, Buffer) else type(arg) for arg in arguments]
