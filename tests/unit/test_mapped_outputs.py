"""Outputs in memory that device and host share: nothing is copied back, and everything else is as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from anyio import wait_all_tasks_blocked

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import CopyError, LaunchError, OutOfDeviceMemory, OutputEscaped
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend
from tests.programs import Square
from tests.sharing import outputs


class Sharing(ManualBackend):
    """A device that works in the host's memory. Like every test device it complains of memory used after `free`."""

    def __init__(self) -> None:
        super().__init__(shares_memory=True)
        self.touched: list[tuple[str, bool]] = []
        self.too_little = False

    def touch(self, buffer: Buffer) -> None:
        super().touch(buffer)
        self.touched.append((buffer.name, buffer.is_host))
        if self.too_little and buffer.name == "slot.output":
            raise OutOfDeviceMemory("no memory for slot.output")


class Sum(StepProgram[int, int]):
    """A step of n has an output of n bytes, all n, and gives their sum."""

    slot = SlotSpec(image_nbytes=0, workspace_nbytes=8, output_nbytes=8)

    def sizes(self, step: int) -> SlotSpec | None:
        return SlotSpec(image_nbytes=0, workspace_nbytes=8, output_nbytes=step)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        def fill(output: ByteArray) -> None:
            output[:step] = step

        stream.launch(fill, slot.output)
        return step

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.sum())


@pytest.mark.parametrize("mode", ["pipelined", "ring"])
@pytest.mark.parametrize("launch_in", ["inline", "thread"])
async def test_nothing_is_copied_back(mode: Any, launch_in: Any) -> None:
    """The compute stream gets no copy; one fence ends kernels and output; the record has no time of a copy."""
    backend, records = Sharing(), list[StepRecord]()
    options: dict[str, Any] = {"mode": mode, "launch_in": launch_in, "slots": 2, "step_log": records.append}
    async with Orchestrator(Square(), backend, **options) as orch:
        handles = []
        for step in range(5):
            handles.append(await orch.submit(step))
            if launch_in == "thread":
                while not backend.compute.ops:
                    backend.copy.run()
                    await wait_all_tasks_blocked()
            backend.run()
            await wait_all_tasks_blocked()
        assert [(await handle).output for handle in handles] == [0, 1, 4, 9, 16]
    assert "copy" not in backend.compute.enqueued
    assert backend.compute.enqueued.count("launch") == 5
    assert [(record.d2h_ns, record.d2h_nbytes) for record in records] == [(None, 8)] * 5
    assert all(record.device_ns is not None for record in records)
    assert backend.live == []


async def test_the_output_is_allocated_and_touched_at_open() -> None:
    """Both buffers of each slot's output are resident before the first step, and no other buffer stands in for them."""
    backend = Sharing()
    async with Orchestrator(Square(), backend, slots=2):
        assert backend.touched.count(("slot.output", False)) == backend.touched.count(("slot.output", True)) == 2
        names = [buffer.name for buffer in backend.live]
        assert names.count("slot.output") == 4
        assert "slot.output_host" not in names
    assert backend.live == []


async def test_a_step_reads_its_own_output_although_its_neighbours_share_the_ring() -> None:
    """Steps under way at once have outputs of their own, and a slot is not used again before collect has returned."""
    backend = Sharing()
    async with Orchestrator(Square(), backend, slots=3, queue_depth=5) as orch:
        handles = [orch.submit_nowait(step) for step in range(8)]
        for _ in range(8):
            backend.copy.run()
            backend.compute.run_step()
            await wait_all_tasks_blocked()
        assert [(await handle).output for handle in handles] == [step * step for step in range(8)]


async def test_each_step_allocates_in_mode_naive() -> None:
    """There the output is allocated, copied and freed as everything else is."""
    backend = Sharing()
    async with Orchestrator(Square(), backend, mode="naive") as orch:
        assert await outputs(orch, backend, [1, 2, 3]) == [1, 4, 9]
        assert orch.statistics().step_path_allocs == 9
    assert backend.compute.enqueued.count("copy") == 3
    assert backend.live == []


async def test_an_output_that_grows_is_shared_as_well() -> None:
    """The slot gets a larger piece of shared memory, and the smaller one is freed."""
    backend = Sharing()
    async with Orchestrator(Sum(), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [4, 100, 8, 200]) == [16, 10_000, 64, 40_000]
        assert sorted(b.nbytes for b in backend.live if b.name.startswith("slot.output")) == [200, 200]
    assert "copy" not in backend.compute.enqueued
    assert backend.live == []


