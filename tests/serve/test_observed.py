"""What the server tells of itself: vLLM's metrics, request ids and traces in the records of steps."""

from __future__ import annotations

import json

from prometheus_client.parser import text_string_to_metric_families

from async_orch.logs import StepRecord
from tests.serve.driving import NAME, client, raw, running
from tests.serve.hash_model import HashModel
from tests.serve.test_bad_input import GOOD, post, split

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
VLLM = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens",
    "vllm:generation_tokens", "vllm:request_success", "vllm:time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds", "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
}  # fmt: skip


async def test_metrics_have_vllms_names_and_count_what_happened() -> None:
    """Tokens and requests as asked for, the orchestrator's own metrics beside them."""
    async with running() as server, client(server) as api:
        for prompt in ("wait", "hello"):
            await api.completions.create(model=NAME, prompt=prompt, max_tokens=10, temperature=0)
        await server.opened.orchestrator.drain()
        response = await raw(server, b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    families = {f.name: f for f in text_string_to_metric_families(split(response)[2].decode())}
    assert set(families) >= VLLM
    assert "async_orch_steps" in families

    def value(name: str, **labels: str) -> float:
        family = next(f for f in families.values() if name.startswith(f.name))
        wanted = {"model_name": NAME} | labels
        return next(s.value for s in family.samples if s.name == name and wanted.items() <= s.labels.items())

    assert value("vllm:generation_tokens_total") == 20
    assert value("vllm:prompt_tokens_total") == len("wait") + len("hello")
    assert value("vllm:request_success_total", finished_reason="length") == 2
    assert value("vllm:inter_token_latency_seconds_count") == 18
    assert value("vllm:e2e_request_latency_seconds_count") == 2
    assert value("vllm:num_requests_running") == 0
    assert value("vllm:kv_cache_usage_perc") == 0


async def test_requests_and_their_traces_are_in_the_records_of_their_steps() -> None:
    """One step for each token names the request; the access log has the same id, and the client gets it back."""
    records: list[StepRecord] = []
    async with running(step_log=records.append) as server:
        request = post(GOOD | {"prompt": "wait"}, x_request_id="my-id.7", traceparent=TRACE, tracestate="a=1,b=2")
        status, headers, _ = split(await raw(server, request))
        strange = split(
            await raw(server, post(GOOD, x_request_id="no good/", traceparent="nonsense", tracestate="a=1"))
        )
        await server.opened.orchestrator.drain()
        lines = server.access
    assert (status, headers["x-request-id"]) == (200, "my-id.7")
    assert strange[1]["x-request-id"] != "no good/"
    mine = [r for r in records if r.attrs and "my-id.7" in r.attrs["requests"]]
    assert len(mine) == 3
    assert all(r.attrs and r.attrs["traceparent"] == [TRACE] for r in mine)
    assert all(r.attrs and r.attrs["tracestate"] == ["a=1,b=2"] for r in mine)
    assert not any(r.attrs and "nonsense" in json.dumps(r.attrs) for r in records)
    line = lines[0]
    assert (line["request"], line["traceparent"], line["status"]) == ("my-id.7", TRACE, 200)
    assert (line["prompt_tokens"], line["completion_tokens"], line["finish_reason"]) == (4, 3, "length")
    assert 0 < line["first_token_seconds"] <= line["seconds"]
    assert "traceparent" not in lines[1]
    assert not any(r.attrs and "tracestate" in r.attrs for r in records if r not in mine)


async def test_nothing_is_allocated_on_the_step_path() -> None:
    """However requests come and go, slots, cache and staging are those of the start."""
    async with running(HashModel(batch=2), "host") as server, client(server) as api:
        for i in range(6):
            await api.completions.create(model=NAME, prompt=f"w{i}" * (1 + i), max_tokens=8, temperature=0)
        statistics = server.opened.orchestrator.statistics()
    assert (statistics.step_path_allocs, statistics.failed, statistics.slots_quarantined) == (0, 0, 0)
