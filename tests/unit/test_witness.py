"""The device's own allocation counter: what a library allocates during a launch does not pass unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from async_orch_backends.host import HostBackend

from async_orch import Orchestrator, SlotSpec, StepProgram
from async_orch.exceptions import HotPathAllocation


class CountingBackend(HostBackend):
    """A device whose allocator counts what others allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def allocation_counter(self) -> Callable[[], int] | None:
        return lambda: self.made


class Allocates(StepProgram[int, int]):
    """Its library allocates in ``open``, and as often as the step says in ``launch``."""

    slot = SlotSpec(image_nbytes=16, output_nbytes=16)

    def __init__(self, backend: CountingBackend) -> None:
        self.backend = backend

    def open(self, device: Any) -> None:
        self.backend.made += 10

    def build(self, step: int, image: Any) -> None:
        image[:] = step

    def launch(self, step: int, slot: Any, stream: Any) -> None:
        self.backend.made += step
        stream.copy(slot.output, slot.image, 16)

    def collect(self, step: int, output: Any) -> int:
        return int(output[0])


@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_an_allocation_in_a_launch_fails_its_step(launch_in: Any) -> None:
    """Under strict_alloc the step fails with how many there were and what to do; the others are not touched."""
    backend = CountingBackend()
    async with Orchestrator(Allocates(backend), backend, launch_in=launch_in) as orch:
        handles = [await orch.submit(step) for step in (0, 2, 0)]
        with pytest.raises(HotPathAllocation, match=r"Allocates made .* 2 times; run the model once in open\(\)"):
            await handles[1]
        assert [(await handles[i]).output for i in (0, 2)] == [0, 0]
        assert orch.statistics().step_path_allocs == 2
    assert orch.statistics().slots_leased == 0
    backend.close()


@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_without_strict_alloc_they_are_counted(launch_in: Any) -> None:
    """Each step's record says how many there were in its own launch; what happened in open is in none."""
    backend, records = CountingBackend(), list[Any]()
    async with Orchestrator(
        Allocates(backend), backend, launch_in=launch_in, strict_alloc=False, observers=[records.append]
    ) as orch:
        assert [result.output async for result in orch.map([0, 3, 0, 1])] == [0, 3, 0, 1]
        assert orch.statistics().step_path_allocs == 4
    assert [record.alloc_count for record in records] == [0, 3, 0, 1]
    backend.close()


async def test_growth_and_barriers_may_allocate() -> None:
    """Only what comes between the beginning and the end of a launch is held against it."""
    backend = CountingBackend()
    async with Orchestrator(Allocates(backend), backend) as orch:
        await orch.run(0)
        await orch.barrier(lambda: setattr(backend, "made", backend.made + 5))
        assert (await orch.run(0)).timings.alloc_count == 0
        assert orch.statistics().step_path_allocs == 0
    backend.close()


async def test_where_nobody_counts_nothing_is_wrapped() -> None:
    """The hook is the program's own."""
    backend = HostBackend()
    program = Allocates(CountingBackend())
    async with Orchestrator(program, backend) as orch:
        opened: Any = orch._opened
        assert [runtime.launch for runtime in opened.runtimes.values()] == [program.launch]
    backend.close()
