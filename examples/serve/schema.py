"""What a client may send: types, limits and names; anything else is refused, nothing is ignored."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec

from examples.serve.errors import ApiError, bad_request
from examples.serve.generation import Asked, Sampling
from examples.serve.scheduler import Limits
from examples.serve.text import Codec

__all__ = ["ChatRequest", "CompletionRequest", "Request", "asked_for", "decode", "json_schemas"]

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default for completions."""

MAX_NAME_CHARACTERS = 64
"""Of an unknown field's name in the error that refuses it."""

MAX_STOPS = 4
MAX_STOP_CHARACTERS = 200

Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1, description="Tokens to generate at most")]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2, description="0 is greedy")]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = StopText | Annotated[list[StopText], msgspec.Meta(max_length=MAX_STOPS)] | None


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a streamed answer."""

    include_usage: bool = False


class CompletionRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /v1/completions``."""

    model: str
    prompt: str
    max_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


class ChatRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    model: str
    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


Request = CompletionRequest | ChatRequest


def decode(body: bytes, kind: type[Request]) -> Request:
    """The request in a body. Raises `ApiError` 400 that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as exc:
        text, _, place = str(exc).rpartition(" - at `$")
        if not text:
            text, place = place, ""
        place = place.removesuffix("`").removeprefix(".")
        unknown = text.startswith("Object contains unknown field `")
        if unknown or text.startswith("Object missing required field `"):
            field = _cut(text.partition("`")[2].removesuffix("`"))
            text = f"{text.partition('`')[0]}`{field}`"
            place = f"{place}.{field}" if place else field
        raise bad_request(
            f"{text}; this server does not support it" if unknown else f"{text} - at `{place}`" if place else text,
            param=place or None,
            code="unsupported_parameter" if unknown else None,
        ) from exc
    except msgspec.DecodeError as exc:
        raise bad_request(f"the body is not valid JSON: {exc}") from exc
    except UnicodeDecodeError as exc:
        raise bad_request(f"the body is not valid UTF-8 at byte {exc.start}") from exc
    except RecursionError as exc:
        raise bad_request("the body is nested too deeply") from exc


def _cut(name: str) -> str:
    """A client's name for a field, short enough to be sent back."""
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}..."


def asked_for(request: Request, codec: Codec, limits: Limits, blocks_total: int, *, chat: bool) -> Asked:
    """What is to be generated. Raises `ApiError` 400 for what cannot be, whatever else the server has to do."""
    text = conversation(request.messages, codec) if isinstance(request, ChatRequest) else request.prompt
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise bad_request("the text holds half of a surrogate pair, which is no Unicode", param=_text_field(request))
    most_tokens = _max_tokens(request)
    if len(text) > limits.context * 64:  # no token of the supported vocabularies is as long; spare the tokenizer
        raise _too_long(f"the prompt has {len(text)} characters", limits, request)
    prompt = codec.encode(text)
    if not prompt:
        raise bad_request("the prompt is empty", param=_text_field(request))
    if len(prompt) >= limits.context:
        raise _too_long(f"the prompt has {len(prompt)} tokens", limits, request)
    room = min(limits.context, blocks_total * limits.block_size) - len(prompt)
    if room < 1:
        raise _too_long(f"the prompt has {len(prompt)} tokens, the cache {blocks_total} blocks", limits, request)
    if most_tokens is None:
        most_tokens = room if chat else min(room, DEFAULT_COMPLETION_TOKENS)
    if most_tokens > room:
        raise bad_request(
            f"the prompt has {len(prompt)} tokens and {most_tokens} more are asked for; there is room for {room}",
            param=_tokens_field(request), code="context_length_exceeded",
        )  # fmt: skip
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options needs stream=true", param="stream_options")
    stop = request.stop or ()
    sampling = Sampling(
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=secrets.randbits(63) if request.seed is None else request.seed,
    )
    return Asked(tuple(prompt), most_tokens, sampling, (stop,) if isinstance(stop, str) else tuple(stop))


def conversation(messages: list[Message], codec: Codec) -> str:
    """The messages as one text: in ChatML where the vocabulary has its marks, else the contents, one a line."""
    if len(codec.encode("<|im_start|>")) != 1:
        return "\n".join(message.content for message in messages)
    turns = (f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n" for message in messages)
    return "".join(turns) + "<|im_start|>assistant\n"


def _max_tokens(request: Request) -> int | None:
    if not isinstance(request, ChatRequest):
        return request.max_tokens
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise bad_request("max_tokens and max_completion_tokens are the same; send one", param="max_tokens")
    return request.max_completion_tokens if request.max_tokens is None else request.max_tokens


def _tokens_field(request: Request) -> str:
    """Which of its two names the client used."""
    chat = isinstance(request, ChatRequest) and request.max_completion_tokens is not None
    return "max_completion_tokens" if chat else "max_tokens"


def _text_field(request: Request) -> str:
    return "messages" if isinstance(request, ChatRequest) else "prompt"


def _too_long(what: str, limits: Limits, request: Request) -> ApiError:
    return bad_request(
        f"{what}; the model's context is {limits.context} tokens", param=_text_field(request),
        code="context_length_exceeded",
    )  # fmt: skip


def json_schemas() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """References to the two bodies, and the components that they refer to, for the OpenAPI document."""
    references, components = msgspec.json.schema_components(
        [CompletionRequest, ChatRequest], ref_template="#/components/schemas/{name}"
    )
    return list(references), components
