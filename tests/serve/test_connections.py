"""Connections: as many as the server can hold, and none that never says what it wants."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator

import pytest

from examples.serve.connections import SPARE, most_connections
from tests.serve.driving import Running, raw, running, until
from tests.serve.test_bad_input import GOOD, post, split

Held = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@contextlib.asynccontextmanager
async def holding(server: Running, count: int) -> AsyncIterator[Held]:
    """So many connections that say nothing."""
    held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
    try:
        await until(lambda: len(server.server.server_state.connections) == count)
        yield held
    finally:
        for _, writer in held:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


HEALTH = b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def test_one_connection_too_many_is_told_so() -> None:
    """Beyond the limit: 503 in OpenAI's shape and closed; with a place free again it is served."""
    request = post(GOOD).replace(b"connection: close", b"x-keep: yes")
    async with running(connections=2) as server, holding(server, 2) as held:
        status, headers, body = split(await raw(server, request))
        assert (status, headers["connection"], headers["retry-after"]) == (503, "close", "5")
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        held[0][1].close()
        await until(lambda: len(server.server.server_state.connections) == 1)
        assert split(await raw(server, post(GOOD)))[0] == 200


async def test_far_too_many_connections_are_closed_at_once() -> None:
    """What is beyond the limit and those that are told so gets no descriptor for long."""
    async with running(connections=1) as server:
        async with holding(server, 1 + SPARE):
            assert await raw(server) == b""
        await until(lambda: not server.server.server_state.connections)
        assert split(await raw(server, HEALTH))[0] == 200


@pytest.mark.parametrize("part", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
async def test_a_header_that_does_not_come_closes_the_connection(part: bytes) -> None:
    """Neither silence nor half a header holds a connection beyond the time limit."""
    async with running(header_s=0.5) as server:
        assert await raw(server, *([part] if part else [])) == b""
        await until(lambda: not server.server.server_state.connections)


async def test_the_second_header_of_a_connection_has_the_same_limit() -> None:
    """A connection that was served once cannot be held by half of a second header."""
    async with running(header_s=0.5) as server:
        answer = await raw(server, HEALTH.replace(b"connection: close\r\n", b""), b"GET /hea")
        assert split(answer)[0] == 200


async def test_a_request_that_takes_longer_than_a_header_may_is_served() -> None:
    """The limit on headers ends with the header: a body may take its own time."""
    request = post(GOOD)
    async with running(header_s=0.5) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request[:-1])
        late = asyncio.get_running_loop().time() + 0.6
        await until(lambda: asyncio.get_running_loop().time() > late)
        writer.write(request[-1:])
        assert split(await reader.read())[0] == 200
        writer.close()
        await writer.wait_closed()


def test_the_default_stays_below_the_limit_of_open_files() -> None:
    """Clients alone never use up the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections() >= 1
    assert soft == resource.RLIM_INFINITY or most_connections() < soft
