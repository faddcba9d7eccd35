"""What clients get wrong: each gets the right status in OpenAI's shape, and nobody else is touched."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import anyio
import pytest

from examples.serve import requests
from examples.serve.answers import Shape
from examples.serve.generation import Asked, Generation
from examples.serve.server import listen
from examples.serve.text import OutputText
from tests.serve.driving import NAME, Running, deaf, raw, running
from tests.serve.hash_model import Characters, HashModel, answer, text_of


def post(body: bytes | dict[str, Any], path: str = "/v1/completions", **headers: str) -> bytes:
    """The bytes of a request that asks for the connection to be closed behind it."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"host": "x", "connection": "close", "content_length": str(len(data))} | headers
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data


def split(response: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a response."""
    head, _, body = response.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


async def refused(server: Running, request: bytes, *more: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error of a request that is refused."""
    status, headers, body = split(await raw(server, request, *more))
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    assert "/" not in error["message"]
    return status, error


GOOD: dict[str, Any] = {"model": NAME, "prompt": "hello", "max_tokens": 3, "temperature": 0}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 7}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ["a"]}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "3"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_tokens": 2**31 - 1}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"foo": 1}}, "stream_options.foo"),
    ({"n": 2}, "n"),
    ({"k" * 5000: 2}, "k" * 64 + "..."),
    ({"logprobs": 1}, "logprobs"),
    ({"tools": []}, "tools"),
]


async def test_wrong_fields_are_named() -> None:
    """Wrong types, values out of range and unknown names: 400 with the field, and the next request works."""
    async with running() as server:
        for change, param in WRONG:
            status, error = await refused(server, post(GOOD | change))
            assert (status, error["param"]) == (400, param), (change, error)
            assert error["type"] == "invalid_request_error"
        status, _, body = split(await raw(server, post(GOOD)))
        assert status == 200
        assert json.loads(body)["usage"]["completion_tokens"] == 3


CHAT: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


