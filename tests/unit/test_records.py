"""The step log: one terminal event a step, whole lines, written off the loop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog
from anyio import wait_all_tasks_blocked

from async_orch import Orchestrator, Slot, SlotSpec, StepHandle, _opening, _records
from async_orch.abc import Stream
from async_orch.exceptions import ConfigurationError
from async_orch.logs import FIELDS, StepRecord
from async_orch.testing import ManualBackend, ManualFence
from tests.programs import Hooked, Square


def read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The orchestrator's own events and the steps' records."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return (
        [line for line in lines if line["event"].startswith("orchestrator.")],
        [line for line in lines if line["event"].startswith("step.")],
    )


@pytest.mark.parametrize("backend", ["sim:instant", "host"])
@pytest.mark.parametrize("mode", ["pipelined", "ring", "naive"])
async def test_every_step_writes_exactly_one_record_with_all_fields(tmp_path: Path, backend: str, mode: Any) -> None:
    """Completed and failed steps alike: one line each, every field present, in seq order of settling."""
    path = tmp_path / "run.jsonl"
    async with Orchestrator(Hooked(build={3}, collect={5}), backend, mode=mode, step_log=path) as orch:
        handles = [await orch.submit(i, step_id=f"s{i}", attrs={"n": i}) for i in range(10)]
        await orch.drain()
        for handle in handles:
            handle.exception()
        _, steps = read(path)
        assert len(steps) == 10, "drain flushes"
    opened, steps = read(path)
    assert [e["event"] for e in opened] == ["orchestrator.opened"]
    assert opened[0]["config"]["mode"] == mode
    assert sorted(s["seq"] for s in steps) == list(range(10))
    assert all(tuple(s) == FIELDS for s in steps)
    outcome = {s["seq"]: s["event"] for s in steps}
    assert [outcome[i] for i in range(10)] == ["step.failed" if i in (3, 5) else "step.completed" for i in range(10)]
    failed = next(s for s in steps if s["seq"] == 3)
    assert (failed["stage"], failed["slot"], failed["level"]) == ("build", None, "error")
    assert "ArithmeticError: build of 3" in failed["error"]
    good = next(s for s in steps if s["seq"] == 7)
    assert (good["step_id"], good["attrs"], good["copy_nbytes"]) == ("s7", {"n": 7}, 8)
    assert good["alloc_count"] == (3 if mode == "naive" else 0)
    assert good["total_ns"] > 0
    assert good["run_id"] == opened[0]["run_id"]


async def test_a_detached_step_is_recorded_when_its_fence_comes() -> None:
    """The log shows how long the device was busy with a step that nobody wanted any more; once."""
    records: list[StepRecord] = []
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, step_log=records.append) as orch:
        handle = await orch.submit(1)
        handle.cancel()
        await orch.drain()
        assert records == []
        backend.copy.run()
        backend.compute.run()
    assert [(r.event, r.device_ns) for r in records] == [("step.detached", 200)]


async def test_a_removed_step_has_nulls_where_it_did_not_get() -> None:
    """A step cancelled before launch is null, never zero, from there on."""
    records: list[StepRecord] = []
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=1, step_log=records.append) as orch:
        await orch.submit(0)
        (await orch.submit(1)).cancel()
        backend.copy.run()
        backend.compute.run()
    record = next(r for r in records if r.seq == 1)
    assert record.event == "step.cancelled"
    assert record.build_ns is not None
    assert (record.slot, record.h2d_ns, record.launch_ns, record.device_ns, record.total_ns) == (None,) * 5


@pytest.mark.parametrize("build_in", ["inline", "thread"])
async def test_a_step_that_copies_nothing_has_no_start_of_a_copy(build_in: Any) -> None:
    """Whether it goes to the device at once or through the queues."""

    class Imageless(Square):
        slot = SlotSpec(image_nbytes=0, output_nbytes=8)

        def build(self, step: int, image: Any) -> int | None:
            return None

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            return None

    records: list[StepRecord] = []
    async with Orchestrator(Imageless(), "sim:instant", step_log=records.append, build_in=build_in) as orch:
        await orch.run(1)
    assert [(r.h2d_start_ns, r.h2d_ns, r.copy_nbytes) for r in records] == [(None, None, 0)]


@pytest.mark.parametrize("build_in", ["inline", "thread"])
async def test_a_copy_whose_time_the_device_cannot_tell_began_when_it_was_enqueued(
    build_in: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the step goes to the device at once or through the queues."""
    records: list[StepRecord] = []
    backend = ManualBackend()
    monkeypatch.setattr(ManualFence, "time_ns", lambda fence: None)
    async with Orchestrator(Square(), backend, step_log=records.append, build_in=build_in) as orch:
        handle = await orch.submit(1)
        while not backend.compute.ops:
            await wait_all_tasks_blocked()
        backend.run()
        await handle
    (record,) = records
    assert record.h2d_ns is None
    assert record.acquire_start_ns is not None
    assert record.h2d_start_ns is not None
    assert record.acquire_start_ns <= record.h2d_start_ns <= (record.launch_start_ns or 0)


