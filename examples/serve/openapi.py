"""The server's own description, for people and for tools that generate requests."""

from __future__ import annotations

from typing import Any

from examples.serve.schema import json_schemas

__all__ = ["openapi"]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_REFUSALS = {
    "400": "the request is wrong",
    "404": "no such model",
    "408": "the body took too long to arrive",
    "413": "the body is too large",
    "429": "too many requests are waiting; see Retry-After",
    "503": "not now: shutting down, the device was lost, or time ran out; see Retry-After",
}


def openapi(model: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    (completion, chat), components = json_schemas()
    for body in ("CompletionRequest", "ChatRequest"):
        # What is sent most should be found most: a tool that generates requests then gets beyond the first check.
        components[body]["properties"]["model"]["examples"] = [model]
    path = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "async_orch examples.serve", "version": "1"},
        "paths": {
            "/v1/models": {"get": _get("The one model that is served")},
            "/v1/models/{name}": {"get": _get("That model", "404") | {"parameters": [path]}},
            "/v1/completions": {"post": _post("Continue a text", completion)},
            "/v1/chat/completions": {"post": _post("Answer a conversation", chat)},
            "/health": {"get": _get("Whether requests are served", "503")},
            "/metrics": {"get": _get("Prometheus metrics", content="text/plain")},
            "/openapi.json": {"get": _get("This document")},
        },
        "components": {"schemas": components | {"Error": _ERROR}},
    }


def _refusals(*codes: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {code: {"description": _REFUSALS[code], "content": content} for code in codes}


def _get(summary: str, *refusals: str, content: str = "application/json") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"} if content == "text/plain" else {"type": "object"}
    answer = {"200": {"description": summary, "content": {content: {"schema": schema}}}}
    return {"summary": summary, "responses": answer | _refusals(*refusals)}


def _post(summary: str, body: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": {"type": "string"}}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": summary, "content": content}} | _refusals(*_REFUSALS),
    }
