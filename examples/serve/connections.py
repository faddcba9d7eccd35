"""Limits on connections: how many there may be, and how long one may take to say what it wants."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from examples.serve.errors import bad_request, unavailable
from examples.serve.front import error_response

if sys.platform != "win32":
    import resource

__all__ = ["ACCEPTS_AT_ONCE", "ConnectionConfig", "most_connections"]

ACCEPTS_AT_ONCE = 16
"""Connections that asyncio accepts before any of them can be closed for being too many."""

SPARE = 32
"""Connections above the limit that are still told so; further ones are closed without a word."""

OWN_DESCRIPTORS = 64
"""For everything but clients: logs, the model's files, the event loop, the device."""

HEADER_S = 10.0


def most_connections() -> int:
    """Connections for which the process has file descriptors (``RLIMIT_NOFILE``), a margin aside; at least 1."""
    if sys.platform == "win32":
        return 512
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return 1_000_000
    return max(1, min(1_000_000, soft - OWN_DESCRIPTORS - SPARE - ACCEPTS_AT_ONCE))


class ConnectionConfig(uvicorn.Config):
    """uvicorn's options and two of ours; what is no HTTP is answered in OpenAI's shape too.

    Beyond ``connections`` a request is answered with 503 and its connection closed. A connection that has not sent a
    whole header within ``header_s`` of its start, or of the header's first bytes, is closed.
    """

    def __init__(self, app: ASGIApp, *, connections: int, header_s: float = HEADER_S, **options: Any) -> None:
        super().__init__(app, http=_Connection, **options)
        self.connections = connections
        self.header_s = header_s
        error = unavailable("this server has as many connections as it can hold", code="too_many_connections")
        self.busy = error_response(error)
        self.busy.headers["connection"] = "close"
        self.no_http = error_response(bad_request("what was sent is no valid HTTP", code="invalid_http"))
        self.no_http.headers["connection"] = "close"


class _Connection(H11Protocol):
    """A connection of a `ConnectionConfig`."""

    config: ConnectionConfig
    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        over = len(self.connections) - self.config.connections
        if over > SPARE:
            transport.abort()
            return
        if over > 0:
            self.app = self.config.busy
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        # Between requests uvicorn's keep-alive timer runs; it stops at the first byte of the next header.
        if self.conn.their_state is not h11.IDLE:
            self._stop_header_timer()
        elif self.conn.trailing_data[0] and self._header_timer is None and not self.transport.is_closing():
            self._start_header_timer()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = self.config.no_http
            for event in (
                h11.Response(status_code=answer.status_code, headers=answer.raw_headers, reason=b"Bad Request"),
                h11.Data(data=bytes(answer.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        # Else an answer has begun, and nothing can be said any more.
        self.transport.close()

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self.config.header_s, self.transport.close)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