async def test_records_are_made_off_the_loop() -> None:
    """A callable sink and observers run on the writer's thread, not on the loop's."""
    threads: set[str] = set()

    def note(record: StepRecord) -> None:
        threads.add(threading.current_thread().name)

    async with Orchestrator(Square(), "sim:instant", step_log=note, observers=[note]) as orch:
        await orch.run(1)
    assert threads == {"async_orch-log"}


async def test_a_collect_that_cancels_its_own_step_leaves_one_record_and_no_lease() -> None:
    """The oddest moment for a cancel still settles once."""
    records: list[StepRecord] = []
    handles: list[StepHandle[int]] = []

    class Odd(Square):
        def collect(self, step: int, output: Any) -> int:
            handles[0].cancel()
            return 1

    backend = ManualBackend()
    async with Orchestrator(Odd(), backend, step_log=records.append) as orch:
        handles.append(await orch.submit(1))
        backend.copy.run()
        backend.compute.run()
        await orch.drain()
        assert (handles[0].status, orch.statistics().slots_leased) == ("detached", 0)
    assert [r.event for r in records] == ["step.detached"]


async def test_a_sink_that_raises_loses_its_records_and_nothing_else() -> None:
    """What a broken sink did not take is counted; the steps complete."""

    def broken(record: StepRecord) -> None:
        raise OSError("disk full")

    async with Orchestrator(Square(), "sim:instant", step_log=broken) as orch:
        assert (await orch.run(3)).output == 9
    assert orch.statistics().records_dropped == 1


async def test_a_structlog_logger_gets_each_record_as_an_event() -> None:
    """step_log may be a structlog logger; its processors see all fields."""
    with structlog.testing.capture_logs() as captured:
        async with Orchestrator(Square(), "sim:instant", step_log=structlog.get_logger("steps")) as orch:
            await orch.run(3)
    steps = [e for e in captured if e["event"] == "step.completed"]
    assert len(steps) == 1
    assert steps[0]["log_level"] == "info"
    assert set(FIELDS) - {"event", "level"} <= set(steps[0])


async def test_nothing_is_printed_unless_structlog_is_configured(capsys: pytest.CaptureFixture[str]) -> None:
    """Silence by default, even when steps fail."""
    structlog.reset_defaults()
    async with Orchestrator(Hooked(build={0}), "sim:instant") as orch:
        (await orch.submit(0)).exception()
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


async def _asynchronous(record: StepRecord) -> None:
    """Of no use as a sink."""


@pytest.mark.parametrize("value", [3, object(), Path("/no/such/folder/run.jsonl"), "", "a\0b", _asynchronous])
async def test_a_step_log_that_cannot_be_written_is_refused_at_open(value: Any) -> None:
    """A wrong type, or a path that cannot be opened, stops the opening with one clear error."""
    with pytest.raises(ConfigurationError, match=r"step_log|is async"):
        async with Orchestrator(Square(), "sim:instant", step_log=value):
            pass


async def test_a_second_run_appends_to_the_log(tmp_path: Path) -> None:
    """An existing log is kept; each run has its own run_id."""
    path = tmp_path / "run.jsonl"
    for _ in range(2):
        async with Orchestrator(Square(), "sim:instant", step_log=str(path)) as orch:
            await orch.run(1)
    opened, steps = read(path)
    assert len({e["run_id"] for e in opened}) == 2
    assert [s["run_id"] for s in steps] == [e["run_id"] for e in opened]


