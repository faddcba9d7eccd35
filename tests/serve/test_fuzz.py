"""Requests generated from the server's own description: whatever comes, no 5xx but 503, and always the same shape."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode

from tests.serve.process import NAME, started

FULL = os.environ.get("ASYNC_ORCH_PROOFS") == "full"
SLOW = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example)
EXAMPLES = 600 if FULL else 25

BEYOND_THE_SCHEMA = (
    "does not exist; this server has",
    "the prompt is empty",
    "stream_options needs stream=true",
    "got `float` - at",  # to a schema 1.0 is a whole number
    "surrogate",
    "max_completion_tokens",
    "context",
)
"""In the errors for bodies that fit the schema."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with started() as (_, address):
        yield address


def check(response: Any) -> None:
    """An answer, or an error in OpenAI's shape."""
    assert response.status_code < 500 or response.status_code == 503, response.text
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "Traceback" not in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("reach", [False, True], ids=["as they are", "made to reach the model"])
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_generated_bodies_are_answered_or_refused(url: str, path: str, mode: GenerationMode, reach: bool) -> None:
    """What fits the schema is refused only for what it cannot say, and the model answers some of it.

    What does not fit is refused, unless its way to the model mended it.
    """
    statuses = collections.Counter[int]()
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW, database=None)
    def each(case: Any) -> None:
        if reach and isinstance(case.body, dict):
            case.body["model"] = NAME
            case.body.pop("max_completion_tokens", None)
            if isinstance(case.body.get("max_tokens"), int | None):
                case.body["max_tokens"] = 3
        response = case.call(base_url=url, timeout=30)
        check(response)
        statuses[response.status_code] += 1
        if mode is GenerationMode.POSITIVE and response.status_code == 400:
            assert any(words in response.text for words in BEYOND_THE_SCHEMA), response.text

    each()
    if mode is GenerationMode.POSITIVE and reach:
        assert statuses[200], statuses
    if mode is GenerationMode.NEGATIVE and not reach:
        assert not statuses[200], statuses


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/{name}", "/health", "/metrics", "/openapi.json"])
def test_generated_queries_and_paths_are_answered_or_refused(url: str, path: str) -> None:
    """The endpoints that only tell something."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["GET"]

    @given(case=operation.as_strategy(), query=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
    @settings(max_examples=max(5, EXAMPLES // 8), deadline=None, suppress_health_check=SLOW, database=None)
    def each(case: Any, query: dict[str, str]) -> None:
        check(case.call(base_url=url, params=query, timeout=30))

    each()


@given(body=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=SLOW, database=None)
def test_any_bytes_as_a_body_are_refused(url: str, body: bytes) -> None:
    """No bytes whatever make the server fail."""
    check(requests.post(f"{url}/v1/completions", data=body, timeout=30))
