"""Around every request: its id, its line in the access log, and an answer in OpenAI's shape whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
import queue
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from examples.serve.errors import ApiError, stopped

if TYPE_CHECKING:
    from examples.serve.traces import RequestSpans

__all__ = ["AccessLog", "Front", "error_response", "trace_context"]

_REQUEST_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")


def error_response(error: ApiError) -> JSONResponse:
    """The error as a JSON answer."""
    return JSONResponse(error.body(), status_code=error.status, headers=error.headers())


def trace_context(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The client's W3C trace context: ``traceparent`` and, if it sent one, ``tracestate``; empty if there is none."""
    parents = [value.decode("latin-1") for name, value in headers if name == b"traceparent"]
    states = [value.decode("latin-1") for name, value in headers if name == b"tracestate"]
    if len(parents) != 1 or not _TRACEPARENT.fullmatch(parents[0]):
        return {}
    state = ",".join(states)  # by the standard it may come in several headers
    return {"traceparent": parents[0]} | ({"tracestate": state} if _TRACESTATE.fullmatch(state) else {})


class AccessLog:
    """JSON lines, one a request, written on a thread of its own; what the disk cannot take is dropped and counted.

    ``request`` in a line is one of ``attrs.requests`` in the records of the steps that carried the request.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="serve-access-log", daemon=True)
        self._thread.start()

    def write(self, line: dict[str, Any]) -> None:
        """Hand a line over; never waits."""
        self._lines.put(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._thread.join(5.0)
        self._file.close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._file.write(line)
            except OSError:
                self.dropped += 1


class Front:
    """The outermost ASGI layer. ``scope["state"]`` gets ``request`` (the id), ``trace`` (the W3C trace context of the
    request's span, or the client's without ``spans``) and ``log`` (a dict that becomes the access log's line)."""

    def __init__(
        self,
        app: ASGIApp,
        log: Callable[[dict[str, Any]], None] | None,
        report: Callable[[str, str], None],
        spans: RequestSpans | None = None,
    ) -> None:
        self._app = app
        self._spans = spans
        self._log = log
        self._report = report
        self._unanswered: set[anyio.CancelScope] = set()

    def end_unanswered(self) -> None:
        """Requests whose answer has not begun, such as those whose body is still on its way, get 503 now."""
        for waits in self._unanswered:
            waits.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        trace = trace_context(scope["headers"])
        name = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        line: dict[str, Any] = {"event": "request", "request": name, "method": scope["method"], "path": scope["path"]}
        span = None if self._spans is None else self._spans.begin(scope["method"], scope["path"], trace)
        if span is not None:
            trace = dict(span.context)
        scope.setdefault("state", {}).update(request=name, log=line, trace=trace)
        if "traceparent" in trace:
            line["traceparent"] = trace["traceparent"]
        started = time.time()
        clock = time.monotonic()
        waits = anyio.CancelScope()

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                line["status"] = message["status"]
                self._unanswered.discard(waits)
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name.encode())]
            await send(message)

        try:
            self._unanswered.add(waits)
            with waits:
                await self._app(scope, receive, with_id)
            if waits.cancelled_caught:
                await error_response(stopped())(scope, receive, with_id)
        except asyncio.CancelledError:  # the event loop ends
            if "status" not in line:
                await error_response(stopped())(scope, receive, with_id)
            raise
        except Exception as exc:  # noqa: BLE001 - the client gets an answer, the operator the cause
            self._report("internal_error", f"{type(exc).__name__}: {exc}")
            line["error"] = type(exc).__name__
            if "status" not in line:
                failure = ApiError(500, "internal error", kind="server_error", code="internal_error")
                await error_response(failure)(scope, receive, with_id)
        finally:
            self._unanswered.discard(waits)
            line |= {"status": line.get("status"), "start": round(started, 6), "seconds": time.monotonic() - clock}
            if span is not None:
                span.end(line)
            if self._log is not None:
                self._log(line)
