"""Traces: every stage of every step once, flows in order, counters that fit, and [STRACE] lines that read back."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from async_orch.analysis import LogFrames, Span, chrome_trace, read, read_frames, strace_lines
from async_orch.cli import main
from async_orch.logs import encode_line
from tests.unit.step_records import PERIOD_NS, STEPS, pipelined, step_record

STAGES = ("build", "acquire", "h2d", "launch", "device", "d2h", "retire")


def frames_of(*records: Any) -> LogFrames:
    return read_frames(io.BytesIO(b"".join(map(encode_line, records))))


def trace_of(frames: LogFrames, **options: Any) -> dict[str, Any]:
    pieces, _ = chrome_trace(frames, **options)
    document: dict[str, Any] = json.loads(b"".join(pieces))
    return document


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return trace_of(frames_of(*pipelined("a"), *pipelined("b", acquire_wait_ns=60_000_000)))


def test_every_stage_of_every_step_is_a_slice(trace: dict[str, Any]) -> None:
    """Each of two runs has steps x stages slices, in a process of its own, with the record's times."""
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert Counter((event["pid"], event["name"]) for event in slices) == {
        (process, stage): STEPS for process in (1, 2) for stage in STAGES
    }
    origin = trace["otherData"]["origin_mono_ns"]
    builds = [event for event in slices if event["name"] == "build" and event["pid"] == 1]
    assert [round(event["ts"] * 1000) + origin for event in builds] == [1_000_200 + n * PERIOD_NS for n in range(STEPS)]
    assert {round(event["dur"] * 1000) for event in builds} == {3_678_950}
    assert [event["cat"] for event in builds[:2]] == ["cold", "warm"]