async def test_an_output_stays_shared_where_another_part_of_its_slot_grows() -> None:
    """Only what is too small is allocated anew: the output is not, and is not copied onto itself."""

    class Works(Sum):
        def sizes(self, step: int) -> SlotSpec | None:
            return SlotSpec(image_nbytes=0, workspace_nbytes=100 * step, output_nbytes=8)

    backend = Sharing()
    async with Orchestrator(Works(), backend, slots=1, grow="high_water") as orch:
        before = [b for b in backend.live if b.name.startswith("slot.output")]
        assert await outputs(orch, backend, [1, 8]) == [1, 64]
        assert [b for b in backend.live if b.name.startswith("slot.output")] == before
    assert "copy" not in backend.compute.enqueued


@pytest.mark.parametrize("mode", ["pipelined", "naive"])
async def test_a_slot_that_replaces_a_lost_one_is_like_it(mode: Any) -> None:
    """Its output is shared where slots keep their memory, and not where each step allocates."""
    backend = Sharing()
    async with Orchestrator(Square(), backend, slots=1, mode=mode) as orch:
        opened: Any = orch._opened
        memory = opened.pipeline.memory
        memory.replace_slot(memory.classes[0].ring)
        assert [m.mapped for m in memory.classes[0].memories] == [mode == "pipelined"] * 2
        assert await outputs(orch, backend, [1, 2, 3, 4]) == [1, 4, 9, 16]
    assert backend.compute.enqueued.count("copy") == (0 if mode == "pipelined" else 4)
    assert backend.live == []


@pytest.mark.parametrize("shared_before", [True, False])
async def test_an_output_can_grow_into_memory_of_the_other_kind(shared_before: bool) -> None:
    """Shared memory has run out, or there is some now: outputs are copied from then on, or no longer."""
    backend = Sharing()
    backend.shares_memory = shared_before
    async with Orchestrator(Sum(), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [8]) == [64]
        copies = backend.compute.enqueued.count("copy")
        backend.shares_memory = not shared_before
        assert await outputs(orch, backend, [100, 8]) == [10_000, 64]
        found = copies, backend.compute.enqueued.count("copy") - copies
    assert found == ((0, 2) if shared_before else (1, 0))
    assert backend.live == []


async def test_growth_that_does_not_fit_leaves_the_shared_output_in_use() -> None:
    """The step fails; the slot works on with what it has, and nothing of the attempt is left."""
    backend = Sharing()
    async with Orchestrator(Sum(), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [8]) == [64]
        before = list(backend.live)
        backend.too_little = True
        with pytest.raises(CopyError, match=r"no memory for slot\.output"):
            await outputs(orch, backend, [100])
        assert backend.live == before
        assert await outputs(orch, backend, [8]) == [64]
    assert backend.live == []


async def test_shared_memory_that_cannot_be_touched_is_refused_at_open() -> None:
    """The error says which slot does not fit, and everything is freed."""
    backend = Sharing()
    backend.too_little = True
    with pytest.raises(OutOfDeviceMemory, match=r"slot 1 of 3 does not fit.*no memory for slot\.output"):
        async with Orchestrator(Square(), backend):
            pass
    assert backend.live == []


async def test_a_failed_kernel_fails_its_step_only() -> None:
    """Its output is not collected; the kernels are named as what failed, as there is no copy that could have."""
    backend = Sharing()

    class Fails(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            if step == 1:
                stream.launch(_broken)
            return super().launch(step, slot, stream)

    async with Orchestrator(Fails(), backend, slots=2) as orch:
        assert await outputs(orch, backend, [0]) == [0]
        with pytest.raises(LaunchError, match="its kernels failed"):
            await outputs(orch, backend, [1])
        assert await outputs(orch, backend, [2]) == [4]


def _broken() -> None:
    raise ArithmeticError("no such number")


async def test_what_collect_gives_must_still_be_a_copy() -> None:
    """The view is read-only, and memory of it that gets out is refused: the next step writes there."""
    backend = Sharing()

    class Leaks(Square):
        def collect(self, step: int, output: ByteArray) -> Any:
            assert not output.flags.writeable
            return output

    async with Orchestrator(Leaks(), backend) as orch:
        handle = await orch.submit(1)
        backend.run()
        await wait_all_tasks_blocked()
        with pytest.raises(OutputEscaped):
            await handle


async def test_a_part_of_the_output_can_be_enough() -> None:
    """``launch`` says how many bytes it used; ``collect`` sees those."""
    backend, seen = Sharing(), list[int]()

    class Part(Square):
        slot = SlotSpec(image=Square.slot.image, workspace_nbytes=64, output_nbytes=64)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            super().launch(step, slot, stream)
            return 8 * step

        def collect(self, step: int, output: ByteArray) -> int:
            seen.append(output.nbytes)
            return int(np.frombuffer(output.tobytes(), "i8")[0]) if step else 0

    async with Orchestrator(Part(), backend) as orch:
        assert await outputs(orch, backend, [0, 1, 8]) == [0, 1, 64]
    assert seen == [0, 8, 64]
