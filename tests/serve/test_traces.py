"""Spans of requests and of the steps that carried them, with OpenTelemetry's own SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from examples.serve.front import trace_context
from tests.serve.driving import raw, running
from tests.serve.hash_model import FAILS, HashModel
from tests.serve.test_bad_input import GOOD, post

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACE = f"00-{TRACE_ID}-{PARENT_ID}-01"


class Spans:
    """A provider, and what went through it."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, start: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(start)]


@pytest.fixture
def spans() -> Iterator[Spans]:
    found = Spans()
    yield found
    found.provider.shutdown()


def context_of(span: ReadableSpan) -> SpanContext:
    """The span's own context."""
    found: SpanContext | None = span.context
    assert found is not None
    return found


async def served(spans: Spans, *requests: bytes, **model: Any) -> None:
    """Requests at once, to a server that reports to the provider and has ended."""
    async with running(HashModel(**model), otel=True, tracer_provider=spans.provider) as server:
        await asyncio.gather(*(raw(server, request) for request in requests))


async def test_a_request_is_a_span_to_which_its_steps_link(spans: Spans) -> None:
    """Child of the client's span, with its state; each of its steps links to it, state included."""
    await served(spans, post(GOOD | {"prompt": "wait"}, x_request_id="r1", traceparent=TRACE, tracestate="a=1,b=2"))
    [request] = spans.named("POST /v1/completions")
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert (f"{request.parent.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE_ID, PARENT_ID)
    own = context_of(request)
    assert f"{own.trace_id:032x}" == TRACE_ID
    assert dict(request.attributes or {}) == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "async_orch.request": "r1",
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.response.finish_reasons": ("length",),
    }
    steps = spans.named("async_orch.step")
    assert [step.name for step in steps] == ["async_orch.step prefill", *["async_orch.step decode"] * 2]
    for step in steps:
        [link] = step.links
        assert (link.context.trace_id, link.context.span_id) == (own.trace_id, own.span_id)
        assert link.context.trace_state.to_header() == "a=1,b=2"


async def test_a_step_links_to_each_request_that_it_carried(spans: Spans) -> None:
    """Requests without a client's trace have spans of their own; each link has the state of its own request."""
    asked = GOOD | {"prompt": "loud", "max_tokens": 30}
    await served(spans, post(asked), post(asked, traceparent=TRACE, tracestate="a=1"), cost_ns=1_000_000)
    contexts = [context_of(span) for span in spans.named("POST")]
    states = {context.span_id: context.trace_state.to_header() for context in contexts}
    assert sorted(states.values()) == ["", "a=1"]
    links = [step.links for step in spans.named("async_orch.step")]
    assert max(map(len, links)) == 2
    assert all(states[link.context.span_id] == link.context.trace_state.to_header() for each in links for link in each)


async def test_what_goes_wrong_is_in_the_span(spans: Spans) -> None:
    """A failed step is an error of its request, also in a stream; a wrong request is none, and names no odd path."""
    bad = GOOD | {"prompt": f"{FAILS}bad"}
    await served(spans, post(bad), post(bad | {"stream": True}), post(GOOD | {"n": 2}), post(GOOD, path="/odd"))
    found = {
        (span.name, (span.attributes or {})["http.response.status_code"], span.status.status_code)
        for span in spans.named("POST")
    }
    assert found == {
        ("POST /v1/completions", 503, StatusCode.ERROR),
        ("POST /v1/completions", 200, StatusCode.ERROR),
        ("POST /v1/completions", 400, StatusCode.UNSET),
        ("POST", 404, StatusCode.UNSET),
    }


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ([], {}),
        ([("tracestate", "a=1")], {}),
        ([("traceparent", "nonsense"), ("tracestate", "a=1")], {}),
        ([("traceparent", TRACE), ("traceparent", TRACE)], {}),
        ([("traceparent", TRACE), ("tracestate", "\xff")], {"traceparent": TRACE}),
        ([("traceparent", TRACE), ("tracestate", "a=1" * 200)], {"traceparent": TRACE}),
        (
            [("traceparent", TRACE), ("tracestate", "a=1"), ("tracestate", "b=2")],
            {"traceparent": TRACE, "tracestate": "a=1,b=2"},
        ),
    ],
)
def test_a_trace_context_is_taken_or_left(headers: list[tuple[str, str]], wanted: dict[str, str]) -> None:
    """State without a parent, what is no trace context and what is too long are left out; parts of a state join."""
    assert trace_context([(name.encode(), value.encode("latin-1")) for name, value in headers]) == wanted
