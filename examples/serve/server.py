"""uvicorn around the application: SIGTERM and SIGINT drain, a second one ends it at once."""

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


class HttpServer(uvicorn.Server):
    """Serves an open `Serving`; signals are the caller's, see `stop`.

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
                timeout_graceful_shutdown=max(1, round(drain_s)),
            )
        )
        self._engine = serving.engine

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)  # asyncio has set it to what it accepts at once

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises a caught signal again once it has stopped; then the orchestrator would not be closed.
        yield

    def stop(self) -> None:
        """Take no more requests and finish those that run, for up to ``drain_s``; called again: end at once."""
        self._engine.drain()
        self.force_exit = self.should_exit
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
