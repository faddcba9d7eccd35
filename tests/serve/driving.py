"""A server in the test's own loop, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from uvicorn.protocols.http.h11_impl import H11Protocol

from async_orch.abc import Backend
from examples.serve.app import Serving, Settings, serving
from examples.serve.server import HttpServer, listen
from tests.serve.hash_model import Characters, HashModel

__all__ = ["NAME", "Running", "client", "deaf", "raw", "running", "until"]

NAME = "hash"


def _nothing() -> None:
    pass


async def until(condition: Callable[[], bool]) -> None:
    """Let all other tasks run until the condition holds.

    Each turn waits for a thread: a loop that never waits gives the GIL up every 5 ms only, and a step on a device of
    threads takes several hand-overs.
    """
    with anyio.fail_after(20):
        while not condition():
            await checkpoint()
            await anyio.to_thread.run_sync(_nothing)


class Running:
    """A server that listens; what it reported and logged so far."""

    def __init__(self, opened: Serving, server: HttpServer, port: int) -> None:
        self.opened = opened
        self.engine = opened.engine
        self.server = server
        self.port = port
        self.reported: list[tuple[str, str]] = []
        self.access: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def blocks_in_use(self) -> int:
        """Blocks of the cache that a sequence has, or the device may still write."""
        return self.engine.scheduler.blocks.total - self.engine.scheduler.blocks.available

    async def until_idle(self) -> None:
        """Wait until no request is left in the engine."""
        await until(lambda: not self.engine.busy and not self.blocks_in_use())


@contextlib.asynccontextmanager
async def running(
    model: HashModel | None = None,
    backend: str | Backend = "sim:instant",
    *,
    drain_s: float = 10.0,
    connections: int | None = None,
    header_s: float = 10.0,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Serve the hash model, or another one that is given with its codec, until the body is done."""
    model = HashModel() if model is None else model
    access: list[dict[str, Any]] = []
    reported: list[tuple[str, str]] = []
    options = Settings(name=settings.pop("name", NAME), **settings)
    codec = getattr(model, "codec", None) or Characters()
    with listen("127.0.0.1", 0) as listening:
        async with serving(
            model, codec, backend, options, access_log=access.append, report=lambda *event: reported.append(event)
        ) as opened:
            server = HttpServer(opened, drain_s=drain_s, connections=connections, header_s=header_s)
            serve = asyncio.create_task(server.serve(sockets=[listening]))
            found = Running(opened, server, listening.getsockname()[1])
            found.reported, found.access = reported, access
            try:
                await until(lambda: server.started)
                yield found
            finally:
                server.stop()
                await serve


@contextlib.asynccontextmanager
async def deaf(server: Running, request: bytes) -> AsyncIterator[socket.socket]:
    """A client that sends a request and reads nothing, until the server cannot write to it; its socket.

    All buffers on the way are small, some 20 KB in all, so the answer must be larger: a stream of more than a hundred
    events, which takes steps that cost the device some time (many tokens that come at once are one event).
    """
    loop, known = asyncio.get_running_loop(), set(server.server.server_state.connections)
    with socket.socket() as opened:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(opened, ("127.0.0.1", server.port))
        await until(lambda: len(server.server.server_state.connections) > len(known))
        [connection] = set(server.server.server_state.connections) - known
        assert isinstance(connection, H11Protocol)
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        connection.transport.set_write_buffer_limits(high=4096)
        await loop.sock_sendall(opened, request)
        await until(lambda: connection.flow.write_paused)
        yield opened


@contextlib.asynccontextmanager
async def client(server: Running) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client, which tries nothing twice; without TLS, whose certificates take a while to load."""
    http = DefaultAsyncHttpxClient(verify=False)
    url = f"{server.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30, http_client=http) as found:
        yield found


async def raw(server: Running, *parts: bytes, half_close: bool = False) -> bytes:
    """Send bytes as they are and read until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if half_close:
            writer.write_eof()
        with anyio.fail_after(20):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
