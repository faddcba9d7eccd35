"""The two endpoints that generate: read, check, hand to the engine, answer whole or as a stream, notice who leaves."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from typing import Any

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from examples.serve.answers import DONE, STREAM_HEADERS, Shape, encode, event
from examples.serve.engine import Engine
from examples.serve.errors import ApiError, unavailable
from examples.serve.front import error_response
from examples.serve.generation import Generation
from examples.serve.observed import Observed
from examples.serve.schema import ChatRequest, CompletionRequest, asked_for, decode
from examples.serve.text import Codec, OutputText

__all__ = ["Generate", "Service"]

CLIENT_GONE = 499
"""In the access log: the client left before it had an answer. nginx's number; no client ever sees it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """What the endpoints share.

    ``body_nbytes`` bounds a request's body and ``body_s`` the time it may take to arrive; ``request_s`` bounds a
    request as a whole, waiting included.
    """

    engine: Engine
    codec: Codec
    observed: Observed
    model: str
    body_nbytes: int = 1 << 20
    body_s: float = 10.0
    request_s: float = 300.0


LARGE_BODY_NBYTES = 8192
"""Above it the prompt is made into tokens on a thread: the loop has streams to serve."""

WRITE_GRACE_S = 5.0
"""How long after its time limit a stream may still be written to a client that does not read."""


class Generate:
    """``POST /v1/completions`` or ``POST /v1/chat/completions``, as an ASGI application."""

    def __init__(self, service: Service, kind: type[CompletionRequest | ChatRequest]) -> None:
        self._service = service
        self._kind = kind
        self._chat = kind is ChatRequest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._body(scope, receive)
            request = decode(body, self._kind)
            generation = await self._take(scope, request, off_loop=len(body) > LARGE_BODY_NBYTES)
        except ApiError as error:
            await error_response(error)(scope, receive, send)
            return
        except ClientDisconnect:
            scope["state"]["log"]["status"] = CLIENT_GONE
            return
        include_usage = bool(request.stream_options and request.stream_options.include_usage)
        try:
            answer = Answer(
                generation, Shape(generation, self._service.model, chat=self._chat), self._service.request_s
            )
            if request.stream:
                await answer.stream(receive, send, include_usage=include_usage)
            else:
                await answer.whole(scope, receive, send)
        finally:
            self._service.engine.cancel(generation)
            self._service.observed.ended(generation)
            self._note(scope["state"]["log"], generation)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        service, request, body = self._service, Request(scope, receive), bytearray()
        declared = request.headers.get("content-length", "0")
        try:
            async with asyncio.timeout(service.body_s):
                async for part in request.stream():
                    body += part
                    if len(body) > service.body_nbytes or int(declared) > service.body_nbytes:
                        raise ApiError(
                            413, f"the body is larger than {service.body_nbytes} bytes", code="body_too_large"
                        )
        except TimeoutError:
            text = f"the body did not arrive within {service.body_s:g} s"
            raise ApiError(408, text, code="request_timeout") from None
        return bytes(body)

    async def _take(self, scope: Scope, request: CompletionRequest | ChatRequest, *, off_loop: bool) -> Generation:
        service = self._service
        if request.model != service.model:
            raise ApiError(
                404, f"the model {request.model[:100]!r} does not exist; this server has {service.model!r}",
                code="model_not_found", param="model",
            )  # fmt: skip
        scheduler, state = service.engine.scheduler, scope["state"]
        ask = functools.partial(
            asked_for, request, service.codec, scheduler.limits, scheduler.blocks.total, chat=self._chat
        )
        asked = await anyio.to_thread.run_sync(ask) if off_loop else ask()
        text = OutputText(service.codec, asked.stop)
        generation = Generation(state["request"], asked, text, trace=state["trace"])
        service.engine.submit(generation)
        return generation

    @staticmethod
    def _note(line: dict[str, Any], generation: Generation) -> None:
        line["prompt_tokens"] = len(generation.asked.prompt)
        line["completion_tokens"] = len(generation.tokens)
        line["finish_reason"] = generation.ended
        if generation.first_token_s is not None:
            line["first_token_seconds"] = generation.first_token_s - generation.arrived_s
        if generation.ended == "abort":
            line.setdefault("status", CLIENT_GONE)


class Answer:
    """A generation on its way to its client."""

    def __init__(self, generation: Generation, shape: Shape, limit_s: float) -> None:
        self._generation = generation
        self._shape = shape
        self._limit_s = limit_s
        self._until = asyncio.get_running_loop().time() + limit_s

    async def whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything in one piece; nothing if the client leaves before."""
        response: Response | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            try:
                text = ""
                while piece := await self._more():
                    text += piece
                response = Response(encode(self._shape.whole(text)), media_type="application/json")
            except ApiError as error:
                response = error_response(error)
            tasks.cancel_scope.cancel()
        if response is not None:
            await response(scope, receive, send)

    async def stream(self, receive: Receive, send: Send, *, include_usage: bool) -> None:
        """Server-sent events, at most one for each token. Cut off if the client does not read them."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._until + WRITE_GRACE_S):
                await self._stream(receive, send, include_usage=include_usage)

    async def _stream(self, receive: Receive, send: Send, *, include_usage: bool) -> None:
        async def body(data: bytes, *, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_gone, receive, tasks.cancel_scope)
            try:
                while piece := await self._more():
                    await body(event(self._shape.chunk(piece, last=False)))
                await body(event(self._shape.chunk("", last=True)))
                if include_usage:
                    await body(event(self._shape.usage_chunk()))
                await body(DONE)
            except ApiError as error:
                await body(event(error.body()))
            await body(b"", more=False)
            tasks.cancel_scope.cancel()

    async def _more(self) -> str:
        """The next text; empty at the end. Raises `ApiError`."""
        try:
            async with asyncio.timeout_at(self._until):
                return await self._generation.more()
        except TimeoutError:
            text = f"the request was not done within {self._limit_s:g} s"
            raise unavailable(text, code="request_timeout", retry_after_s=10) from None


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel once the client has closed the connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
