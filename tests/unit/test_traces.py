"""Spans and instruments of OpenTelemetry."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from async_orch import Orchestrator, metrics
from tests.programs import Hooked, Square

TRACE_A, TRACE_B = "0af7651916cd43dd8448eb211c80319c", "1af7651916cd43dd8448eb211c80319d"
SPAN_A, SPAN_B = "b7ad6b7169203331", "c7ad6b7169203332"


async def spans_of(program: Square, *attrs: dict[str, Any] | None) -> list[ReadableSpan]:
    """The spans of one step for each of ``attrs``."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    orch: Orchestrator[int, int] = Orchestrator(program, "sim:instant")
    metrics.opentelemetry(orch, tracer_provider=provider, meter_provider=MeterProvider())
    async with orch:
        for i, each in enumerate(attrs):
            (await orch.submit(i, step_id=f"s{i}", attrs=each)).exception()
    provider.shutdown()
    return list(exporter.get_finished_spans())


async def test_a_step_links_to_the_requests_that_it_carried() -> None:
    """Each valid trace context in the attributes becomes a link; the step is nobody's child."""
    parents = [f"00-{TRACE_A}-{SPAN_A}-01", f"00-{TRACE_B}-{SPAN_B}-00"]
    (span,) = await spans_of(Square(), {"traceparent": parents, "tracestate": ["k=v", None], "requests": ["r1", "r2"]})
    assert span.parent is None
    found = [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links]
    assert found == [(TRACE_A, SPAN_A), (TRACE_B, SPAN_B)]
    assert span.links[0].context.trace_state.get("k") == "v"
    assert span.attributes is not None
    assert span.attributes["async_orch.attrs.requests"] == ("r1", "r2")
    assert "async_orch.attrs.traceparent" not in span.attributes


async def test_what_is_no_trace_context_is_left_out() -> None:
    """Clients send anything: nonsense gives a span without that link, and costs nothing else."""
    zero = f"00-{'0' * 32}-{SPAN_A}-01"
    odd: list[Any] = ["", "nonsense", zero, 7, ["x", None, f"00-{TRACE_A}-{SPAN_A}-01"], {"a": 1}]
    spans = await spans_of(Square(), None, {}, *({"traceparent": each} for each in odd))
    assert len(spans) == 8
    assert [len(span.links) for span in spans] == [0, 0, 0, 0, 0, 0, 1, 0]


async def test_a_span_has_the_fields_of_the_record_and_its_duration() -> None:
    """Attributes are async_orch.* and hold no nulls; the span lasts as long as the record says."""
    spans = await spans_of(Square(), {"user": object()}, None)
    first = spans[0]
    assert first.name == "async_orch.step default"
    assert first.attributes is not None
    assert first.attributes["async_orch.step_id"] == "s0"
    assert first.attributes["async_orch.outcome"] == "completed"
    assert "async_orch.feed_ns" not in first.attributes
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.end_time - first.start_time == first.attributes["async_orch.total_ns"]
    assert all(key.startswith("async_orch.") for key in first.attributes)


async def test_a_failed_step_has_an_error_status() -> None:
    """The status tells the cause; the span begins before it ends although the step never completed."""
    (span,) = await spans_of(Hooked(launch={0}), None)
    assert span.status.status_code is StatusCode.ERROR
    assert "ArithmeticError: launch of 0" in (span.status.description or "")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time


async def test_instruments_count_the_same_as_prometheus() -> None:
    """Steps by outcome, durations by stage, and gauges read when the reader asks."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    orch: Orchestrator[int, int] = Orchestrator(Hooked(build={1}), "sim:instant", slots=2)
    metrics.opentelemetry(orch, meter_provider=provider, tracer_provider=TracerProvider())
    before = reader.get_metrics_data()
    assert before is None or not before.resource_metrics, "not open: nothing to observe"
    async with orch:
        for i in range(5):
            (await orch.submit(i)).exception()
        await orch.drain()
        data = reader.get_metrics_data()
    assert data is not None
    found = {m.name: m.data.data_points for m in data.resource_metrics[0].scope_metrics[0].metrics}
    steps: dict[Any, Any] = {
        dict(p.attributes or {})["outcome"]: getattr(p, "value", 0) for p in found["async_orch.steps"]
    }
    assert steps == {"completed": 4, "failed": 1}
    stages = {dict(p.attributes or {})["stage"]: getattr(p, "count", 0) for p in found["async_orch.stage.duration"]}
    assert stages == dict.fromkeys(("build", "acquire", "h2d", "launch", "device", "retire"), 4)
    slots = {dict(p.attributes or {})["state"]: getattr(p, "value", 0) for p in found["async_orch.slots"]}
    assert slots == {"free": 2, "leased": 0, "quarantined": 0}
    assert getattr(found["async_orch.step_path.allocations"][0], "value", None) == 0
    provider.shutdown()