def test_slices_of_a_thread_do_not_overlap(trace: dict[str, Any]) -> None:
    """Where steps overlap within a stage, as waits for a slot do, each takes a thread of its own with a name."""
    threads: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for intervals in threads.values():
        intervals.sort()
        assert all(before[1] <= after[0] + 1e-6 for before, after in itertools.pairwise(intervals))
    named = {(event["pid"], event["tid"]) for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert named == threads.keys()
    titles = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert titles == {*STAGES, "acquire (2)"}


def test_flows_lead_through_the_stages_in_order(trace: dict[str, Any]) -> None:
    """Each step has one flow: a start, a point in each stage, an end, in order of time, each within a slice."""
    slices = {
        (event["pid"], event["tid"], event["ts"]): event["name"] for event in trace["traceEvents"] if event["ph"] == "X"
    }
    flows: dict[str, list[Any]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] in "stf":
            flows[event["id"]].append(event)
    assert len(flows) == 2 * STEPS
    assert len({int(flow_id, 16) for flow_id in flows}) == 2 * STEPS, "Perfetto reads ids as hexadecimal numbers"
    for points in flows.values():
        assert [point["ph"] for point in points] == ["s", "t", "t", "t", "t", "f"]
        visited = [slices[point["pid"], point["tid"], point["ts"]] for point in points]
        assert visited == ["build", "h2d", "launch", "device", "d2h", "retire"]
        assert [point["ts"] for point in points] == sorted(point["ts"] for point in points)
        assert points[-1]["bp"] == "e"


def test_counters_rise_and_end_at_zero(trace: dict[str, Any]) -> None:
    """Steps in flight are what overlap of the records gives, and every counter ends at 0."""
    for process in (1, 2):
        for name in ("steps in flight", "steps on the device", "slots in use"):
            values = [
                (event["ts"], event["args"]["count"])
                for event in trace["traceEvents"]
                if event["ph"] == "C" and event["pid"] == process and event["name"] == name
            ]
            assert values == sorted(values)
            assert values[-1][1] == 0
            assert all(count >= 0 for _, count in values)
            if name == "steps in flight":
                assert max(count for _, count in values) == 2


def test_events_hold_what_the_format_asks_for(trace: dict[str, Any]) -> None:
    """Every event has the keys of its kind, of the right type: the trace event format, checked by hand."""
    needed = {
        "X": {"name": str, "cat": str, "pid": int, "tid": int, "ts": float, "dur": float, "args": dict},
        "C": {"name": str, "pid": int, "ts": float, "args": dict},
        "M": {"name": str, "pid": int, "args": dict},
        **{kind: {"name": str, "cat": str, "id": str, "pid": int, "tid": int, "ts": float} for kind in "stf"},
    }
    for event in trace["traceEvents"]:
        for key, kind in needed[event["ph"]].items():
            assert isinstance(event[key], kind), event
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_device_clock_of_its_own_is_marked_and_not_linked() -> None:
    """Device times that cannot be on the host's clock are named so and left out of the flows."""
    trace = trace_of(frames_of(*pipelined("a", device_clock="device", device_start_ns=5, h2d_start_ns=1)))
    titles = {event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
    assert "device on the device's clock" in titles
    flows = [event["ph"] for event in trace["traceEvents"] if event["ph"] in "stf"]
    assert Counter(flows) == {"s": STEPS, "t": STEPS, "f": STEPS}
    lines = list(strace_lines(frames_of(*pipelined("a", device_clock="device", device_start_ns=5))))
    assert sum("clk=dev" in line for line in lines) == 3 * STEPS


def test_steps_that_did_not_get_far_are_in_it() -> None:
    """A step that failed in build has that slice alone and no flow."""
    nothing = dict.fromkeys([name for name in _fields() if name.endswith("_ns")])
    failed = step_record(event="step.failed", **(nothing | {"accept_ns": 5, "build_start_ns": 7, "build_ns": 9}))
    events = trace_of(frames_of(failed))["traceEvents"]
    assert [(event["ph"], event["name"]) for event in events if event["ph"] in "Xstf"] == [("X", "build")]


def _fields() -> tuple[str, ...]:
    return tuple(step_record().__struct_fields__)


def test_slices_say_how_the_caller_called_the_step(tmp_path: Path) -> None:
    """With the logs at hand each slice has the step's id, attributes and error; an id that is the seq is left out."""
    logs = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    failed = {"event": "step.failed", "error": "no \u2028 luck", "stage": "launch"}
    for log, run in zip(logs, ("a", "b"), strict=True):
        records = [
            step_record(run_id=run, seq=0, step_id=0, attrs=None),
            step_record(run_id=run, seq=1, step_id=f"request {run}", attrs={"rows": [1, 2]}),
            step_record(run_id=run, seq=2, step_id="x" * 5_000, attrs={"long": "y" * 5_000}, **failed),
            step_record(run_id=run, seq=3, step_id="beyond max_steps"),
        ]
        log.write_bytes(b"".join(map(encode_line, records)))
    events = trace_of(read_frames(*map(str, logs)), sources=map(str, logs), max_steps=7)["traceEvents"]
    slices = [event["args"] | {"run": event["pid"]} for event in events if event["ph"] == "X"]
    assert all("step_id" not in args and "attrs" not in args for args in slices if args["seq"] == 0)
    for process, name in ((1, "a"), (2, "b")):
        (second,) = {json.dumps([a["step_id"], a["attrs"]]) for a in slices if (a["run"], a["seq"]) == (process, 1)}
        assert json.loads(second) == [f"request {name}", {"rows": [1, 2]}]
    third = [args for args in slices if args["seq"] == 2]
    assert {args["error"] for args in third} == {"no \u2028 luck"}
    assert {args["step_id"] for args in third} == {"x" * 1_000 + "..."}
    assert {len(args["attrs"]) for args in third} == {1_003}
    assert {args["step_id"] for args in slices if args["seq"] == 3} == {"beyond max_steps"}
    assert {args["run"] for args in slices if args["seq"] == 3} == {1}


def test_a_log_is_read_again_no_further_than_needed() -> None:
    """Not beyond the last step that is in the trace."""
    lines = [encode_line(record) for record in pipelined("a")]
    frames = frames_of(*pipelined("a"))

    class Counted(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.taken += len(data)
            return data

    log = Counted(b"".join(lines) + b"\n" * (1 << 22))
    trace_of(frames, sources=[log], max_steps=3)
    assert log.taken < 1 << 20


def test_strace_lines_read_back() -> None:
    """The lines follow the grammar of the markers: each reads back as the span it was, each step as one invocation."""
    frames = frames_of(*pipelined("a b/c"))
    text = "".join(strace_lines(frames)).encode()
    spans = list(read(io.BytesIO(text)))
    assert all(isinstance(span, Span) for span in spans)
    found = Counter((span.name, span.depth) for span in spans if isinstance(span, Span))
    assert found == {(f"ext.async_orch.{stage}", 1): STEPS for stage in STAGES} | {("ext.async_orch.step", 0): STEPS}
    (root, *_) = [span for span in spans if isinstance(span, Span) and span.depth == 0]
    assert (root.pid, root.ts_ns, root.dur_ns, root.hid) == (4242, 1_000_100, 72_715_900, "a b/c")
    assert root.attrs == {"run_id": "0", "slot_id": "1", "generation": "5", "event": "step.completed"}


def test_trace_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes the file, says when steps were left out, and refuses what has no timeline."""
    log, out = tmp_path / "run.jsonl", tmp_path / "trace.json"
    log.write_bytes(b"".join(map(encode_line, pipelined("a"))))
    assert main(["trace", str(log), "-o", str(out), "--max-steps", "10"]) == 0
    assert "the first 10 of 60 steps" in capsys.readouterr().err
    document = json.loads(out.read_bytes())
    assert document["otherData"]["of_steps"] == 60
    assert all(e["args"]["step_id"] == f"s{e['args']['seq']}" for e in document["traceEvents"] if e["ph"] == "X")
    assert main(["trace", str(log), "--strace"]) == 0
    assert capsys.readouterr().out.count("ext.async_orch.step") == 60
    assert main(["trace", str(log), "--strace", "-o", str(out)]) == 0
    assert out.read_text().count("ext.async_orch.retire") == 60
    assert main(["trace", str(log), "-o", str(tmp_path / "no" / "x")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert main(["trace", str(Path(__file__).parent.parent / "fixtures" / "host-orch.log")]) == 2
