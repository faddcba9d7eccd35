"""Connections: as many as the server can hold, and none that never says what it wants, or says what is no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
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


NO_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01",
    b"GET\r\n\r\n",
    b"\x00" * 100 + b"\r\n\r\n",
    post(GOOD, content_length="-5"),
    post(GOOD, content_length="5, 6"),
    post(b"zz\r\n", content_length="").replace(b"content-length: ", b"transfer-encoding: chunked"),
]


async def test_what_is_no_http_ends_that_connection_only() -> None:
    """A TLS hello, noise, a length that is none, a broken chunk: 400 in OpenAI's shape; the server goes on."""
    async with running() as server:
        for request in NO_HTTP:
            status, headers, body = split(await raw(server, request))
            assert (status, headers["content-type"], headers["connection"]) == (400, "application/json", "close")
            error = json.loads(body)["error"]
            assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_http")
        assert split(await raw(server, post(GOOD)))[0] == 200


async def test_what_is_no_http_beside_an_answer_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    """A body that breaks off into noise while its answer is sent: the connection is closed, with no traceback."""
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /live HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.write(b"zz\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_the_default_stays_below_the_limit_of_open_files() -> None:
    """Clients alone never use up the process's descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert most_connections() >= 1
    assert soft == resource.RLIM_INFINITY or most_connections() < soft
