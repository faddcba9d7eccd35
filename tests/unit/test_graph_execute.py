"""`execute` and `Executor`: order, memory, isolation, and that the image alone decides."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_orch._graph_format import FANIN, TASK
from async_orch.graph import Executor, GraphBuilder, GraphError, ImageCorrupt, KernelTable, execute
from tests.graph_support import REGIONS, SAMPLE_RESULT, Bytes, build_sample, make_table, memory, pool, reseal, tensors

FRESH_PROCESS = """
import sys
import numpy as np
from async_orch.graph import execute
from tests.graph_support import make_table, memory

regions = memory()
execute(np.frombuffer(sys.stdin.buffer.read(), np.uint8), regions, make_table())
print(*regions["output"][:4].tolist())
"""


def sample() -> Bytes:
    image = np.zeros(1 << 14, np.uint8)
    return image[: build_sample(image, make_table())]


def traced(n_tasks: int) -> tuple[KernelTable, list[int], Bytes]:
    """`n_tasks` tasks that log their number, each after the one before; the table, the log and the image."""
    table, log = KernelTable(), list[int]()
    table.add("log", log.append, n_args=1, outputs=())
    image = np.zeros(1 << 14, np.uint8)
    builder = GraphBuilder(image, table, {})
    for task in range(n_tasks):
        builder.task("log", task, after=range(task)[-1:])
    return table, log, image[: builder.finish()]


def test_the_result_is_that_of_the_calls() -> None:
    """Running the sample leaves what its kernels compute, by either way of giving the regions."""
    for regions in (memory(), list(memory().values())):
        execute(sample(), regions, make_table())
        output = regions["output"] if isinstance(regions, dict) else regions[1]
        assert output[:5].tolist() == [SAMPLE_RESULT] * 4 + [0]


@pytest.mark.parametrize("shift", [0, 1, 7, 64])
def test_an_image_runs_at_any_address(shift: int) -> None:
    """Copied to another address, aligned or not and with other bytes behind it, an image gives the same result."""
    image = sample()
    elsewhere = np.full(image.size + 200, 0xDD, np.uint8)
    elsewhere[shift : shift + image.size] = image
    image[:] = 0
    regions = memory()
    execute(elsewhere[shift:], regions, make_table())
    assert regions["output"][0] == SAMPLE_RESULT


def test_a_fresh_process_runs_the_image() -> None:
    """Image bytes, zeroed regions and the kernel table are all that another process needs."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS], input=sample().tobytes(), capture_output=True, check=True, cwd=root
    )
    assert done.stdout.split() == [str(SAMPLE_RESULT).encode()] * 4


def test_a_changed_kernel_id_is_refused_or_changes_the_result() -> None:
    """Overwritten in place a kernel id breaks the checksum; written with a right one, the other kernel runs."""
    image = sample()
    pool(image, 2, TASK)["kernel"][3] = 0  # add instead of sub
    with pytest.raises(ImageCorrupt, match="checksum"):
        execute(image, memory(), make_table())
    regions = memory()
    execute(reseal(image), regions, make_table())
    assert regions["output"][0] == 4 * (5 + 3) * 4 + 3 & 0x7F


def test_tasks_run_in_dependency_order_not_list_order() -> None:
    """With reversed dependencies the tasks run from last to first; with none, as listed."""
    table, log, image = traced(5)
    execute(image, {}, table)
    assert log == [0, 1, 2, 3, 4]
    log.clear()
    tasks, fanin = pool(image, 2, TASK), pool(image, 3, FANIN)
    tasks["fanin_count"] = [1, 1, 1, 1, 0]
    tasks["fanin_start"] = [0, 1, 2, 3, 4]
    fanin[:] = [1, 2, 3, 4]
    execute(reseal(image), {}, table)
    assert log == [4, 3, 2, 1, 0]


def test_among_ready_tasks_the_lowest_id_runs_first() -> None:
    """An order that is not forced by the graph is still the same every time."""
    table, log, image = traced(5)
    pool(image, 3, FANIN)[:] = [4, 4, 0, 0]  # 1 and 2 after 4; 3 and 4 after 0
    execute(reseal(image), {}, table)
    assert log == [0, 3, 4, 1, 2]


@pytest.mark.parametrize(
    ("fanin", "first", "count"), [([3, 0, 1, 2], 1, 2), ([4, 1, 2, 3], 1, 4), ([0, 2, 1, 3], 2, 1)]
)
def test_a_cycle_is_refused_before_anything_runs(fanin: list[int], first: int, count: int) -> None:
    """Tasks that wait for each other, or for themselves, are refused with how many can never run."""
    table, log, image = traced(5)
    pool(image, 3, FANIN)[:] = fanin
    with pytest.raises(ImageCorrupt, match=rf"cycle: {count} of 5 tasks can never run, the first is task {first}"):
        execute(reseal(image), {}, table)
    assert log == []


