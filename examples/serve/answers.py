"""The JSON objects of OpenAI's API: completions, chat completions, their chunks, and the list of models."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from examples.serve.generation import Generation

__all__ = ["DONE", "STREAM_HEADERS", "Shape", "encode", "event", "model", "models"]

DONE = b"data: [DONE]\n\n"
"""The end of a stream."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""Of an answer of server-sent events; the last one tells proxies not to gather it."""

_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Compact JSON."""
    return _encoder.encode(value)


def event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def models(name: str, created: int, context: int) -> dict[str, Any]:
    """Answer of ``GET /v1/models``."""
    return {"object": "list", "data": [model(name, created, context)]}


def model(name: str, created: int, context: int) -> dict[str, Any]:
    """Answer of ``GET /v1/models/{name}``; ``max_model_len`` is where vLLM tells the context."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "async_orch",
        "max_model_len": context,
    }


class Shape:
    """The answers to one request, as text completion or as chat."""

    def __init__(self, generation: Generation, model: str, *, chat: bool) -> None:
        self._generation = generation
        self._chat = chat
        self._head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + generation.name,
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._begun = False

    def usage(self) -> dict[str, int]:
        """Tokens that went in and came out."""
        prompt, completion = len(self._generation.asked.prompt), len(self._generation.tokens)
        return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}

    def whole(self, text: str) -> dict[str, Any]:
        """The answer in one piece."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._generation.ended}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        return self._head | {"choices": [choice], "usage": self.usage()}

    def chunk(self, text: str, *, last: bool) -> dict[str, Any]:
        """A part of a streamed answer; the last one says why it ended."""
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": self._generation.ended if last else None,
        }
        if self._chat:
            delta: dict[str, str] = {} if self._begun else {"role": "assistant"}
            choice["delta"] = delta | ({"content": text} if text or not last else {})
            self._begun = True
        else:
            choice["text"] = text
        return self._chunk_head() | {"choices": [choice]}

    def usage_chunk(self) -> dict[str, Any]:
        """The chunk after the last one, for clients that asked for it."""
        return self._chunk_head() | {"choices": [], "usage": self.usage()}

    def _chunk_head(self) -> dict[str, Any]:
        return self._head | ({"object": "chat.completion.chunk"} if self._chat else {})
