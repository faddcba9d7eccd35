"""uvicorn around the application: SIGTERM and SIGINT drain, a second one ends every request with 503."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Generator

import uvicorn

from examples.serve.app import Serving
from examples.serve.connections import ACCEPTS_AT_ONCE, HEADER_S, ConnectionConfig, most_connections

__all__ = ["HttpServer", "listen"]

BACKLOG = 1024

LAST_WORDS_S = 1.0
"""How long requests may take to send their 503 at the end, before their connections are closed."""


class HttpServer(uvicorn.Server):
    """Serves an open `Serving`; signals are the caller's, see `stop`.

    Requests that are not done ``drain_s`` after `stop` get 503, or an error event where a stream has begun.
    ``connections`` is by default what the limit of open files allows; for ``header_s`` see `ConnectionConfig`.
    """

    def __init__(
        self, serving: Serving, *, drain_s: float, connections: int | None = None, header_s: float = HEADER_S
    ) -> None:
        super().__init__(
            ConnectionConfig(
                serving.app,
                connections=most_connections() if connections is None else connections,
                header_s=header_s,
                backlog=ACCEPTS_AT_ONCE,
                ws="none",
                lifespan="off",
                access_log=False,
                log_level="error",
                server_header=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=None,  # it would cancel requests, whose clients then get 500 as plain text
            )
        )
        self._serving = serving
        self._drain_s = drain_s
        self._at_once = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)  # asyncio has set it to what it accepts at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_requests(), name="end-requests")
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.wait([ending])
        if not ending.cancelled():
            ending.result()

    async def _end_requests(self) -> None:
        """Once the time is over or `stop` was called again: end whatever is not done, each request with 503."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._drain_s):
                await self._at_once.wait()
        self._serving.engine.stop()
        await asyncio.sleep(LAST_WORDS_S)
        self._serving.app.end_unanswered()
        await asyncio.sleep(LAST_WORDS_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # its client does not read

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises a caught signal again once it has stopped; then the orchestrator would not be closed.
        yield

    def stop(self) -> None:
        """Take no more requests and finish those taken, for up to ``drain_s``; called again: end them with 503."""
        self._serving.engine.drain()
        if self.should_exit:
            self._at_once.set()
        self.should_exit = True

    @contextlib.contextmanager
    def stopping_on_signals(self) -> Generator[None, None, None]:
        """Let SIGTERM and SIGINT call `stop`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, so that a port in use is known before the model is loaded. Raises `OSError`, which
    names address and options."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(BACKLOG)
        opened.setblocking(False)
    except OSError as exc:
        opened.close()
        raise OSError(f"cannot listen on {host}:{port} (--host, --port): {exc.strerror or exc}") from exc
    except BaseException:
        opened.close()
        raise
    return opened
