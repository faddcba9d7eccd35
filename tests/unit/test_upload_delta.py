"""``upload="delta"``: what goes to the device, what the record says of it, and what brings back the full copy."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from async_orch import Built, Orchestrator, SlotSpec, open_backend
from async_orch import _uploads as uploads
from async_orch._delta import Delta, Shadow
from async_orch.abc import ByteArray
from async_orch.exceptions import ConfigurationError, CopyError, DeviceError, DeviceLost, OrchError
from async_orch.logs import StepRecord
from async_orch.testing import Fault, FaultPlan, ManualBackend, leak_check
from tests.bench.paged_decode import images
from tests.programs import settle
from tests.uploads import Echo, Mirror

NBYTES = 64 * 100
BLANK = bytes(NBYTES)


def edited(image: bytes, *places: int) -> bytes:
    """``image`` with these bytes changed."""
    array = bytearray(image)
    for place in places:
        array[place] ^= 0x5A
    return bytes(array)


def copies(backend: ManualBackend) -> list[tuple[int, int]]:
    """First byte and size of the copies that wait on the copy stream."""
    return [(payload[3], payload[2]) for kind, payload in backend.copy.ops if kind == "copy"]


async def finish(backend: ManualBackend, handle: Any) -> bytes:
    """Let the device do all it has, and give the step's result."""
    backend.run()
    await settle()
    output: bytes = (await handle).output
    return output


async def test_only_blocks_that_differ_are_copied() -> None:
    """The second image in a slot costs the blocks that changed; ranges far apart are copies of their own."""
    backend = ManualBackend()
    backend.copy_overhead_nbytes = 64
    async with Orchestrator(Echo(NBYTES), backend, slots=1, upload="delta") as orch:
        first = await orch.submit(BLANK)
        assert copies(backend) == [(0, NBYTES)]
        assert await finish(backend, first) == BLANK
        step = edited(BLANK, 0, 130, 5000)
        second = await orch.submit(step)
        assert copies(backend) == [(0, 192), (4992, 64)]
        assert await finish(backend, second) == step
        third = await orch.submit(step)
        assert copies(backend) == []
        assert await finish(backend, third) == step


async def test_each_slot_has_its_own_memory_of_what_it_holds() -> None:
    """An image is compared with the last one in the same slot, not with the last step's."""
    backend = ManualBackend()
    backend.copy_overhead_nbytes = 0
    steps = [BLANK, edited(BLANK, 64), edited(BLANK, 128), edited(BLANK, 64, 6000)]
    seen = []
    async with Orchestrator(Echo(NBYTES), backend, slots=2, upload="delta") as orch:
        for step in steps:
            handle = await orch.submit(step)
            seen.append(copies(backend))
            assert await finish(backend, handle) == step
    assert seen == [[(0, NBYTES)], [(0, NBYTES)], [(128, 64)], [(5952, 64)]]


async def test_the_record_has_what_was_really_copied() -> None:
    """copy_nbytes and sm_nbytes count copied bytes, the split of h2d_ns follows them; delta_ns is the comparison."""

    class Splits(Echo):
        def build(self, step: bytes, image: ByteArray) -> Any:
            return Built(super().build(step, image), sm_nbytes=128)

    backend, records = ManualBackend(), list[StepRecord]()
    backend.copy_overhead_nbytes = 0
    async with Orchestrator(Splits(NBYTES), backend, slots=1, upload="delta", step_log=records.append) as orch:
        for step in (BLANK, edited(BLANK, 0, 70, 1000, 6399), edited(BLANK, 0, 70, 1000, 6399), edited(BLANK, 1000)):
            await finish(backend, await orch.submit(step))
    assert [r.copy_nbytes for r in records] == [NBYTES, 256, 0, 192]
    assert [r.sm_nbytes for r in records] == [128, 128, 0, 128]
    assert all(r.delta_ns is not None for r in records)
    assert [r.h2d_split for r in records] == ["bytes", "bytes", None, "bytes"]
    second = records[1]
    assert second.h2d_ns
    assert second.h2d_sm_ns == second.h2d_ns // 2
    assert all(r.h2d_ns == (r.h2d_graph_ns or 0) + (r.h2d_sm_ns or 0) for r in records)


@pytest.mark.parametrize("options", [{}, {"upload": "full"}, {"upload": "delta", "mode": "naive"}])
async def test_without_delta_every_image_goes_whole(options: dict[str, Any]) -> None:
    """By default, and in mode naive whose slots hold nothing from before, all bytes are copied and delta_ns is null."""
    records: list[StepRecord] = []
    async with Orchestrator(Echo(NBYTES), "sim:instant", slots=1, step_log=records.append, **options) as orch:
        assert [r.output async for r in orch.map([BLANK, BLANK])] == [BLANK, BLANK]
    assert [(r.copy_nbytes, r.delta_ns) for r in records] == [(NBYTES, None)] * 2