def test_only_declared_outputs_are_writable() -> None:
    """Inputs, and everything in the image, arrive read-only; outputs and undeclared tensors writable."""
    flags: list[list[bool]] = []

    def look(*arrays: Any) -> None:
        flags.append([array.flags.writeable for array in arrays])

    table = KernelTable()
    table.add("declared", look, outputs=(1,))
    table.add("open", look)
    image = np.zeros(2048, np.uint8)
    builder = GraphBuilder(image, table, REGIONS)
    a, b = tensors(builder, 2)
    given = builder.put([1])
    builder.task("declared", a, b, given)
    builder.task("declared", b, a, given)
    builder.task("open", a, b, given)
    builder.finish()
    execute(image, memory(), table)
    assert flags == [[False, True, False], [False, True, False], [True, True, False]]


def test_a_kernels_exception_names_its_task() -> None:
    """What a kernel raises passes through as it is, with a note of task and kernel; later tasks do not run."""
    _, log, image = traced(3)
    failing = KernelTable()

    def fail_at_one(task: int) -> None:
        log.append(task)
        if task == 1:
            raise ZeroDivisionError("boom")

    failing.add("log", fail_at_one, n_args=1, outputs=())
    with pytest.raises(ZeroDivisionError, match="boom") as caught:
        execute(image, {}, failing)
    assert caught.value.__notes__ == ["raised in task 1 (kernel 'log') of a task graph"]
    assert log == [0, 1]


def test_regions_are_matched_by_name() -> None:
    """The order of a mapping plays no part, other names are ignored, a missing or short region is refused."""
    regions = memory()
    shuffled = {"other": np.zeros(1, np.uint8), **dict(reversed(regions.items()))}
    execute(sample(), shuffled, make_table())
    assert regions["output"][0] == SAMPLE_RESULT
    for wrong, message in (
        ({"workspace": regions["workspace"]}, r"regions.name\[2\] is b'output', must be one of \[b'workspace'\]"),
        ({**regions, "output": np.zeros(8, np.uint8)}, r"regions.nbytes\[2\] is 256, must be at most 8"),
        ([regions["workspace"]], r"regions.name\[2\] is b'output'"),
    ):
        with pytest.raises(ImageCorrupt, match=message):
            execute(sample(), wrong, make_table())
    with pytest.raises(GraphError, match=r"region b'output' must be a contiguous one-dimensional uint8 array"):
        execute(sample(), {**regions, "output": np.zeros(256, np.uint8)[::2]}, make_table())


def test_another_kernel_table_is_refused() -> None:
    """A device whose table differs does not run the image, since ids would mean other kernels."""
    table = make_table()
    table.add("more", lambda: None)
    with pytest.raises(ImageCorrupt, match=r"kernel table is 0x[0-9a-f]{16}, the device's is 0x"):
        execute(sample(), memory(), table)


def test_an_executor_follows_changed_images() -> None:
    """A kept plan serves equal graphs only: new scalars and inputs count, and so do changed tasks and operands."""
    table = make_table()
    run = Executor(table)
    builder = GraphBuilder(None, table, REGIONS)
    (out,) = tensors(builder, 1, "output")
    (other,) = tensors(builder, 1)
    for step in range(1, 40):
        image, regions = np.zeros(2048, np.uint8), memory()
        builder.reset(image)
        kernel = "add" if step % 3 else "sub"
        given = builder.put([step])
        builder.task(kernel, given, float(step // 2), out if step % 5 else other)
        builder.finish()
        run(image, regions)
        expected = step + step // 2 if step % 3 else step - step // 2
        assert regions["output" if step % 5 else "workspace"][0] == expected


def test_an_executor_keeps_a_bounded_number_of_plans() -> None:
    """However many different graphs pass through, the kept plans do not grow beyond their limit."""
    table = make_table()
    run = Executor(table)
    builder = GraphBuilder(None, table, REGIONS)
    (out,) = tensors(builder, 1, "output")
    for n_tasks in range(1, 30):
        image = np.zeros(1 << 13, np.uint8)
        builder.reset(image)
        for value in range(n_tasks):
            builder.task("fill", value, out)
        builder.finish()
        for _ in range(2):
            regions = memory()
            run(image, regions)
            assert regions["output"][0] == n_tasks - 1
    assert len(run._plans) == 16


def test_an_executor_checks_again_for_smaller_regions() -> None:
    """A plan that was checked with a large region does not serve for a region that is too small for it."""
    table, image = make_table(), sample()
    run = Executor(table)
    run(image, memory())
    regions = memory() | {"output": np.zeros(2, np.uint8)}
    with pytest.raises(ImageCorrupt, match=r"regions.nbytes"):
        run(image, regions)


def test_no_view_outlives_the_call() -> None:
    """After a call nothing of the executor refers to device memory, so that the memory can be given back."""
    run = Executor(make_table())
    image, regions = sample(), memory()
    before = [sys.getrefcount(array) for array in (image, *regions.values())]
    run(image, regions)
    assert [sys.getrefcount(array) for array in (image, *regions.values())] == before


def test_an_empty_graph_does_nothing() -> None:
    """A graph without tasks is an image like any other."""
    image = np.zeros(512, np.uint8)
    GraphBuilder(image, KernelTable(), {}).finish()
    execute(image, {}, KernelTable())
