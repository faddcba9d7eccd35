"""OpenAI's own client against the server: whole answers, streams, errors, cancels."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from async_orch.logs import StepRecord
from async_orch.testing import leak_check
from examples.qwen3.sampling import TopP
from tests.serve.driving import NAME, client, running, until
from tests.serve.hash_model import HashModel, answer, text_of


async def completion(api: openai.AsyncOpenAI, prompt: str, **more: Any) -> Any:
    """A greedy text completion."""
    asked: Any = {"model": NAME, "prompt": prompt, "temperature": 0} | more
    return await api.completions.create(**asked)


async def streamed(api: openai.AsyncOpenAI, prompt: str, **more: Any) -> tuple[str, str | None]:
    """Text and finish reason of a streamed completion."""
    text, reason = "", None
    async for chunk in await completion(api, prompt, stream=True, **more):
        text += chunk.choices[0].text
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


@pytest.mark.parametrize(
    ("backend", "mode"),
    [("host", "pipelined"), ("host", "naive"), ("sim:instant", "ring"), ("sim:adversary", "pipelined")],
)
async def test_whole_and_streamed_answers_are_what_the_model_says(backend: str, mode: str) -> None:
    """Text, finish reason and usage, for prompts shorter and longer than a prefill step, in every mode."""
    async with running(backend=backend, mode=mode) as server, client(server) as api:
        most = 5 if backend == "sim:adversary" else 20  # each copy takes longer there than a turn of the ring
        for prompt in ("a", "Once upon a time", "x" * 64, "long " * 30):
            wanted = answer(prompt, most)
            whole = await completion(api, prompt, max_tokens=most)
            assert whole.choices[0].text == text_of(wanted)
            assert whole.choices[0].finish_reason == ("stop" if wanted[-1] == 0 else "length")
            assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (len(prompt), len(wanted))
            assert await streamed(api, prompt, max_tokens=most) == (text_of(wanted), whole.choices[0].finish_reason)


async def test_concurrent_requests_do_not_touch_each_other() -> None:
    """More requests than rows, of all lengths, join and leave; each gets its own answer, and nothing is left."""
    prompts = [f"{i} is a number, " * (1 + i % 7) for i in range(40)]
    with leak_check():
        async with running(HashModel(batch=6, kv_blocks=40), "host") as server, client(server) as api:
            texts = await asyncio.gather(*(streamed(api, p, max_tokens=3 + i) for i, p in enumerate(prompts)))
            await server.until_idle()
            assert server.opened.orchestrator.statistics().failed == 0
    assert [text for text, _ in texts] == [text_of(answer(p, 3 + i)) for i, p in enumerate(prompts)]


async def test_sampled_answers_repeat_by_seed_whatever_runs_beside_them() -> None:
    """Temperature, top_p and seed: chosen on the host and fed late, with greedy neighbours in the same steps."""
    asked = {"temperature": 0.9, "top_p": 0.8, "seed": 7, "max_tokens": 24}
    wanted = text_of(answer("seeded", 24, TopP(temperature=0.9, top_p=0.8, seed=7)))
    async with running(backend="host") as server, client(server) as api:
        results = await asyncio.gather(
            *(streamed(api, "seeded", **asked) for _ in range(4)),
            *(streamed(api, f"g{i}", max_tokens=30) for i in range(4)),
        )
        other = await streamed(api, "seeded", **(asked | {"seed": 8}))
    assert [text for text, _ in results[:4]] == [wanted] * 4
    assert [text for text, _ in results[4:]] == [text_of(answer(f"g{i}", 30)) for i in range(4)]
    assert other[0] != wanted


async def test_chat_answers_and_their_stream() -> None:
    """The same text in the shape of a conversation; the first chunk names the role, the last the usage."""
    async with running() as server, client(server) as api:
        messages: Any = [{"role": "system", "content": "be"}, {"role": "user", "content": "brief"}]
        asked: Any = {"model": NAME, "messages": messages, "temperature": 0, "max_completion_tokens": 12}
        wanted = text_of(answer("be brief", 12))  # the newline between is a blank to this tokenizer
        whole = await api.chat.completions.create(**asked)
        assert whole.choices[0].message.content == wanted
        assert whole.choices[0].message.role == "assistant"
        stream: Any = await api.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == wanted
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage


async def test_a_stop_string_ends_the_text_before_it() -> None:
    """Also one that arrives in pieces; what might have been its beginning is given out once it is not."""
    text = text_of(answer("wait", 40))
    async with running() as server, client(server) as api:
        for stop in (text[5:8], [text[30:32], text[10:14]], text[3]):
            first = min(text.find(each) for each in ([stop] if isinstance(stop, str) else stop))
            assert await streamed(api, "wait", max_tokens=40, stop=stop) == (text[:first], "stop")
        never = text[5:8] + "\x01"
        assert await streamed(api, "wait", max_tokens=20, stop=never) == (text[:20], "length")


async def test_models_and_health() -> None:
    """The model is listed under its name, and others do not exist."""
    async with running() as server, client(server) as api:
        assert [model.id async for model in api.models.list()] == [NAME]
        assert (await api.models.retrieve(NAME)).id == NAME
        with pytest.raises(openai.NotFoundError, match="model 'hash' only"):
            await api.models.retrieve("gpt-4")


async def test_errors_come_as_the_clients_own_exceptions() -> None:
    """Each wrong request gets its 4xx, with the field and a code, and the next one works."""
    async with running() as server, client(server) as api:
        with pytest.raises(openai.NotFoundError) as unknown:
            await completion(api, "x", model="gpt-4")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as long:
            await completion(api, "x" * 300)
        assert (long.value.code, long.value.param) == ("context_length_exceeded", "prompt")
        with pytest.raises(openai.BadRequestError, match="does not support it") as field:
            await completion(api, "x", logit_bias={"1": 2})
        assert (field.value.code, field.value.param) == ("unsupported_parameter", "logit_bias")
        with pytest.raises(openai.BadRequestError) as negative:
            await completion(api, "x", temperature=-1)
        assert negative.value.param == "temperature"
        assert (await completion(api, "x", max_tokens=2)).usage.completion_tokens == 2


async def test_a_full_waiting_room_says_when_to_come_back() -> None:
    """429 with Retry-After; nobody who waits is touched."""
    model = HashModel(batch=1, cost_ns=2_000_000)
    async with running(model, "sim:instant", waiting_room=2) as server, client(server) as api:
        tasks = [asyncio.create_task(streamed(api, f"w{i}", max_tokens=30)) for i in range(3)]
        await until(lambda: len(server.engine.scheduler.waiting) == 2)
        with pytest.raises(openai.RateLimitError) as full:
            await completion(api, "one too many", max_tokens=2)
        assert int(full.value.response.headers["retry-after"]) >= 1
        texts = [await task for task in tasks]
    assert [text for text, _ in texts] == [text_of(answer(f"w{i}", 30)) for i in range(3)]


async def test_a_small_waiting_room_refuses_nobody_while_rows_are_free() -> None:
    """Ten requests at once, sixteen rows, room for one to wait: all ten are served."""
    model = HashModel(batch=16, cost_ns=2_000_000)
    async with running(model, "sim:instant", waiting_room=1) as server, client(server) as api:
        texts = await asyncio.gather(*(streamed(api, f"w{i}", max_tokens=8) for i in range(10)))
    assert [text for text, _ in texts] == [text_of(answer(f"w{i}", 8)) for i in range(10)]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_in_no_further_step(stream: bool) -> None:
    """Beyond those in flight at most one, submitted while the news is on its way; the others never notice."""
    records: list[StepRecord] = []
    model = HashModel(batch=2, context=256, cost_ns=50_000_000)  # longer than any news takes
    with leak_check():
        async with running(model, "sim:instant", step_log=records.append) as server, client(server) as api:
            orchestrator = server.opened.orchestrator
            leaving = asyncio.create_task(completion(api, "leaver", max_tokens=250, stream=stream))
            staying = asyncio.create_task(streamed(api, "stayer", max_tokens=12))
            if stream:
                stop = await leaving
                async for _ in stop:
                    break
                submitted = orchestrator.statistics().submitted
                await stop.close()
            else:
                await until(lambda: server.opened.observed.tokens_total >= 4)
                submitted = orchestrator.statistics().submitted
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
            assert (await staying)[0] == text_of(answer("stayer", 12))
            await server.until_idle()
            await orchestrator.drain()
            lines = {line["request"]: line for line in server.access}
    gone = next(line for line in lines.values() if line["finish_reason"] == "abort")
    assert len(answer("leaver", 250)) > 200, "it left in the middle"
    later = [record for record in records if record.seq >= submitted]
    assert len(later) > 2
    assert sum(gone["request"] in (record.attrs or {})["requests"] for record in later) <= 1