async def test_a_flood_of_steps_loses_no_record() -> None:
    """A loop that never waits gives the writer its turn: more steps than the buffer holds, and every one written."""
    seen = [0]

    def count(record: StepRecord) -> None:
        seen[0] += 1

    async with Orchestrator(Square(), "sim:instant", step_log=count) as orch:
        async for _ in orch.map(range(20_000)):
            pass
        for i in range(2_000):
            await orch.submit(i)
        await orch.drain()
    assert (seen[0], orch.statistics().records_dropped) == (22_000, 0)


async def test_a_sink_that_hangs_holds_no_step_up_and_what_it_cannot_take_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The buffer fills, the rest is dropped and counted, and every step completes."""
    monkeypatch.setattr(_records, "CATCH_UP_S", 0.01)
    monkeypatch.setattr(_records, "LAST_RESORT_S", 0.01)
    monkeypatch.setattr(_records, "BUFFER_RECORDS", 2_000)
    free, seen = threading.Event(), [0]

    def stuck(record: StepRecord) -> None:
        free.wait(60.0)
        seen[0] += 1

    async with Orchestrator(Square(), "sim:instant", step_log=stuck) as orch:
        async for _ in orch.map(range(3_000)):
            pass
        assert orch.statistics().completed == 3_000
        free.set()
    dropped = orch.statistics().records_dropped
    assert dropped > 0
    assert seen[0] + dropped == 3_000


async def test_whoever_waits_for_the_writer_is_woken_when_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends with the writer's work, not with its time limit, which here is an hour away."""
    monkeypatch.setattr(_records, "CATCH_UP_S", 3_600.0)
    free = threading.Event()
    async with Orchestrator(Square(), "sim:instant", step_log=lambda record: free.wait(60.0)) as orch:
        for i in range(_records.BEHIND_RECORDS + 100):
            orch.submit_nowait(i)
        waiting = asyncio.ensure_future(orch.give_turn())
        await asyncio.sleep(0)
        assert not waiting.done()
        free.set()
        await waiting
        await orch.give_turn()
    assert orch.statistics().records_dropped == 0