def test_another_upload_is_refused_before_anything_opens() -> None:
    """The two values are named."""
    with pytest.raises(ConfigurationError, match="upload='diff' must be one of full, delta"):
        Orchestrator(Echo(64), upload="diff")  # type: ignore[call-overload]


async def test_a_program_that_writes_its_image_gets_it_whole() -> None:
    """Its steps leave nothing known of the slot, for other programs either."""

    class Writes(Echo):
        writes_image = True

    backend = ManualBackend()
    programs: Any = {"reads": Echo(NBYTES), "writes": Writes(NBYTES)}
    seen = []
    async with Orchestrator(programs, backend, slots=1, upload="delta") as orch:
        for name in ("reads", "reads", "writes", "writes", "reads", "reads"):
            handle = await orch.submit(BLANK, program=name)
            seen.append(sum(nbytes for _, nbytes in copies(backend)))
            await finish(backend, handle)
    assert seen == [NBYTES, 0, NBYTES, NBYTES, NBYTES, 0]


async def test_programs_of_one_orchestrator_share_what_a_slot_holds() -> None:
    """An image of another size and program is compared with whatever the slot holds."""
    backend = ManualBackend()
    backend.copy_overhead_nbytes = 0
    programs: dict[str, Any] = {"long": Echo(NBYTES), "short": Echo(640)}
    async with Orchestrator(programs, backend, slots=1, upload="delta") as orch:
        await finish(backend, await orch.submit(BLANK, program="long"))
        short = edited(bytes(640), 639)
        handle = await orch.submit(short, program="short")
        assert copies(backend) == [(576, 64)]
        assert await finish(backend, handle) == short
        handle = await orch.submit(BLANK, program="long")
        assert copies(backend) == [(576, 64)]
        assert await finish(backend, handle) == BLANK


async def test_the_fixed_region_gets_all_of_the_image() -> None:
    """With image_at="fixed" the copy to the slot is the difference, the one on the device is whole."""
    backend, records = ManualBackend(), list[StepRecord]()
    backend.copy_overhead_nbytes = 0
    program = Echo(NBYTES, image_at="fixed")
    async with Orchestrator(program, backend, slots=2, upload="delta", step_log=records.append) as orch:
        for step in (BLANK, edited(BLANK, 7), edited(BLANK, 700), BLANK):
            assert await finish(backend, await orch.submit(step)) == step
    assert [r.copy_nbytes for r in records] == [NBYTES, NBYTES, 64, 64]


async def test_a_grown_slot_is_copied_whole() -> None:
    """A new image buffer holds nothing; a slot whose other parts grew holds what it held."""
    backend = ManualBackend()
    backend.copy_overhead_nbytes = 0
    long = bytes(2 * NBYTES)
    options: Any = {"slots": 1, "grow": "high_water", "upload": "delta"}
    async with Orchestrator(Mirror(NBYTES, grows=True, workspace_nbytes=8), backend, **options) as orch:
        await finish(backend, await orch.submit(BLANK))
        handle = await orch.submit(long)
        assert copies(backend) == [(0, 2 * NBYTES)]
        await finish(backend, handle)
        handle = await orch.submit(edited(long, 2 * NBYTES - 1))
        assert copies(backend) == [(2 * NBYTES - 64, 64)]
        assert await finish(backend, handle) == edited(long, 2 * NBYTES - 1)


async def test_growth_of_another_part_forgets_nothing() -> None:
    """Only the image's own buffer decides."""

    class GrowsWorkspace(Echo):
        def sizes(self, step: bytes) -> SlotSpec:
            return SlotSpec(image_nbytes=NBYTES, output_nbytes=NBYTES, workspace_nbytes=64 * (1 + step[0]))

    backend = ManualBackend()
    options: Any = {"slots": 1, "grow": "high_water", "upload": "delta"}
    async with Orchestrator(GrowsWorkspace(NBYTES, workspace_nbytes=64), backend, **options) as orch:
        await finish(backend, await orch.submit(BLANK))
        handle = await orch.submit(b"\x01" + BLANK[1:])
        assert sum(nbytes for _, nbytes in copies(backend)) == 64
        await finish(backend, handle)


