"""A crowd on the server: every stream that stays gets exactly its tokens, and nothing is left when it has gone."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import Any

import pytest

from async_orch import OrchError, open_backend
from async_orch.testing import leak_check
from tests.bench.serve_load import faults
from tests.serve.driving import NAME, running, until
from tests.serve.hash_model import HashModel, answer, text_of
from tests.serve.load import Crowd

wanted = functools.lru_cache(lambda prompt, most: text_of(answer(prompt, most)))
PROMPTS = [(f"{i}: " + "tell me more " * (i % 11), 4 + 4 * (i % 8)) for i in range(50)]


@pytest.mark.parametrize(
    ("backend", "mode", "cost_ns"),
    [("sim:instant", "pipelined", 500_000), ("host", "ring", None)],
)
async def test_64_streams_a_quarter_of_which_leave(backend: str, mode: str, cost_ns: int | None) -> None:
    """A hundred answers with nonsense in between: the tokens of greedy decoding; no slot, block, task or file left."""
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    model = HashModel(batch=32, kv_blocks=200, prefill_tokens=256, cost_ns=cost_ns)
    with leak_check() as leaks:
        async with running(model, backend, mode=mode) as server:
            leaks.watch(server.opened.orchestrator)
            tasks = asyncio.all_tasks()
            crowd = Crowd(server.port, NAME, wanted, PROMPTS, streams=64)
            await crowd.run(lambda: crowd.survived > 100 and crowd.left > 10 and crowd.nonsense > 0)
            await server.until_idle()
            scheduler = server.engine.scheduler
            assert scheduler.blocks.available == scheduler.blocks.total
            assert not scheduler.running
            state = server.server.server_state  # connections that were closed just now are still on their way out
            await until(lambda: not (state.tasks or state.connections or asyncio.all_tasks() - tasks))
            statistics = server.opened.orchestrator.statistics()
    assert crowd.wrong == []
    assert (statistics.failed, statistics.step_path_allocs, statistics.records_dropped) == (0, 0, 0)
    assert not server.reported


async def test_a_real_driver_gives_the_same_tokens() -> None:
    """OpenCL on the CPU: the same crowd, the same answers, nothing left."""
    pytest.importorskip("pyopencl")
    opencl = pytest.importorskip("tests.serve.hash_opencl")
    try:
        backend = open_backend("opencl")
    except OrchError as exc:
        pytest.skip(str(exc))
    try:
        model = opencl.HashModelOpenCL(batch=16, kv_blocks=100, prefill_tokens=256)
        async with running(model, backend) as server:
            crowd = Crowd(server.port, NAME, wanted, PROMPTS, streams=16)
            await crowd.run(lambda: crowd.survived > 20)
            await server.until_idle()
            assert server.opened.orchestrator.statistics().failed == 0
    finally:
        backend.close()
    assert crowd.wrong == []


CLEAN: dict[str, Any] = {
    "mode": "pipelined", "survived": 9, "wrong": 0, "blocks": 0, "slots": 0, "tasks": 0, "fds": -1, "rss MiB": 4.0,
    "failed": 0, "allocs": 0, "status": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("survived", 0), ("wrong", 1), ("blocks", 1), ("slots", 1), ("tasks", 1), ("fds", 1), ("rss MiB", 100.0),
        ("failed", 1), ("allocs", 1), ("status", 1),
    ],
)  # fmt: skip
def test_the_load_bench_fails_by_whatever_goes_wrong(name: str, value: float) -> None:
    """Each figure that must not be is named; steps of mode naive allocate, which is what the mode is for."""
    assert faults(CLEAN) == []
    assert faults(CLEAN | {"mode": "naive", "allocs": 7}) == []
    [fault] = faults(CLEAN | {name: value})
    assert fault.startswith(f"pipelined: {name}=")
