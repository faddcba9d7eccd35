"""A span for each request, to which the spans of the steps that carried it link; needs the extra ``otel``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

__all__ = ["RequestSpan", "RequestSpans"]

METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}

FROM_LINE = {
    "request": "async_orch.request",
    "status": "http.response.status_code",
    "error": "error.type",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
"""Attributes by key of the access log's line; under OpenTelemetry's names where it has one."""


class RequestSpan:
    """A request's span. ``context``: its W3C trace context, ``traceparent`` and perhaps ``tracestate``."""

    def __init__(self, span: trace.Span, context: Mapping[str, str]) -> None:
        self.context = context
        self._span = span

    def end(self, line: Mapping[str, Any]) -> None:
        """The request is over, with this line in the access log."""
        span, status, reason = self._span, line.get("status"), line.get("finish_reason")
        if span.is_recording():
            # Only paths that there are become part of the name: of names there must be few.
            if status not in (404, None):
                span.update_name(f"{line['method']} {line['path']}")
            found = {key: line.get(name) for name, key in FROM_LINE.items()}
            span.set_attributes({key: value for key, value in found.items() if value is not None})
            if reason is not None:
                span.set_attribute("gen_ai.response.finish_reasons", [reason])
            if status is None or status >= 500 or reason == "error":  # a stream had begun with 200
                span.set_status(trace.StatusCode.ERROR)
        span.end()


class RequestSpans:
    """Makes the spans, by default with the global provider."""

    def __init__(self, provider: trace.TracerProvider | None) -> None:
        self._tracer = trace.get_tracer("examples.serve", tracer_provider=provider)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, method: str, path: str, client: Mapping[str, str]) -> RequestSpan:
        """A request came; ``client`` is the client's trace context, by the names of the headers, or empty."""
        known = method if method in METHODS else "_OTHER"
        span = self._tracer.start_span(
            known if known == method else "HTTP",
            context=self._propagator.extract(client, Context()),
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": known, "url.path": path},
        )
        context: dict[str, str] = {}
        self._propagator.inject(context, trace.set_span_in_context(span, Context()))
        return RequestSpan(span, context)
