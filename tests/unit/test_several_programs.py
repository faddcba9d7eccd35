"""Several programs in one orchestrator, size classes, and growth."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from async_orch import Device, Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._slot import SlotMemory
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import ConfigurationError, CopyError
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend
from tests.programs import Square, settle


def copy_all(image: ByteArray, output: ByteArray, nbytes: int) -> None:
    output.view("i8")[0] = int(image[:nbytes].sum())


class Variable(StepProgram[int, int]):
    """A step is a number of image bytes; the output is their sum, all ones."""

    slot = SlotSpec(image_nbytes=100, workspace_nbytes=10, output_nbytes=8)

    def __init__(self) -> None:
        self.changed: list[list[int]] = []

    def sizes(self, step: int) -> SlotSpec | None:
        return SlotSpec(image_nbytes=step, workspace_nbytes=step // 10, output_nbytes=8)

    def build(self, step: int, image: ByteArray) -> int | None:
        image[:] = 1
        return step

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(copy_all, slot.image, slot.output, step)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view("i8")[0])

    def slots_changed(self, slots: list[SlotMemory]) -> None:
        self.changed.append([0 if s.image is None else s.image.nbytes for s in slots])


async def test_programs_share_one_launch_order_and_one_ring() -> None:
    """Steps of two programs launch in the order of submission, in slots that hold the larger of both."""
    launched: list[str] = []

    class Named(Square):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            launched.append(f"{self.name} {step}")
            return super().launch(step, slot, stream)

    records: list[StepRecord] = []
    programs = {"prefill": Named("prefill"), "decode": Named("decode")}
    async with Orchestrator(programs, "host", step_log=records.append, max_inflight=6) as orch:
        names = ["prefill", "decode", "decode", "prefill"]
        handles = [await orch.submit(i, program=name) for i, name in enumerate(names)]
        assert [(await h).output for h in handles] == [0, 1, 4, 9]
        after = await orch.submit(5, program="decode", after=handles[0])
        assert (await after).output == 25
        with pytest.raises(ConfigurationError, match="name the program: program= one of prefill, decode"):
            await orch.submit(1)
        with pytest.raises(ConfigurationError, match="program='train' is not one of prefill, decode"):
            await orch.submit(1, program="train")
    assert launched == ["prefill 0", "decode 1", "decode 2", "prefill 3", "decode 5"]
    assert [r.program for r in sorted(records, key=lambda r: r.seq)] == [*names, "decode"]
    assert [p.calls for p in programs.values()] == [["open", "close"]] * 2


async def test_programs_share_resident_memory_by_name() -> None:
    """The second program gets the first one's buffer; another size under the same name is refused."""
    seen: list[Any] = []

    class Shares(Square):
        def __init__(self, nbytes: int) -> None:
            super().__init__()
            self.nbytes = nbytes

        def open(self, device: Device) -> None:
            seen.append(device.shared("weights", self.nbytes))

    async with Orchestrator({"a": Shares(64), "b": Shares(64)}, "sim:instant") as orch:
        assert seen[0] is seen[1]
        assert orch.statistics().resident_nbytes == 64
    with pytest.raises(ConfigurationError, match="'weights' has 64 B, 32 B were asked for"):
        async with Orchestrator({"a": Shares(64), "b": Shares(32)}, "sim:instant"):
            pass


async def test_each_step_gets_the_smallest_class_it_fits_in() -> None:
    """Small and large steps have rings of their own; order of launch stays that of submission."""
    classes = (
        (SlotSpec(image_nbytes=100, workspace_nbytes=10), 2),
        (SlotSpec(image_nbytes=1000, workspace_nbytes=100), 1),
    )
    backend = ManualBackend()
    async with Orchestrator(Variable(), backend, slot_classes=classes) as orch:
        assert orch.statistics().slots_total == 3
        handles = [await orch.submit(n) for n in (50, 100, 1000)]
        assert [h.status for h in handles] == ["launched"] * 3
        waiting = await orch.submit(60)
        assert waiting.status == "built"
        with pytest.raises(ConfigurationError, match=r"the step needs image 2000, .* the largest slot has image 1000"):
            await orch.submit(2000)
        for _ in range(2):
            backend.copy.run()
            backend.compute.run()
            await settle()
        assert [(await h).output for h in (*handles, waiting)] == [50, 100, 1000, 60]