WRONG_CHATS: list[dict[str, Any]] = [
    {"messages": []},
    {"messages": "hi"},
    {"messages": [{"role": "robot", "content": "hi"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    {"messages": [{"role": "user", "content": "hi", "name": "me"}]},
    {"max_completion_tokens": 2},
    {"response_format": {"type": "json_object"}},
]


async def test_wrong_conversations_are_refused() -> None:
    """Roles, contents and options that the server does not have: 400."""
    async with running() as server:
        for change in WRONG_CHATS:
            status, error = await refused(server, post(CHAT | change, "/v1/chat/completions"))
            assert (status, error["type"]) == (400, "invalid_request_error"), change


BROKEN = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe",
    b'{"model": "hash", "prompt": "\xff\xfe"}',
    b'{"model": "hash", "prompt": "\\ud800"}',
    b'{"model": "hash", "prompt": "a", "temperature": NaN}',
    b'{"model": "hash", "prompt": "a", "temperature": 1e999}',
    b'{"model": "hash", "model": 3, "prompt": "a"}',
    b"[" * 100_000,
]


async def test_bodies_that_are_no_request_are_refused() -> None:
    """Broken JSON, invalid UTF-8, half a surrogate pair, numbers that are none: 400."""
    async with running() as server:
        for body in BROKEN:
            status, _ = await refused(server, post(body))
            assert status == 400, body[:80]


async def test_an_unknown_model_is_not_found() -> None:
    """404 with OpenAI's code; a name of a thousand characters is not repeated in full."""
    async with running() as server:
        status, error = await refused(server, post(GOOD | {"model": "m" * 1000}))
        assert (status, error["code"]) == (404, "model_not_found")
        assert len(error["message"]) < 200


async def test_a_prompt_beyond_the_context_is_refused_before_it_is_read_by_the_tokenizer() -> None:
    """400 with OpenAI's code, for a prompt that is a little too long and for one that is a megabyte."""
    async with running() as server:
        for length in (256, 257, 900_000):
            status, error = await refused(server, post(GOOD | {"prompt": "x" * length}))
            assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_more_than_the_cache_can_ever_hold_is_refused() -> None:
    """A request that no amount of waiting would serve gets 400 instead of waiting."""
    async with running(HashModel(kv_blocks=2)) as server:
        status, error = await refused(server, post(GOOD | {"prompt": "x" * 40}))
        assert (status, error["code"]) == (400, "context_length_exceeded")
        status, error = await refused(server, post(GOOD | {"prompt": "x" * 30, "max_tokens": 4}))
        assert (status, error["code"]) == (400, "context_length_exceeded")


async def test_paths_and_methods_that_do_not_exist() -> None:
    """404 and 405 in the same shape."""
    async with running() as server:
        status, error = await refused(server, post(GOOD, "/v1/embeddings"))
        assert (status, error["code"]) == (404, "not_found")
        get = b"GET /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        status, error = await refused(server, get)
        assert (status, error["code"]) == (405, "method_not_allowed")


async def test_a_body_that_is_too_large_is_refused_unread() -> None:
    """413, by the declared length and by what really comes."""
    async with running(body_nbytes=1000) as server:
        status, _ = await refused(server, post(b"x" * 1001))
        assert status == 413
        chunked = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
        status, _ = await refused(server, chunked, b"800\r\n" + b"x" * 0x800 + b"\r\n0\r\n\r\n")
        assert status == 413


async def test_a_body_that_does_not_come_is_given_up() -> None:
    """408 once the time for it is over; the server waits with nothing but that connection."""
    async with running(body_s=0.05) as server:
        status, error = await refused(server, post(GOOD, content_length="500"))
        assert (status, error["code"]) == (408, "request_timeout")


async def test_a_request_that_takes_too_long_ends() -> None:
    """503 with a code of its own, in the stream where one has begun; its blocks come back."""
    model = HashModel(cost_ns=5_000_000)
    async with running(model, request_s=0.1) as server:
        status, headers, body = split(await raw(server, post(GOOD | {"max_tokens": 200, "prompt": "deaf"})))
        assert (status, json.loads(body)["error"]["code"]) == (503, "request_timeout")
        assert headers["retry-after"]
        streamed = await raw(server, post(GOOD | {"max_tokens": 200, "prompt": "deaf", "stream": True}))
        last = streamed.strip().rpartition(b"data: ")[2].split(b"\r\n")[0]
        assert json.loads(last)["error"]["code"] == "request_timeout"
        await server.until_idle()


async def test_a_half_closed_connection_counts_as_left() -> None:
    """A client that sends its end of stream gets nothing more; the request is in no further step."""
    model = HashModel(batch=2, cost_ns=1_000_000)
    async with running(model) as server:
        await raw(server, post(GOOD | {"max_tokens": 250, "stream": True}), half_close=True)
        await server.until_idle()
        assert server.access[-1]["finish_reason"] == "abort"


async def test_a_client_that_does_not_read_holds_up_nobody() -> None:
    """The server cannot write to it, but goes on computing and serves others; what waits is one answer at most, which
    it gets as a whole once it reads."""
    request = post(GOOD | {"prompt": "loud", "max_tokens": 240, "stream": True})
    async with running(HashModel(batch=4, cost_ns=1_000_000)) as server:
        async with deaf(server, request) as unread:
            for _ in range(5):
                assert split(await raw(server, post(GOOD)))[0] == 200
            await server.until_idle()
            assert len(server.access) == 5, "the answer that nobody reads is not over"
            received = b""
            while part := await asyncio.get_running_loop().sock_recv(unread, 65536):
                received += part
        events = [json.loads(line[6:]) for line in received.split(b"\n") if line.startswith(b"data: {")]
        text = "".join(event["choices"][0]["text"] for event in events)
        assert text == text_of(answer("loud", 240))


async def test_a_stream_that_cannot_be_written_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never reads: once the time limit and a grace are over, its request is dropped."""
    monkeypatch.setattr(requests, "WRITE_GRACE_S", 0.05)
    generation = Generation("deaf", Asked((5,), 50), OutputText(Characters(), ()))
    answer = requests.Answer(generation, Shape(generation, NAME, chat=False), 0.05)
    generation.push(7)
    sent: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await anyio.sleep_forever()

    async def receive() -> Any:
        await anyio.sleep_forever()

    with anyio.fail_after(5):
        await answer.stream(receive, send, include_usage=False)
    assert sent == ["http.response.start", "http.response.body"]


async def test_a_long_prompt_is_read_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making tokens of many kilobytes would hold up every stream."""
    threads: list[str] = []
    encode = Characters.encode

    def watched(self: Characters, text: str) -> list[int]:
        threads.append(threading.current_thread().name)
        return encode(self, text)

    monkeypatch.setattr(Characters, "encode", watched)
    async with running(HashModel(context=1024)) as server:
        assert (await refused(server, post(GOOD | {"prompt": "x" * 9000})))[0] == 400
        assert split(await raw(server, post(GOOD)))[0] == 200
    assert ["MainThread" in name for name in threads] == [False, True]


async def test_missing_and_nested_fields_are_named() -> None:
    """A required field that is missing and a field of a message are named with their path."""
    nested = CHAT | {"messages": [{"role": "user", "content": "hi", "name": "me"}]}
    async with running() as server:
        status, error = await refused(server, post({"model": NAME}))
        assert (status, error["param"]) == (400, "prompt")
        status, error = await refused(server, post(nested, "/v1/chat/completions"))
        assert (status, error["param"]) == (400, "messages[0].name")


@pytest.mark.parametrize("path", ["/page", "/health/"])
async def test_nothing_redirects_to_where_the_client_says_it_is(path: str) -> None:
    """A path with a slash too many or too few is 404, and the Host header is not repeated."""
    request = f"GET {path} HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n".encode()
    async with running() as server:
        answer = await raw(server, request)
    assert split(answer)[0] == 404
    assert b"evil" not in answer


def test_an_address_in_use_is_named() -> None:
    """The error says which host and port, and which options change them."""
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port} .--host, --port.: Address already in use"):
            listen("127.0.0.1", port)