async def test_an_observer_that_raises_loses_what_it_raised_for_and_is_reported_once() -> None:
    """Other records reach it, other observers get all, each loss is counted, and a spell of failing is one warning."""
    odd: list[int] = []
    every: list[int] = []

    def picky(record: StepRecord) -> None:
        if record.seq % 2:
            raise ValueError("an odd record")
        odd.append(record.seq)

    with structlog.testing.capture_logs() as captured:
        async with Orchestrator(
            Square(), "sim:instant", observers=[picky, lambda record: every.append(record.seq)]
        ) as orch:
            for i in range(10):
                await orch.run(i)
    assert odd == [0, 2, 4, 6, 8]
    assert every == list(range(10))
    assert orch.statistics().records_dropped == 5
    warnings = [event for event in captured if event["event"] == "step_log.failed"]
    assert [(w["error"], "picky" in w["target"]) for w in warnings] == [("ValueError('an odd record')", True)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_costs_one_warning_and_the_records() -> None:
    """Every write fails: the steps complete, the records are counted as dropped, and one line says why."""
    with structlog.testing.capture_logs() as captured:
        async with Orchestrator(Square(), "sim:instant", step_log="/dev/full") as orch:
            async for _ in orch.map(range(100)):
                pass
    assert orch.statistics().records_dropped == 100
    warnings = [event for event in captured if event["event"] == "step_log.failed"]
    assert [warning["target"] for warning in warnings] == ["/dev/full"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_a_named_pipe_without_a_reader_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    """Opening it would hold the event loop until somebody reads."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="cannot be opened for writing"):
        async with Orchestrator(Square(), "sim:instant", step_log=path):
            pass


async def test_the_clock_anchor_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of days follows the wall clock: each repetition of `orchestrator.opened` has the clocks of its moment."""
    monkeypatch.setattr(_records, "ANCHOR_PERIOD_S", -1.0)
    path = tmp_path / "run.jsonl"
    async with Orchestrator(Square(), "sim:instant", step_log=path) as orch:
        for i in range(2):
            await orch.run(i)
            await orch.drain()
    opened, _ = read(path)
    assert len(opened) > 1
    anchors = [(event["mono_ns"], event["wall_ns"]) for event in opened]
    assert len(set(anchors)) == len(anchors)


def test_a_run_that_nobody_leaves_has_its_records_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """`sys.exit` in the middle of a run writes what waits in the buffer."""
    path = tmp_path / "run.jsonl"
    script = f"""
import asyncio, sys
from async_orch import Orchestrator, SlotSpec, StepProgram
class Nothing(StepProgram):
    slot = SlotSpec(image_nbytes=0)
    def launch(self, step, slot, stream): pass
async def main():
    orch = await Orchestrator(Nothing(), "sim:instant", step_log={str(path)!r}).__aenter__()
    for i in range(50):
        await orch.run(i)
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
sys.exit(0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
    assert len(read(path)[1]) == 50


async def test_no_duration_is_negative_where_build_tells_what_it_used() -> None:
    """The wait for a slot begins when the build is over, also if the image is used in part."""

    class Part(Square):
        def build(self, step: int, image: Any) -> int:
            super().build(step, image)
            return 8

    records: list[StepRecord] = []
    async with Orchestrator(Part(), "sim:instant", step_log=records.append) as orch:
        for i in range(200):
            await orch.run(i)
    assert all(record.acquire_wait_ns is not None and record.acquire_wait_ns >= 0 for record in records)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_an_observer_that_wants_to_end_the_program_ends_nothing(
    kind: type[BaseException], tmp_path: Path
) -> None:
    """The thread lives on: the file has every step, and what the observer raised for is counted."""
    path = tmp_path / "run.jsonl"

    def leave(record: StepRecord) -> None:
        raise kind

    async with Orchestrator(Square(), "sim:instant", step_log=path, observers=[leave]) as orch:
        async for _ in orch.map(range(100)):
            pass
    assert len(read(path)[1]) == 100
    assert orch.statistics().records_dropped == 100


async def test_what_a_stuck_observer_leaves_behind_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving gives the thread up after its time limit, and what was not given to anybody counts as dropped."""
    monkeypatch.setattr(_opening, "WRITER_TIMEOUT_S", 0.01)
    free, seen = threading.Event(), [0]

    def stuck(record: StepRecord) -> None:
        free.wait(60.0)
        seen[0] += 1

    async with Orchestrator(Square(), "sim:instant", observers=[stuck], drain_timeout_s=0.05) as orch:
        for i in range(100):
            await orch.run(i)
    assert (orch.statistics().records_dropped, orch.statistics().threads_abandoned) == (100, 1)
    free.set()


async def test_without_structlog_events_go_to_logging(caplog: pytest.LogCaptureFixture) -> None:
    """An application that configured only `logging` sees the warning about its full disk, once."""
    structlog.reset_defaults()

    def broken(record: StepRecord) -> None:
        raise OSError("disk full")

    with caplog.at_level("WARNING", "async_orch"):
        async with Orchestrator(Square(), "sim:instant", step_log=broken) as orch:
            for i in range(3):
                await orch.run(i)
    assert [record.message.split()[0] for record in caplog.records] == ["step_log.failed"]
    assert "disk full" in caplog.records[0].message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
async def test_a_pipe_whose_reader_has_gone_costs_one_warning_and_the_records(tmp_path: Path) -> None:
    """What was read before is whole lines; afterwards the steps complete, and each lost record is counted."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with structlog.testing.capture_logs() as captured:
        async with Orchestrator(Square(), "sim:instant", step_log=path) as orch:
            await orch.run(1)
            await orch.drain()
            lines = os.read(reader, 1 << 16).splitlines()
            os.close(reader)
            for i in range(10):
                assert (await orch.run(i)).output == i * i
    assert [json.loads(line)["event"] for line in lines] == ["orchestrator.opened", "step.completed"]
    assert orch.statistics().records_dropped == 10
    assert [event["target"] for event in captured if event["event"] == "step_log.failed"] == [str(path)]
