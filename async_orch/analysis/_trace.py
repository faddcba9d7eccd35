"""A log as a trace: Chrome's trace event format, which Perfetto reads, and ``[STRACE]`` lines.

Each run is a process of the trace and each stage a thread of it, with further threads where steps overlap within a
stage. A flow leads through the stages of a step, from build to retire. Counters show steps in flight, steps on the
device, and slots in use. Times are microseconds with three decimals after the first moment of the log, which
``otherData.origin_mono_ns`` states.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from async_orch.analysis._clock import host_clock
from async_orch.analysis._columns import added
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._log_frames import LogFrames
from async_orch.analysis._shown import shown_json
from async_orch.analysis._sources import Source
from async_orch.analysis._stages import DEVICE_STAGES, STAGES, in_use, lanes, stage_times
from async_orch.analysis._trace_words import Words, words_of

__all__ = ["MAX_TRACE_STEPS", "TraceExtent", "chrome_trace", "strace_lines"]

MAX_TRACE_STEPS: Final = 20_000
"""Steps of a trace unless asked for more: some 250 bytes an event and a dozen events a step add up."""

_LANES_A_STAGE: Final = 1000
_SPAN_PROCESS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TraceExtent:
    """How much of a log went into a trace."""

    steps: int
    of_steps: int


def chrome_trace(
    frames: LogFrames, *, max_steps: int = MAX_TRACE_STEPS, sources: Iterable[Source] = ()
) -> tuple[Iterator[bytes], TraceExtent]:
    """The trace in pieces of JSON, and how many of the log's steps are in it: the first `max_steps`.

    With `sources`, the logs that the frames were read from, they are read again, and each step has its ``step_id``,
    ``attrs`` and ``error`` too. Raises `OSError` where one cannot be read.
    """
    steps = frames.steps
    if len(steps) > max_steps:
        steps = steps.take(np.arange(max_steps))
    words = words_of(steps, sources)
    return _pieces(frames, steps, words), TraceExtent(len(steps), len(frames.steps))


def _pieces(frames: LogFrames, steps: StepFrame, words: Words) -> Iterator[bytes]:
    origin = _origin(frames, steps)
    yield b'{"displayTimeUnit":"ns","otherData":' + _encode(
        {
            "origin_mono_ns": origin,
            "anchors": [anchor._asdict() for anchor in frames.anchors[:1000]],
            "steps": len(steps),
            "of_steps": len(frames.steps),
        }
    )
    yield b',"traceEvents":[\n'
    first = True
    for event in _events(frames, steps, origin, words):
        yield (b"" if first else b",\n") + _encode(event)
        first = False
    yield b"\n]}\n"


def _encode(value: object) -> bytes:
    return shown_json(value).encode()


def _origin(frames: LogFrames, steps: StepFrame) -> int:
    starts = [values[values != MISSING] for values in (steps.column("submit_ns"), steps.column("accept_ns"))]
    if len(frames.spans):
        starts.append(frames.spans.column("ts_ns")[frames.spans.column("device_clock") == 0])
    starts += [start[start != MISSING] for start, _ in stage_times(steps).values()]
    return min((int(values.min()) for values in starts if len(values)), default=0)


def _us(nanoseconds: int) -> float:
    return nanoseconds / 1000


def _events(frames: LogFrames, steps: StepFrame, origin: int, words: Words) -> Iterator[dict[str, Any]]:
    runs = steps.split(lambda kind: (kind.run_id, kind.device))
    flow_ids = itertools.count(1)
    for number, ((run_id, _), run) in enumerate(runs.items(), 1):
        yield from _run_events(run, number, origin, frames.opened.get(run_id, {}), flow_ids, words)
    yield from _span_events(frames, origin)


def _name(what: str, process: int, name: str, thread: int | None = None) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": "M", "name": what, "pid": process, "args": {"name": name}}
    return event if thread is None else event | {"tid": thread}


def _run_events(
    run: StepFrame, process: int, origin: int, opened: dict[str, Any], flow_ids: Iterator[int], words: Words
) -> Iterator[dict[str, Any]]:
    first = run.kinds[run.kind[0]]
    said = [words.get((first.run_id, seq), {}) for seq in run.column("seq").tolist()]
    config = opened.get("config")
    mode = f", {config['mode']}" if isinstance(config, dict) and "mode" in config else ""
    yield _name("process_name", process, f"run {first.run_id} on {first.device}{mode} (pid {first.pid})")
    comparable = host_clock(run)
    times = stage_times(run)
    for order, stage in enumerate(STAGES):
        start, length = times[stage]
        base = (order + 1) * _LANES_A_STAGE
        lane = np.minimum(lanes(start, length), _LANES_A_STAGE - 1)
        own_clock = stage in DEVICE_STAGES and not bool(comparable.all())
        for number in range(int(lane.max(initial=-1)) + 1):
            title = stage if number == 0 else f"{stage} ({number + 1})"
            yield _name("thread_name", process, title + (" on the device's clock" if own_clock else ""), base + number)
            yield {
                "ph": "M",
                "name": "thread_sort_index",
                "pid": process,
                "tid": base + number,
                "args": {"sort_index": base + number},
            }
        times[stage] = start, lane + base
        yield from _slices(run, stage, process, origin, (start, length, lane + base), said)
    yield from _flows(process, origin, times, comparable, flow_ids)
    yield from _counters(run, process, origin)


def _slices(
    run: StepFrame,
    stage: str,
    process: int,
    origin: int,
    places: tuple[Column, Column, Column],
    said: Sequence[dict[str, Any]],
) -> Iterator[dict[str, Any]]:
    """The stage of each step: ``places`` are its starts, lengths and threads, ``said`` what else is shown."""
    names = ("seq", "slot", "generation", "copy_nbytes", "alloc_nbytes")
    columns = {name: run.column(name).tolist() for name in names}
    kinds, kind = run.kinds, run.kind.tolist()
    rows = zip(*(place.tolist() for place in places), strict=True)
    for row, (begin, duration, tid) in enumerate(rows):
        if begin == MISSING:
            continue
        about = kinds[kind[row]]
        args: dict[str, Any] = {name: values[row] for name, values in columns.items() if values[row] != MISSING} | {
            "program": about.program,
            "event": about.event,
        }
        if about.cold_reason is not None:
            args["cold_reason"] = about.cold_reason
        args |= said[row]
        yield {
            "ph": "X",
            "name": stage,
            "cat": "cold" if about.cold_reason else "warm",
            "pid": process,
            "tid": tid,
            "ts": _us(begin - origin),
            "dur": _us(duration),
            "args": args,
        }


def _flows(
    process: int, origin: int, times: dict[str, tuple[Column, Column]], comparable: Any, flow_ids: Iterator[int]
) -> Iterator[dict[str, Any]]:
    """Arrows through the stages of a step; device stages only where their times are on the host's clock.

    Perfetto reads a flow's id as a hexadecimal number, and as the same flow in whichever process it occurs.
    """
    ways = [(stage, times[stage][0].tolist(), times[stage][1].tolist()) for stage in STAGES if stage != "acquire"]
    for row, on_host in enumerate(comparable.tolist()):
        flow_id = next(flow_ids)
        points = [
            (starts[row], threads[row])
            for stage, starts, threads in ways
            if starts[row] != MISSING and (on_host or stage not in DEVICE_STAGES)
        ]
        points.sort(key=itemgetter(0))  # of a record that contradicts itself, a later stage may start earlier
        for index, (begin, thread) in enumerate(points):
            event: dict[str, Any] = {
                "ph": "s" if index == 0 else "f" if index == len(points) - 1 else "t",
                "name": "step",
                "cat": "step",
                "id": f"{flow_id:#x}",
                "pid": process,
                "tid": thread,
                "ts": _us(begin - origin),
            }
            if event["ph"] == "f":
                event["bp"] = "e"
            if len(points) > 1:
                yield event


def _counters(run: StepFrame, process: int, origin: int) -> Iterator[dict[str, Any]]:
    end = added(run.column("accept_ns"), run.column("total_ns"))
    acquired = added(run.column("acquire_start_ns"), run.column("acquire_wait_ns"))
    for name, begin in (
        ("steps in flight", run.column("accept_ns")),
        ("steps on the device", run.column("launch_start_ns")),
        ("slots in use", acquired),
    ):
        moments, counts = in_use(begin, end)
        for moment, count in zip(moments.tolist(), counts.tolist(), strict=True):
            yield {
                "ph": "C",
                "name": name,
                "pid": process,
                "ts": _us(moment - origin),
                "args": {"count": count},
            }


def _span_events(frames: LogFrames, origin: int) -> Iterator[dict[str, Any]]:
    """Spans of other producers: a process each, a thread or more for each of theirs and each depth of their tree."""
    spans = frames.spans
    placed = spans.column("device_clock") == 0  # the clock of the others has no place here
    if not placed.any():
        return
    columns = {name: spans.column(name)[placed] for name in spans.COLUMNS}
    names = spans.names
    threads: dict[tuple[int, int, int, int], int] = {}
    wanted = ("pid", "tid", "inv", "depth", "name", "ts_ns", "dur_ns")
    rows = zip(*(columns[name].tolist() for name in wanted), _span_lanes(columns).tolist(), strict=True)
    for pid, tid, inv, depth, name, ts, dur, lane in rows:
        process = _SPAN_PROCESS + pid
        thread = pid, tid, depth, lane
        if thread not in threads:
            threads[thread] = len(threads) + 1
            yield _name("process_name", process, f"process {pid}")
            title = f"tid {tid}, depth {depth}" + (f" ({lane + 1})" if lane else "")
            yield _name("thread_name", process, title, threads[thread])
        yield {
            "ph": "X",
            "name": names[name],
            "cat": "span",
            "pid": process,
            "tid": threads[thread],
            "ts": _us(ts - origin),
            "dur": _us(dur),
            "args": {"inv": inv},
        }


def _span_lanes(columns: dict[str, Column]) -> Column:
    """The lane of each span among those of its thread and depth, shape (spans,): invocations may overlap."""
    places = np.stack([columns[name] for name in ("pid", "tid", "depth")])
    group = np.unique(places, axis=1, return_inverse=True)[1].ravel()
    order = np.argsort(group, kind="stable")
    lane = np.zeros(len(order), np.int64)
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        lane[rows] = lanes(columns["ts_ns"][rows], columns["dur_ns"][rows])
    return lane


def strace_lines(frames: LogFrames) -> Iterator[str]:
    """The steps as ``[STRACE]`` lines: a root ``ext.async_orch.step`` each, under it ``ext.async_orch.<stage>``.

    Clock anchors come first. Each step is an invocation of its own; times that are not on the host's clock are marked
    ``clk=dev``.
    """
    for anchor in frames.anchors:
        yield f"[CLOCK_ANCHOR] v=1 pid={anchor.pid} mono_ns={anchor.mono_ns} wall_ns={anchor.wall_ns}\n"
    steps = frames.steps
    times = {stage: (start.tolist(), length.tolist()) for stage, (start, length) in stage_times(steps).items()}
    comparable = host_clock(steps).tolist()
    columns = [steps.column(name).tolist() for name in ("accept_ns", "total_ns", "seq", "slot", "generation")]
    kinds, kind = steps.kinds, steps.kind.tolist()
    for row, (accept, total, seq, slot, generation) in enumerate(zip(*columns, strict=True)):
        about = kinds[kind[row]]
        head = f"[STRACE] v=1 pid={about.pid} tid={about.pid} inv={row} hid={quote(about.run_id, safe='') or '0'}"
        for stage in STAGES:
            start, length = times[stage][0][row], times[stage][1][row]
            if start != MISSING:
                clock = " clk=dev" if stage in DEVICE_STAGES and not comparable[row] else ""
                yield f"{head} depth=1 name=ext.async_orch.{stage} ts={start} dur={length}{clock}\n"
        if MISSING not in (accept, total):
            known = {"slot_id": slot, "generation": generation}
            rest = "".join(f" {key}={value}" for key, value in known.items() if value != MISSING)
            event = quote(about.event, safe=".")
            yield f"{head} depth=0 name=ext.async_orch.step ts={accept} dur={total} run_id={seq}{rest} event={event}\n"
