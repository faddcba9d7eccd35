"""Slips of users that were met in trials: each is answered with what to change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Set as AbstractSet
from typing import Any

import pytest

from async_orch import Device, EngineProgram, Layout, Orchestrator, OrchestratorConfig, Slot, SlotSpec, StepProgram
from async_orch._program import validate_program
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import BuildError, ConfigurationError, DeviceLost, LaunchError, MisuseError, StepTimeout
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend
from tests.programs import Square


@pytest.mark.parametrize(
    ("option", "limit"),
    [("slots", 4096), ("queue_depth", 4096), ("build_workers", 256), ("max_inflight", 1_000_000)],
)
def test_a_count_beyond_reason_is_refused_at_once(option: str, limit: int) -> None:
    """A slip of the keyboard does not allocate for minutes."""
    with pytest.raises(ConfigurationError, match=rf"{option}={limit + 1} must be <= {limit}"):
        OrchestratorConfig(**{option: limit + 1})  # type: ignore[arg-type]


async def test_rings_larger_than_free_memory_are_refused_before_any_is_touched() -> None:
    """Needed and free bytes are named, and nothing is allocated."""

    class Small(ManualBackend):
        def free_nbytes(self) -> int | None:
            return 100

    backend = Small()
    with pytest.raises(MemoryError, match=r"3 slots need 240 B of device memory, 100 B are free; lower slots"):
        async with Orchestrator(Square(), backend):
            pass
    assert backend.live == []


@pytest.mark.parametrize("hook", ["open", "build", "launch", "collect", "close"])
def test_an_async_hook_is_refused(hook: str) -> None:
    """A coroutine function in place of a hook would never run."""

    async def wait(*_: object) -> None:
        """Never called."""

    program = type("Waits", (Square,), {hook: wait})()
    with pytest.raises(ConfigurationError, match=rf"Waits\.{hook} is async; hooks are plain functions"):
        validate_program(program)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"x": "f4"}, r"field 'x' must be a pair such as \('i4', \(16,\)\), got 'f4'"),
        ({"x": ("nope", (2,))}, "field 'x': 'nope' is no numpy type"),
        ({"x": ("f4", 4)}, "field 'x': the shape must be a tuple of ints, got 4"),
        ({"x": ("f4", (1.5,))}, "field 'x': the shape must be a tuple of ints"),
    ],
)
def test_a_layout_names_the_field_that_is_wrong(fields: dict[str, Any], message: str) -> None:
    """A string is not taken for a pair, and numpy's own errors get the field's name."""
    with pytest.raises(ConfigurationError, match=message):
        Layout(**fields)


def test_a_size_given_as_image_is_refused() -> None:
    """``image=64`` is answered with where a size goes."""
    with pytest.raises(ConfigurationError, match="image must be a Layout, got 64; a size goes in image_nbytes"):
        SlotSpec(image=64)  # type: ignore[arg-type]


async def test_an_exception_that_cannot_be_printed_still_fails_its_step() -> None:
    """The message says so instead of raising in its turn."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    class Odd(Square):
        def build(self, step: int, image: Any) -> int | None:
            raise Mute

    async with Orchestrator(Odd(), "sim:instant") as orch:
        with pytest.raises(BuildError, match=r"Mute \(whose text cannot be had: ValueError\)"):
            await orch.run(1)


async def test_a_handle_awaited_on_another_loop_says_so() -> None:
    """Not asyncio's own words about futures attached to loops."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        handle = await orch.submit(2)

        async def elsewhere() -> None:
            with pytest.raises(MisuseError, match="this is another one"):
                await handle

        await asyncio.to_thread(asyncio.run, elsewhere())
        backend.run()
        assert (await handle).output == 4


async def test_a_program_can_capture_at_open_because_it_knows_the_fixed_region() -> None:
    """During open the device names the region; at launch the slot's image is the same memory."""
    seen: list[int] = []

    class Captures(StepProgram[int, None]):
        slot = SlotSpec(image_nbytes=8, image_at="fixed")

        def open(self, device: Device) -> None:
            assert device.fixed_image is not None
            seen.append(device.fixed_image.handle)

        def build(self, step: int, image: ByteArray) -> int | None:
            return None

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            seen.append(slot.image.handle)
            return None

    async with Orchestrator(Captures(), "host") as orch:
        await orch.run(1)
    assert seen[0] == seen[1]


async def test_the_opening_event_names_the_log(tmp_path: Any) -> None:
    """``config`` holds all options in force, the log's path too."""
    path = tmp_path / "run.jsonl"
    async with Orchestrator(Square(), "sim:instant", step_log=path):
        pass
    assert f'"step_log":"{path}"' in path.read_text("utf-8")


class Slow(EngineProgram[int, int]):
    """Prepares or reclaims the steps in the sets only when told."""

    def __init__(self, *, prepare: AbstractSet[int] = frozenset(), reclaim: AbstractSet[int] = frozenset()) -> None:
        self.slow_prepare, self.slow_reclaim = prepare, reclaim
        self.gate = threading.Event()
        self.calls: list[str] = []
        self.indices: set[int] = set()

    def prepare(self, step: int, slot_index: int) -> int:
        self.indices.add(slot_index)
        if step in self.slow_prepare:
            self.gate.wait(20)
        return step

    def dispatch(self, prepared: int) -> int:
        return prepared

    def reclaim(self, pending: int, timeout_s: float) -> int:
        self.calls.append(f"reclaim {pending}")
        if pending in self.slow_reclaim and not self.gate.wait(timeout_s):
            raise TimeoutError("no answer")
        return pending

    def close(self) -> None:
        self.calls.append("close")