def test_wrong_slot_classes_are_refused() -> None:
    """Unsorted, too small for the programs, or no pairs: refused before opening, with the numbers."""
    small, large = SlotSpec(image_nbytes=10), SlotSpec(image_nbytes=1000, workspace_nbytes=100)
    with pytest.raises(ConfigurationError, match="must go from small to large: image 10 B"):
        Orchestrator(Variable(), "sim:instant", slot_classes=((large, 1), (small, 1)))
    with pytest.raises(ConfigurationError, match="pairs, got 3"):
        Orchestrator(Variable(), "sim:instant", slot_classes=(3,))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="slots of a slot class=0 must be >= 1"):
        Orchestrator(Variable(), "sim:instant", slot_classes=((large, 0),))


async def test_classes_too_small_for_a_program_are_refused_at_open() -> None:
    """The largest class must hold every program's slot."""
    with pytest.raises(ConfigurationError, match="slot_classes are too small: the largest has image 10"):
        async with Orchestrator(Variable(), "sim:instant", slot_classes=((SlotSpec(image_nbytes=10), 1),)):
            pass


async def test_without_growth_a_step_that_needs_more_is_refused() -> None:
    """grow='never' refuses at submit, with what is needed and what there is."""
    async with Orchestrator(Variable(), "sim:instant") as orch:
        with pytest.raises(ConfigurationError, match="or use grow='high_water'"):
            await orch.submit(200)
        assert (await orch.run(100)).output == 100


@pytest.mark.parametrize("backend", ["sim:instant", "host"])
async def test_growth_reallocates_only_the_slot_about_to_be_leased(backend: str) -> None:
    """A larger step grows its own slot and staging, once; the program is told; alloc fields stay 0."""
    program = Variable()
    records: list[StepRecord] = []
    with structlog.testing.capture_logs() as events:
        async with Orchestrator(program, backend, grow="high_water", slots=2, step_log=records.append) as orch:
            outputs = [(await orch.run(n)).output for n in (100, 300, 100, 300, 300)]
            assert outputs == [100, 300, 100, 300, 300]
            assert orch.statistics().step_path_allocs == 0
    assert program.changed == [[100, 300], [300, 300]]
    grown = [e for e in events if e["event"] == "ring.grown" and e["ring"] == "slots"]
    assert len(grown) == 2
    reasons = [r.cold_reason for r in sorted(records, key=lambda r: r.seq)]
    assert reasons[0] == "first_launch"
    assert reasons[1] == "slot_grown"
    assert all(r.alloc_count == 0 for r in records)


async def test_growth_that_does_not_fit_fails_its_step_and_keeps_the_old_slot() -> None:
    """Allocate first, free after: out of memory costs the one step."""
    backend = ManualBackend(capacity_nbytes=2 * 118 + 400)
    async with Orchestrator(Variable(), backend, grow="high_water", slots=2) as orch:
        handle = await orch.submit(5000)
        with pytest.raises(CopyError, match="slot could not be allocated"):
            await handle
        assert orch.statistics().slots_leased == 0
        handle = await orch.submit(100)
        backend.copy.run()
        backend.compute.run()
        assert (await handle).output == 100


def test_a_program_that_keeps_addresses_needs_to_be_told() -> None:
    """Growth is refused for a program that keeps addresses and has no slots_changed."""

    class Keeps(Square):
        keeps_addresses = True

    with pytest.raises(ConfigurationError, match=r"which Keeps keeps; define slots_changed\(\)"):
        Orchestrator(Keeps(), "sim:instant", grow="high_water")


async def test_a_step_id_in_flight_cannot_be_taken_again() -> None:
    """Ids of unsettled steps differ; a settled step's id is free; unhashable ids are refused."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        first = await orch.submit(1, step_id="a")
        with pytest.raises(ConfigurationError, match="step_id='a' is in flight already"):
            await orch.submit(2, step_id="a")
        with pytest.raises(TypeError, match="must be hashable"):
            await orch.submit(2, step_id=[])
        backend.copy.run()
        backend.compute.run()
        await first
        second = await orch.submit(2, step_id="a")
        backend.copy.run()
        backend.compute.run()
        assert (await second).step_id == "a"


async def test_a_step_id_that_equals_its_seq_is_free_after_the_step() -> None:
    """A caller that counts its steps as we do can use an id again too."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        for value in (3, 4):
            assert (await orch.run(value, step_id=0)).output == value * value
