"""Traces as Perfetto's own trace processor reads them: nothing is refused or lost, and figures are those of the log."""

from __future__ import annotations

import io
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from async_orch import Orchestrator
from async_orch.analysis import chrome_trace, read_frames, strace_lines
from async_orch.logs import StepRecord, encode_line
from tests.programs import Hooked
from tests.trace_processor import TraceProcessor, trace_processor
from tests.unit.step_records import STEPS, pipelined, step_record

TIMES = {
    "build": ("build_start_ns", "build_ns"),
    "acquire": ("acquire_start_ns", "acquire_wait_ns"),
    "h2d": ("h2d_start_ns", "h2d_ns"),
    "launch": ("launch_start_ns", "launch_ns"),
    "device": ("device_start_ns", "device_ns"),
    "retire": ("retire_start_ns", "retire_ns"),
}
LINKED = ("build", "h2d", "launch", "device", "d2h", "retire")
FAULTS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = (
    "select s.id, s.ts, s.dur, s.depth, s.name, s.category, s.arg_set_id, s.track_id, p.pid, p.name as process, "
    "t.name as thread, extract_arg(s.arg_set_id, 'args.seq') as seq from slice s join thread_track k "
    "on k.id = s.track_id join thread t using (utid) join process p using (upid) order by s.track_id, s.ts, s.id"
)
COUNTERS = (
    "select c.ts, c.value, p.pid, k.name from counter c join process_counter_track k on k.id = c.track_id "
    "join process p using (upid) order by c.ts"
)
RUNS = pipelined("a"), pipelined("b", acquire_wait_ns=60_000_000)


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceProcessor]:
    with trace_processor(tmp_path_factory.mktemp("profile")) as started:
        yield started


class Loaded:
    """What the trace processor makes of a log's trace, and what holds of every trace, whatever was in the log."""

    def __init__(self, processor: TraceProcessor, log: bytes) -> None:
        trace = b"".join(chrome_trace(read_frames(io.BytesIO(log)))[0])
        document = json.loads(trace)
        processor.load(trace)
        assert [(row.name, row.value) for row in processor.query(FAULTS)] == []
        self.origin_ns: int = document["otherData"]["origin_mono_ns"]
        self.slices = processor.query(SLICES)
        self.ways = self._ways(processor.query("select slice_out, slice_in from flow order by id"))
        self.counters: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
        for row in processor.query(COUNTERS):
            self.counters[row.pid, row.name].append((row.ts, int(row.value)))
        self.args: dict[int, dict[str, str]] = defaultdict(dict)
        for row in processor.query("select arg_set_id, key, display_value from args where key glob 'args.*'"):
            self.args[row.arg_set_id][row.key.removeprefix("args.")] = row.display_value
        self._check(Counter(event["ph"] for event in document["traceEvents"]))

    def _ways(self, links: list[Any]) -> dict[tuple[int, int], list[str]]:
        """The slices that the flow of each step (process, seq) leads through, each link from one step's to its next."""
        by_id = {row.id: row for row in self.slices}
        ways: dict[tuple[int, int], list[str]] = {}
        for link in links:
            start, end = by_id[link.slice_out], by_id[link.slice_in]
            assert (start.pid, start.seq) == (end.pid, end.seq)
            assert start.ts <= end.ts
            way = ways.setdefault((start.pid, start.seq), [start.name])
            assert way[-1] == start.name
            way.append(end.name)
        return ways

    def _check(self, written: Counter[str]) -> None:
        assert len(self.slices) == written["X"]
        assert sum(len(way) for way in self.ways.values()) == written["s"] + written["t"] + written["f"]
        assert sum(map(len, self.counters.values())) == written["C"]
        ends: dict[int, int] = defaultdict(int)
        for row in self.slices:
            assert row.dur >= 0
            assert row.depth == 0, f"{row} lies within another slice"
            assert row.ts >= ends[row.track_id], f"{row} overlaps the slice before it"
            ends[row.track_id] = row.ts + row.dur
        for series in self.counters.values():
            assert min(value for _, value in series) >= 0
            assert series[-1][1] == 0

    def expected(self, runs: Sequence[list[StepRecord]]) -> list[tuple[Any, ...]]:
        """What `slices` hold by process, stage and step, from the records alone."""
        found = []
        for process, records in enumerate(runs, 1):
            for record in records:
                times = {stage: (getattr(record, at), getattr(record, ns)) for stage, (at, ns) in TIMES.items()}
                if None not in times["device"]:
                    times["d2h"] = sum(times["device"]), record.d2h_ns
                found += [
                    (process, stage, record.seq, start - self.origin_ns, duration)
                    for stage, (start, duration) in times.items()
                    if None not in (start, duration)
                ]
        return sorted(found)

    def found(self) -> list[tuple[Any, ...]]:
        return sorted((row.pid, row.name, row.seq, row.ts, row.dur) for row in self.slices)


def log_of(*runs: list[StepRecord]) -> bytes:
    return b"".join(encode_line(record) for records in runs for record in records)


@pytest.fixture(scope="module")
def two_runs(processor: TraceProcessor) -> Loaded:
    return Loaded(processor, log_of(*RUNS))


