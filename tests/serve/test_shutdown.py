"""The end of the server: however far a request has come, its client is told in OpenAI's shape."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import signal
import socket
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from async_orch.testing import leak_check
from examples.serve.front import Front
from tests.serve.driving import Running, deaf, raw, running, until
from tests.serve.hash_model import HashModel
from tests.serve.process import NAME as STORIES
from tests.serve.process import started
from tests.serve.test_bad_input import GOOD, post, split

LONG = GOOD | {"prompt": "loud", "max_tokens": 240}
SLOW_NS = 20_000_000
"""Of a step: `LONG` takes almost five seconds, which no test waits for."""

Ends = Callable[[Running], None]


def once(server: Running) -> None:
    """As SIGTERM does."""
    server.server.stop()


def twice(server: Running) -> None:
    """As SIGTERM and one more do."""
    server.server.stop()
    server.server.stop()


def taken(server: Running, count: int) -> bool:
    """Whether so many requests run or wait."""
    return len(server.engine.scheduler.running) + len(server.engine.scheduler.waiting) == count


def last_event(response: bytes) -> Any:
    """The last server-sent event of a stream."""
    return json.loads(response.rpartition(b"data: ")[2].split(b"\r\n")[0])


def told(response: bytes) -> tuple[int, str, str]:
    """Status, content type and the error's code of an answer in one piece."""
    status, headers, body = split(response)
    assert headers["retry-after"]
    assert headers["x-request-id"]
    return status, headers["content-type"], json.loads(body)["error"]["code"]


@pytest.mark.parametrize(("drain_s", "stop"), [(0.05, once), (60.0, twice)], ids=["time is over", "second signal"])
async def test_what_is_not_done_in_time_gets_503(drain_s: float, stop: Ends, caplog: pytest.LogCaptureFixture) -> None:
    """Answers in one piece, streams, who waits for a row and who is still sending, after the time or a second signal:
    503 in OpenAI's shape or an error event, no traceback, and nothing is left."""
    caplog.set_level(logging.ERROR)
    with leak_check():
        async with running(HashModel(batch=2, cost_ns=SLOW_NS), drain_s=drain_s) as server:
            scheduler = server.engine.scheduler
            asked = [LONG, LONG | {"stream": True}, LONG, LONG | {"stream": True}]
            tasks = []
            for number, each in enumerate(asked, 1):  # in this order: two run, two wait
                tasks.append(asyncio.create_task(raw(server, post(each))))
                await until(functools.partial(taken, server, number))
            half = asyncio.create_task(raw(server, post(GOOD, content_length="500")))
            await until(lambda: len(server.server.server_state.tasks) == 5)
            await until(lambda: len(scheduler.running) == 2 and bool(scheduler.running[1].generation.tokens))
            stop(server)
            whole, stream, waits, waiting_stream, half_sent = await asyncio.gather(*tasks, half)
        assert told(whole) == told(waits) == told(half_sent) == (503, "application/json", "stopped")
        assert split(stream)[0] == split(waiting_stream)[0] == 200
        assert last_event(stream)["error"]["code"] == last_event(waiting_stream)["error"]["code"] == "stopped"
        assert stream.count(b"data: ") > 1
        assert sorted(line["status"] for line in server.access) == [200, 200, 503, 503, 503]
    assert caplog.messages == []
    assert not server.reported


async def test_a_client_that_does_not_read_does_not_keep_the_server() -> None:
    """A stream that cannot be written and a connection that never sends a request are closed at the end."""
    with leak_check():
        async with running(HashModel(batch=2, cost_ns=1_000_000), drain_s=0.05) as server:
            silent = await asyncio.open_connection("127.0.0.1", server.port)
            async with deaf(server, post(LONG | {"stream": True})):
                server.server.stop()
                assert await silent[0].read() == b""
                await until(lambda: not server.server.server_state.connections)
            silent[1].close()
    assert len(server.access) == 1


async def test_the_end_of_the_event_loop_is_told_too() -> None:
    """A request whose task is cancelled from outside sends 503 before it ends."""
    sent: list[Any] = []
    begun = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    task = asyncio.create_task(Front(app, None, lambda event, detail: None)(scope, receive, send))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent[0]["status"] == 503
    assert json.loads(sent[1]["body"])["error"]["code"] == "stopped"


@pytest.mark.parametrize("signals", [1, 2])
def test_a_process_that_is_told_to_end_tells_its_clients(signals: int) -> None:
    """SIGTERM and the end of the time, or SIGTERM twice: an error event, nothing on standard error, status 0."""
    drain = "0.2" if signals == 1 else "60"
    body = {"model": STORIES, "prompt": "Once", "max_tokens": 400, "temperature": 0, "stream": True}
    with started("--backend", "sim:a5-report", "--drain-timeout", drain) as (process, url):
        with urllib.request.urlopen(f"{url}/v1/completions", json.dumps(body).encode(), timeout=60) as answer:  # noqa: S310
            first = answer.readline()
            process.send_signal(signal.SIGTERM)
            if signals == 2:
                # The first one has arrived once nobody listens any more; two at once would be one.
                port = int(url.rpartition(":")[2])
                with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
                    while True:
                        socket.create_connection(("127.0.0.1", port)).close()
                process.send_signal(signal.SIGTERM)
            rest = answer.read()
        assert first.startswith(b"data: ")
        assert json.loads(rest.rpartition(b"data: ")[2])["error"]["code"] == "stopped"
        assert process.wait(timeout=20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