async def test_an_engine_never_sees_an_index_beyond_its_slots() -> None:
    """An index lost to a hanging prepare is not replaced: the engine has no buffer for a new one."""
    engine = Slow(prepare={0})
    options: Any = {"build_in": "thread", "build_timeout_s": 0.02, "slots": 2, "drain_timeout_s": 5}
    async with Orchestrator(engine, **options) as orch:
        with pytest.raises(StepTimeout):
            await orch.run(0)
        assert [(await orch.run(i)).output for i in range(1, 6)] == [1, 2, 3, 4, 5]
        assert orch.statistics().slots_quarantined == 1
    assert engine.indices <= {0, 1}
    engine.gate.set()


async def test_after_a_time_out_no_further_reclaim_is_called_and_none_after_close() -> None:
    """The engine hangs: those behind fail at once instead of waiting their whole time-out one after the other."""
    engine, records = Slow(reclaim={0}), list[StepRecord]()
    async with Orchestrator(engine, fence_timeout_s=0.05, drain_timeout_s=2, step_log=records.append) as orch:
        handles = [await orch.submit(i) for i in range(3)]
        for handle in handles:
            with pytest.raises(DeviceLost):
                await handle
    assert engine.calls == ["reclaim 0", "close"]
    assert [r.d2h_nbytes for r in records] == [None] * 3
    engine.gate.set()


async def test_submits_made_together_are_accepted_in_their_order() -> None:
    """First come first served, also where the first finds the pipeline idle."""
    async with Orchestrator(Square(), "host") as orch:
        results = await asyncio.gather(*(orch.run(i) for i in range(12)))
    assert [r.seq for r in results] == list(range(12))


async def test_retries_of_an_inline_build_let_the_loop_turn_and_the_time_limit_strike() -> None:
    """A build that keeps failing slowly is cut off by timeout_s, and other tasks get turns between its tries."""
    tries: list[int] = []

    class Slow(Square):
        def build(self, step: int, image: Any) -> int | None:
            tries.append(step)
            threading.Event().wait(0.005)
            raise ArithmeticError("not yet")

    async with Orchestrator(Slow(), "host") as orch:
        with pytest.raises(StepTimeout):
            await orch.run(1, retries=10_000, timeout_s=0.02)
        assert orch.statistics().staging_leased == 0
    assert 0 < len(tries) < 10_000


@pytest.mark.parametrize(
    ("call", "words"), [("hold", "takes a Fence, got 5"), ("release", "use hold"), ("quarantine", "alone")]
)
async def test_what_a_launch_may_not_do_with_its_slot_fails_its_step_only(call: str, words: str) -> None:
    """A wrong hold, a release or a quarantine is that step's LaunchError; the next step runs."""

    class Wrong(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            if step == 1:
                getattr(slot, call)(*([5] if call == "hold" else []))
            return super().launch(step, slot, stream)

    async with Orchestrator(Wrong(), "host", slots=1) as orch:
        with pytest.raises(LaunchError, match=words):
            await orch.run(1)
        assert (await orch.run(2)).output == 4
    assert orch.statistics().slots_leased == 0


class Wide(StepProgram[int, list[int]]):
    """A step's number is how many int64 its output has."""

    slot = SlotSpec(image_nbytes=0, output_nbytes=8)

    def sizes(self, step: int) -> SlotSpec | None:
        return SlotSpec(image_nbytes=0, output_nbytes=8 * step)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_ones, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> list[int]:
        values: list[int] = output.view("i8").tolist()
        return values


def _ones(output: ByteArray) -> None:
    output.view("i8")[:] = 1


@pytest.mark.parametrize(
    "options", [{"grow": "high_water"}, {"slot_classes": ((SlotSpec(image_nbytes=0, output_nbytes=80), 2),)}]
)
async def test_sizes_hold_for_the_output_too(options: Any) -> None:
    """A step that asks for a larger output gets all of it, by growth or from its class."""
    async with Orchestrator(Wide(), "host", **options) as orch:
        assert [(await orch.run(n)).output for n in (1, 4, 2)] == [[1], [1] * 4, [1] * 2]


async def test_reopening_waits_for_a_launch_on_its_thread() -> None:
    """A launch of the lost device, still on its way, does not meet the new streams and slots."""
    entered, gate = threading.Event(), threading.Event()

    class Slow(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            if step == 2:
                entered.set()
                gate.wait(20)
            return super().launch(step, slot, stream)

    async with Orchestrator(Slow(), "sim:instant", launch_in="thread") as orch:
        handle = await orch.submit(2)
        await asyncio.to_thread(entered.wait, 20)
        handle._step.pipeline.settling.device_lost(handle._step, RuntimeError("bus error"))
        reopening = asyncio.ensure_future(orch.reopen())
        await asyncio.sleep(0)
        gate.set()
        await reopening
        assert [(await orch.run(i)).output for i in (3, 4)] == [9, 16]
    assert orch.statistics().slots_leased == 0