def test_two_runs_are_read_as_they_were(two_runs: Loaded) -> None:
    """Slices have the records' times to the ns, flows lead through each step's stages, names and args are the log's."""
    assert two_runs.found() == two_runs.expected(RUNS)
    assert len(two_runs.slices) == 2 * STEPS * 7
    assert two_runs.ways == {(process, seq): list(LINKED) for process in (1, 2) for seq in range(STEPS)}
    assert {(row.pid, row.process) for row in two_runs.slices} == {
        (1, "run a on sim:instant (pid 4242)"),
        (2, "run b on sim:instant (pid 4242)"),
    }
    for row in two_runs.slices:
        assert row.thread == row.name or (row.name, row.thread) == ("acquire", "acquire (2)")
        assert row.category == ("cold" if row.seq == 0 else "warm")
    (first,) = [row for row in two_runs.slices if (row.pid, row.name, row.seq) == (2, "device", 0)]
    assert two_runs.args[first.arg_set_id] == {
        "seq": "0",
        "slot": "1",
        "generation": "5",
        "copy_nbytes": "5543943",
        "alloc_nbytes": "0",
        "program": "decode",
        "event": "step.completed",
        "cold_reason": "first_launch",
    }


def test_counters_are_what_the_records_overlap(two_runs: Loaded) -> None:
    """At each moment of each counter its value is the number of steps whose records contain that moment."""
    origin = two_runs.origin_ns
    assert len(two_runs.counters) == 6
    for (process, name), series in two_runs.counters.items():
        lives = []
        for record in RUNS[process - 1]:
            figures: Any = record
            begin = {
                "steps in flight count": figures.accept_ns,
                "steps on the device count": figures.launch_start_ns,
                "slots in use count": figures.acquire_start_ns + figures.acquire_wait_ns,
            }[name]
            lives.append((begin - origin, figures.accept_ns + figures.total_ns - origin))
        moments = sorted({moment for life in lives for moment in life})
        assert series == [(at, sum(begin <= at < end for begin, end in lives)) for at in moments]


def test_steps_that_got_to_any_point(processor: TraceProcessor) -> None:
    """Steps that ended at any point of their way, of stages that took no time too, have no slice that does not end."""
    way = ["accept_ns", *(name for times in list(TIMES.values())[:-1] for name in times), "d2h_ns"]
    way += [*TIMES["retire"], "total_ns"]
    records = []
    for record in pipelined("a"):
        figures: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__}
        figures |= {name: 0 for _, name in TIMES.values() if record.seq % 2} | {"slot": None, "cold_reason": None}
        figures |= dict.fromkeys(way[record.seq % (len(way) + 1) :])
        records.append(step_record(**figures | {"event": ("step.failed", "step.cancelled")[record.seq % 4 // 2]}))
    loaded = Loaded(processor, log_of(records))
    assert loaded.found() == loaded.expected([records])
    assert {tuple(way) for way in loaded.ways.values()} == {LINKED[:length] for length in range(2, len(LINKED) + 1)}


def test_a_record_that_contradicts_itself_keeps_its_flow(processor: TraceProcessor) -> None:
    """The flow of a step whose copy starts before its build leads through its stages in the order of their starts."""
    loaded = Loaded(processor, log_of([step_record(build_start_ns=5_000_000)]))
    assert loaded.ways == {(1, 0): ["h2d", "build", "launch", "device", "d2h", "retire"]}


def test_times_of_a_device_clock_far_from_the_hosts(processor: TraceProcessor) -> None:
    """A device's clock 93 days ahead of the host's costs no ns, and its stages have no flow."""
    records = pipelined("a", device_clock="device", h2d_start_ns=1)
    moved = [
        step_record(**{name: getattr(record, name) for name in record.__struct_fields__} | {"device_start_ns": at})
        for record, at in zip(records, range(8 * 10**15, 9 * 10**15, 37_000_001), strict=False)
    ]
    loaded = Loaded(processor, log_of(moved))
    assert loaded.found() == loaded.expected([moved])
    assert loaded.ways == {(1, seq): ["build", "launch", "retire"] for seq in range(STEPS)}


async def test_log_of_a_run_with_failures(processor: TraceProcessor) -> None:
    """Steps that failed in a hook or on the device, or were cancelled, are as whole in the trace as in the log."""
    records: list[StepRecord] = []
    program = Hooked(build={3}, launch={5}, kernel={8}, collect={11})
    async with Orchestrator(program, "sim:instant", slots=3, step_log=records.append) as orch:
        handles = [await orch.submit(step) for step in range(24)]
        handles[-1].cancel()
        await orch.drain()
        failed = {handle.seq for handle in handles[:-1] if handle.exception() is not None}
    assert len(records) == 24
    loaded = Loaded(processor, log_of(records))
    assert failed == {3, 5, 8, 11}
    assert loaded.found() == loaded.expected([records])
    assert {seq for _, seq in loaded.ways} >= set(range(23)) - failed


def test_spans_that_overlap_are_all_there(processor: TraceProcessor) -> None:
    """Of invocations that overlap on a thread, as steps written as ``[STRACE]`` lines do, no span is dropped."""
    lines = "".join(strace_lines(read_frames(io.BytesIO(log_of(pipelined("a"))))))
    loaded = Loaded(processor, lines.encode())
    assert Counter(row.name.removeprefix("ext.async_orch.") for row in loaded.slices) == dict.fromkeys(
        [*TIMES, "d2h", "step"], STEPS
    )
    assert {row.thread for row in loaded.slices} == {
        f"tid 4242, depth {depth}{lane}" for depth in (0, 1) for lane in ("", " (2)")
    }


def test_a_trace_that_is_none_is_refused(processor: TraceProcessor) -> None:
    """The processor of these tests does refuse: text that is no trace, and a query that is none."""
    with pytest.raises(ValueError, match="refuses a trace of 11 bytes"):
        processor.load(b"not a trace")
    with pytest.raises(ValueError, match="no such table: nowhere"):
        processor.query("select 1 from nowhere")