@pytest.mark.parametrize("refused", [1, 2, 3])
async def test_copies_that_cannot_all_be_enqueued_are_made_up_for(refused: int) -> None:
    """The driver refuses the n-th call of the step: it fails, and the next image in that slot goes whole."""
    backend = ManualBackend()
    backend.copy_overhead_nbytes = 0
    async with Orchestrator(Echo(NBYTES), backend, slots=1, upload="delta") as orch:
        await finish(backend, await orch.submit(BLANK))
        original, left = backend.copy.copy, refused

        def copy(*args: Any, **options: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise DeviceError("no room in the queue")
            original(*args, **options)

        backend.copy.copy = copy  # type: ignore[method-assign]
        handle = await orch.submit(edited(BLANK, 0, 1000, 2000))
        backend.run()
        with pytest.raises(CopyError, match="no room in the queue"):
            await handle
        backend.copy.copy = original  # type: ignore[method-assign]
        handle = await orch.submit(BLANK)
        assert copies(backend) == [(0, NBYTES)]
        assert await finish(backend, handle) == BLANK


@pytest.mark.parametrize("action", ["raise", "short_copy"])
async def test_a_copy_that_fails_on_the_device_is_made_up_for(action: Any) -> None:
    """After the second of three copies failed half-way, the next image in that slot goes whole."""
    plan = FaultPlan(Fault(action=action, operation="copy", stream="copy", nth=3, copied_nbytes=5))
    backend, records = open_backend("sim:instant", faults=plan), list[StepRecord]()
    async with Orchestrator(Echo(NBYTES), backend, slots=1, upload="delta", step_log=records.append) as orch:
        await orch.run(BLANK)
        with pytest.raises(CopyError):
            await orch.run(edited(BLANK, 0, 1000, 2000))
        assert (await orch.run(BLANK)).output == BLANK
        assert (await orch.run(edited(BLANK, 1))).output == edited(BLANK, 1)
    assert [r.copy_nbytes for r in records] == [NBYTES, 192, NBYTES, 64]
    backend.close()


@pytest.mark.parametrize("hook", ["launch", "kernel"])
async def test_a_step_that_fails_after_its_copy_leaves_the_slot_known(hook: str) -> None:
    """The image arrived: the next one is compared with it."""
    program, records = Mirror(NBYTES), list[StepRecord]()
    bad = edited(BLANK, 100)
    program.fails[bad] = hook
    async with Orchestrator(program, "sim:instant", slots=1, upload="delta", step_log=records.append) as orch:
        await orch.run(BLANK)
        with pytest.raises(OrchError):
            await orch.run(bad)
        assert (await orch.run(BLANK)).output == BLANK
    assert [r.copy_nbytes for r in records] == [NBYTES, 64, 64]


async def test_a_cancel_between_copy_and_launch_keeps_the_slot_until_the_copy_is_over() -> None:
    """The slot comes back at the copy's fence, and then holds that image."""
    backend = ManualBackend()
    backend.copy_overhead_nbytes = 0
    other = edited(BLANK, 64)
    async with Orchestrator(Echo(NBYTES), backend, slots=1, upload="delta") as orch:
        await finish(backend, await orch.submit(BLANK))
        async with LaunchesHeld(orch):
            handle = await orch.submit(other)
            assert copies(backend) == [(64, 64)]
            assert handle.cancel()
            assert orch.statistics().slots_leased == 1
        later = await orch.submit(edited(other, 640))
        backend.run()
        await settle()
        assert await finish(backend, later) == edited(other, 640)
        assert backend.streams["copy"].enqueued.count("copy") == 3


class LaunchesHeld:
    """Holds every launch while inside; builds and copies go on."""

    def __init__(self, orch: Orchestrator[Any, Any]) -> None:
        self._barriers = orch._opened.pipeline.barriers  # type: ignore[union-attr]

    async def __aenter__(self) -> None:
        self._barrier = self._barriers.put_up(rebuild=False)

    async def __aexit__(self, *exc: object) -> None:
        self._barriers.take_down(self._barrier)


async def test_a_reopened_device_gets_whole_images() -> None:
    """What was on the device before it was lost is not relied on."""
    plan = FaultPlan(Fault(action="lose_device", operation="launch", nth=2))
    backend, records = open_backend("sim:instant", faults=plan), list[StepRecord]()
    async with Orchestrator(Echo(NBYTES), backend, slots=1, upload="delta", step_log=records.append) as orch:
        await orch.run(BLANK)
        with pytest.raises(DeviceLost):
            await orch.run(BLANK)
        await orch.reopen()
        assert (await orch.run(BLANK)).output == BLANK
        await orch.run(BLANK)
    assert [r.copy_nbytes for r in records] == [NBYTES, 0, NBYTES, 0]
    backend.close()


async def test_a_paged_decode_copies_a_tenth_at_most() -> None:
    """Batch 16 at the size of Qwen3-14B, block tables moving: the blocks that differ from three steps before."""
    steps, copied = images(70, unrolled=False), list[int]()

    def count(record: StepRecord) -> None:
        copied.append(record.copy_nbytes or 0)

    async with Orchestrator(Echo(max(map(len, steps))), "sim:instant", upload="delta", step_log=count) as orch:
        for step in steps:
            assert (await orch.run(step.tobytes())).output == step.tobytes()
    differing = [
        64 * int((new.reshape(-1, 64) != old.reshape(-1, 64)).any(axis=1).sum())
        for old, new in zip(steps, steps[3:], strict=False)
    ]
    assert copied[:3] == [len(step) for step in steps[:3]]
    exact = [pair for pair in zip(copied[3:], differing, strict=True) if pair[0] == pair[1]]
    assert all(real >= least for real, least in zip(copied[3:], differing, strict=True))
    assert len(exact) > 40, "gaps are copied along only where there would be too many copies"
    assert sum(copied[3:]) <= 0.1 * sum(len(step) for step in steps[3:])


# -- on the thread -------------------------------------------------------------------------------------------


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Comparisons of all sizes go to the thread, and wait there until the gate is opened."""
    opened = threading.Event()
    original = Shadow.compare

    def compare(self: Shadow, *args: Any) -> Delta:
        opened.wait(10)
        return original(self, *args)

    monkeypatch.setattr(uploads, "INLINE_NBYTES", 0)
    monkeypatch.setattr(Shadow, "compare", compare)
    return opened


async def test_a_comparison_on_the_thread_holds_up_its_step_and_not_the_loop(gate: threading.Event) -> None:
    """Its step waits with the slot, later ones behind it; then all go on in order."""
    with leak_check():
        async with Orchestrator(Echo(NBYTES), "sim:instant", upload="delta") as orch:
            handles = [await orch.submit(edited(BLANK, n)) for n in range(2)]
            assert [handle.status for handle in handles] == ["acquired", "acquired"]
            gate.set()
            assert [(await handle).output for handle in handles] == [edited(BLANK, n) for n in range(2)]


async def test_a_step_removed_during_its_comparison_keeps_its_buffers_until_that_is_over(gate: threading.Event) -> None:
    """Staging that is being read is not built in, and a slot that is being compared is not leased."""
    with leak_check():
        async with Orchestrator(Echo(NBYTES), "sim:instant", slots=1, upload="delta") as orch:
            handle = await orch.submit(BLANK)
            assert handle.cancel()
            assert handle.status == "cancelled"
            statistics = orch.statistics()
            assert (statistics.staging_leased, statistics.slots_leased) == (1, 1)
            gate.set()
            assert (await orch.run(edited(BLANK, 3))).output == edited(BLANK, 3)


async def test_leaving_during_a_comparison_waits_for_it(gate: threading.Event) -> None:
    """Closing on an exception removes the step, and frees its memory only when the thread has let go of it."""
    orch = Orchestrator(Echo(NBYTES), "sim:instant", upload="delta")
    with leak_check(), pytest.raises(ArithmeticError):
        async with orch:
            await orch.submit(BLANK)
            threading.Timer(0, gate.set).start()
            raise ArithmeticError
    assert orch.statistics().staging_leased == 0


async def test_a_comparison_that_fails_is_its_steps_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong there, the step says so and the next one in the slot is copied whole."""
    original = Shadow.compare
    broken = [True]

    def compare(self: Shadow, *args: Any) -> Delta:
        if broken.pop():
            raise MemoryError("no memory for the blocks")
        return original(self, *args)

    monkeypatch.setattr(Shadow, "compare", compare)
    async with Orchestrator(Echo(NBYTES), "sim:instant", slots=1, upload="delta") as orch:
        with pytest.raises(CopyError, match="comparing the image with the slot's failed: MemoryError"):
            await orch.run(BLANK)
        broken.append(False)
        assert (await orch.run(BLANK)).output == BLANK


async def test_large_images_are_compared_off_the_loop() -> None:
    """An image beyond the limit takes the thread, a smaller one of the same program does not; both are right."""
    size = uploads.INLINE_NBYTES + 1
    async with Orchestrator(Echo(size), "host", slots=2, upload="delta") as orch:
        names = {thread.name for thread in threading.enumerate()}
        assert "async_orch-delta-0" in names
        image = np.random.default_rng(0).integers(0, 255, size, np.uint8).tobytes()
        for step in (image, image[:100], edited(image, 5), edited(image, size - 1), image):
            assert (await orch.run(step)).output == step
