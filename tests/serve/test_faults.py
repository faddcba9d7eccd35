"""Steps that fail and devices that are lost while streams run: who is hit, who is not, and what comes after."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from async_orch import open_backend
from async_orch.logs import StepRecord
from async_orch.testing import Fault, FaultPlan, leak_check
from examples.qwen3.sampling import TopP
from tests.serve.driving import NAME, Running, client, running, until
from tests.serve.hash_model import FAILS, HashModel, answer, text_of

SLOW_NS = 1_000_000
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 0}


async def streamed(api: openai.AsyncOpenAI, prompt: str, max_tokens: int, **more: Any) -> str:
    """The text of a stream; raises what the stream ends with."""
    asked: Any = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True} | more
    return "".join([chunk.choices[0].text async for chunk in await api.completions.create(**asked)])


async def whole(api: openai.AsyncOpenAI, prompt: str, max_tokens: int) -> str:
    """The text of an answer in one piece."""
    asked: Any = {"model": NAME, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    text: str = (await api.completions.create(**asked)).choices[0].text
    return text


async def until_running(server: Running, count: int) -> None:
    """Wait until so many streams have a token."""
    await until(lambda: sum(bool(s.generation.tokens) for s in server.engine.scheduler.running) >= count)


@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "sampled"])
async def test_a_failed_step_hits_only_the_requests_that_it_carried(sampled: bool) -> None:
    """The stream beside it loses nothing, not even when the next step was built on the failed one and fell with it."""
    more = SAMPLED if sampled else {}
    sampler = TopP(**SAMPLED) if sampled else None
    with leak_check():
        async with running(HashModel(cost_ns=SLOW_NS)) as server, client(server) as api:
            beside = asyncio.create_task(streamed(api, "hello", 60, **more))
            await until_running(server, 1)
            for _ in range(3):
                with pytest.raises(openai.APIError) as failed:
                    await streamed(api, f"{FAILS}bad", 20, **more)
                assert failed.value.code == "step_failed"
            assert await beside == text_of(answer("hello", 60, sampler))
            assert await streamed(api, "again", 20, **more) == text_of(answer("again", 20, sampler))
            await server.until_idle()
            assert server.engine.steps_failed == 3


async def test_a_failure_before_the_first_token_is_a_503() -> None:
    """With Retry-After, and a text that names no insides."""
    async with running() as server, client(server) as api:
        with pytest.raises(openai.InternalServerError) as failed:
            await whole(api, f"{FAILS}bad", 20)
        assert failed.value.status_code == 503
        assert failed.value.response.headers["retry-after"]
        assert "Arithmetic" not in failed.value.message


@pytest.mark.parametrize("nth", [3, 9, 16])
async def test_a_fault_of_the_device_during_load_hits_what_its_step_carried(nth: int) -> None:
    """The requests that get 503 are those in the failed step's record; all others get their own answer."""
    plan = FaultPlan(
        Fault(action="raise", operation="launch", stream="compute", nth=nth),
        Fault(action="raise", operation="copy", stream="copy", nth=nth + 12),
    )
    backend = open_backend("sim:instant", faults=plan)
    records: list[StepRecord] = []
    try:
        async with running(HashModel(batch=3, cost_ns=SLOW_NS), backend, step_log=records.append) as server:
            async with client(server) as api:
                asked = [(f"prompt {i} " * 3, 10 + i) for i in range(9)]
                results = await asyncio.gather(*(streamed(api, *each) for each in asked), return_exceptions=True)
            await server.until_idle()
            await server.opened.orchestrator.drain()
            lines = server.access
    finally:
        backend.close()
    carried = {name for r in records if r.event == "step.failed" for name in (r.attrs or {})["requests"]}
    assert carried
    assert {line["request"] for line in lines if line["finish_reason"] == "error"} <= carried
    for each, result in zip(asked, results, strict=True):
        if isinstance(result, str):
            assert result == text_of(answer(*each))
        else:
            assert isinstance(result, openai.APIError)
            assert result.code == "step_failed"
    assert sum(isinstance(result, str) for result in results) >= 3


async def test_after_a_lost_device_the_server_comes_back() -> None:
    """What ran gets 503 or an error in its stream, who waited is served after the reopening, and nothing is left."""
    plan = FaultPlan(Fault(action="lose_device", operation="launch", stream="compute", nth=80))
    backend = open_backend("sim:instant", faults=plan)
    model = HashModel(batch=2, cost_ns=SLOW_NS)
    try:
        with leak_check():
            async with running(model, backend) as server, client(server) as api:
                ran = [asyncio.create_task(streamed(api, prompt, 200)) for prompt in ("leaver", "wait")]
                await until_running(server, 2)
                waits = asyncio.create_task(whole(api, "hello", 40))
                for task in ran:
                    with pytest.raises(openai.APIError) as lost:
                        await task
                    assert lost.value.code == "device_lost"
                assert await waits == text_of(answer("hello", 40))
                assert await streamed(api, "w2", 40) == text_of(answer("w2", 40))
                await server.until_idle()
        assert model.opened == 2
        assert [event for event, _ in server.reported] == ["device_lost", "device_reopened"]
    finally:
        backend.close()


async def test_a_device_that_cannot_be_opened_again_is_503_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health says so, the waiting are told, and the operator hears of it once."""
    plan = FaultPlan(Fault(action="lose_device", operation="launch", stream="compute", nth=5))
    backend = open_backend("sim:instant", faults=plan)
    monkeypatch.setattr(backend, "reset", lambda: False)
    try:
        async with running(HashModel(batch=1, cost_ns=SLOW_NS), backend) as server, client(server) as api:
            tasks = [asyncio.create_task(whole(api, f"w{i}", 40)) for i in range(3)]
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, openai.InternalServerError)
                assert result.status_code == 503
            with pytest.raises(openai.InternalServerError, match="cannot be opened again"):
                await whole(api, "late", 5)
            assert server.engine.state == "failed"
            assert [event for event, _ in server.reported] == ["device_lost", "device_failed"]
    finally:
        backend.close()


async def test_requests_during_a_reopening_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with a code and Retry-After, from health too; then it works."""
    plan = FaultPlan(Fault(action="lose_device", operation="launch", stream="compute", nth=3))
    backend = open_backend("sim:instant", faults=plan)
    try:
        async with running(HashModel(cost_ns=SLOW_NS), backend) as server, client(server) as api:
            reopen, may = server.opened.orchestrator.reopen, asyncio.Event()

            async def held() -> Any:
                await may.wait()
                return await reopen()

            monkeypatch.setattr(server.opened.orchestrator, "reopen", held)
            with pytest.raises(openai.APIError):
                await streamed(api, "hello", 40)
            with pytest.raises(openai.InternalServerError) as told:
                await whole(api, "hello", 5)
            assert (told.value.status_code, told.value.code) == (503, "device_lost")
            assert told.value.response.headers["retry-after"]
            may.set()
            await until(lambda: server.engine.state == "serving")
            assert await whole(api, "hello", 5) == text_of(answer("hello", 5))
    finally:
        backend.close()
