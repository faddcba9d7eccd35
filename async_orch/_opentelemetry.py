"""An orchestrator's steps as spans, and its metrics as instruments, of OpenTelemetry."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from async_orch._step_totals import BUCKETS_S, idle_ns, stage_durations
from async_orch.exceptions import OrchestratorClosed
from async_orch.logs import FIELDS, StepRecord

if TYPE_CHECKING:
    from async_orch._orchestrator import Orchestrator
    from async_orch._statistics import Statistics

__all__ = ["StepInstruments", "StepSpans"]

SCOPE = "async_orch"
_TRACE_KEYS = ("traceparent", "tracestate")
_LEFT_OUT = {"event", "schema", "level", "timestamp", "pid", "host", "attrs", "error"}
_ATTRIBUTES = tuple((name, f"async_orch.{name}") for name in FIELDS if name not in _LEFT_OUT)
_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_NO_PARENT = Context()  # a step belongs to several requests at once; none of them is its parent


class StepSpans:
    """One span a step, made after the fact from its record, with a link to each request that it carried."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, record: StepRecord) -> None:
        start_ns, end_ns = wall_times(record)
        attrs = record.attrs or {}
        span = self._tracer.start_span(
            f"async_orch.step {record.program}", context=_NO_PARENT, links=self._links(attrs), start_time=start_ns
        )
        if span.is_recording():
            fields = ((key, getattr(record, name)) for name, key in _ATTRIBUTES)
            span.set_attributes({key: _plain(value) for key, value in fields if value is not None})
            span.set_attribute("async_orch.outcome", record.event.partition(".")[2])
            span.set_attributes(
                {f"async_orch.attrs.{key}": _plain(value) for key, value in attrs.items() if key not in _TRACE_KEYS}
            )
            if record.error is not None:
                span.set_status(trace.StatusCode.ERROR, record.error)
        span.end(end_ns)

    def _links(self, attrs: Mapping[str, Any]) -> list[trace.Link]:
        """A link for each valid traceparent; one that is no W3C trace context is what a client sent, and left out."""
        parents, states = attrs.get("traceparent"), attrs.get("tracestate")
        if isinstance(parents, str):
            parents, states = [parents], [states]
        if not isinstance(parents, list | tuple):
            return []
        if not isinstance(states, list | tuple) or len(states) != len(parents):
            states = [None] * len(parents)
        links = []
        for parent, state in zip(parents, states, strict=True):
            if not isinstance(parent, str):
                continue
            carrier = {"traceparent": parent, **({"tracestate": state} if isinstance(state, str) else {})}
            context = trace.get_current_span(self._propagator.extract(carrier, Context())).get_span_context()
            if context.is_valid:
                links.append(trace.Link(context))
        return links


class StepInstruments:
    """The same metrics as `metrics.prometheus`, under OpenTelemetry's naming."""

    def __init__(self, orchestrator: Orchestrator[Any, Any], provider: MeterProvider | None) -> None:
        self._orchestrator = orchestrator
        meter = get_meter(SCOPE, meter_provider=provider)
        self._steps = meter.create_counter("async_orch.steps", "{step}", "Steps that are over, by how they ended")
        self._idle = meter.create_counter("async_orch.device.idle", "s", "Time the device waited between two steps")
        self._starved = meter.create_counter("async_orch.device.starved", "s", "Of it: no step had been submitted")
        self._duration = _seconds(meter, "async_orch.step.duration", "From a step's acceptance to its result")
        self._stage = _seconds(meter, "async_orch.stage.duration", "Time of a step in each stage")
        meter.create_observable_gauge("async_orch.queue.length", [self._queues], "{step}", "Waiting before each stage")
        meter.create_observable_gauge("async_orch.slots", [self._slots], "{slot}", "Slots, by state")
        meter.create_observable_counter(
            "async_orch.step_path.allocations", [self._allocations], "{allocation}", "Allocations on the step path"
        )

    def __call__(self, record: StepRecord) -> None:
        outcome = record.event.partition(".")[2]
        idle, starved = idle_ns(record)
        self._steps.add(1, {"outcome": outcome})
        self._idle.add(idle / 1e9)
        self._starved.add(starved / 1e9)
        if outcome != "completed":
            return
        if record.total_ns is not None:
            self._duration.record(record.total_ns / 1e9, {"program": record.program})
        for stage, duration_ns in stage_durations(record):
            self._stage.record(duration_ns / 1e9, {"stage": stage})

    def _now(self) -> Statistics | None:
        try:
            return self._orchestrator.statistics()
        except OrchestratorClosed:  # not open yet
            return None

    def _queues(self, options: CallbackOptions) -> Iterable[Observation]:
        now = self._now()
        lengths = {} if now is None else now.queue_lengths
        return [Observation(length, {"stage": stage}) for stage, length in lengths.items()]

    def _slots(self, options: CallbackOptions) -> Iterable[Observation]:
        now = self._now()
        if now is None:
            return []
        free = now.slots_total - now.slots_leased - now.slots_quarantined
        states = {"free": free, "leased": now.slots_leased, "quarantined": now.slots_quarantined}
        return [Observation(count, {"state": state}) for state, count in states.items()]

    def _allocations(self, options: CallbackOptions) -> Iterable[Observation]:
        now = self._now()
        return [] if now is None else [Observation(now.step_path_allocs)]


def _seconds(meter: Meter, name: str, description: str) -> Any:
    return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=BUCKETS_S)


def wall_times(record: StepRecord) -> tuple[int, int]:
    """Start and end of the step, nanoseconds since 1970; the end is when it settled, to the microsecond.

    The record's clock may be a simulated one, so the two are not read from a clock here: the start lies as long before
    the end as the record says.
    """
    settled = dt.datetime.fromisoformat(record.timestamp) - _EPOCH
    end_ns = settled // dt.timedelta(microseconds=1) * 1000
    return end_ns - _lasted_ns(record), end_ns


def _lasted_ns(record: StepRecord) -> int:
    """From acceptance to the end; for a step that did not complete to the last moment that its record knows."""
    if record.total_ns is not None:
        return record.total_ns
    accept_ns = record.accept_ns or 0
    ends = (
        (record.build_start_ns, record.build_ns),
        (record.acquire_start_ns, record.acquire_wait_ns),
        (record.launch_start_ns, record.launch_ns),
        (record.device_start_ns, record.device_ns),
    )
    return max([0, *(start + (duration or 0) - accept_ns for start, duration in ends if start is not None)])


def _plain(value: object) -> str | int | float | bool | list[str]:
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value)
