"""The engine loop under everything at once: faults, cancels, greedy and sampled requests, without HTTP around it."""

from __future__ import annotations

import asyncio
import os
import random

import anyio
import pytest

from async_orch import open_backend
from async_orch.testing import Fault, FaultPlan, leak_check
from examples.serve.app import Settings, serving
from examples.serve.errors import ApiError
from examples.serve.generation import Asked, Generation, Sampling
from examples.serve.text import OutputText
from tests.serve.driving import until
from tests.serve.hash_model import Characters, HashModel, answer, text_of

SEEDS = range(300 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 8)


def plan_of(chance: random.Random) -> FaultPlan:
    """A few faults somewhere in the run: steps that fail in build's copy or in their kernel, and a lost device."""
    faults = [
        Fault(action="raise", operation=chance.choice(["launch", "copy"]), nth=chance.randint(3, 120)) for _ in range(4)
    ]
    if chance.random() < 0.5:
        faults.append(Fault(action="lose_device", operation="launch", nth=chance.randint(5, 100)))
    return FaultPlan(*faults, seed=chance.randint(0, 999))


def print_tasks() -> None:
    """Where everything waits, in the output of a test that is about to run out of time."""
    for task in asyncio.all_tasks():
        task.print_stack()


@pytest.mark.parametrize("seed", SEEDS)
async def test_whoever_is_not_hit_gets_exactly_its_tokens(seed: int) -> None:
    """Who ends well has the tokens of offline decoding, and nothing is left, whatever went wrong beside it."""
    chance = random.Random(seed)
    model = HashModel(batch=chance.randint(1, 5), kv_blocks=chance.randint(16, 40), prefill_tokens=32, cost_ns=50_000)
    mode = chance.choice(["pipelined", "pipelined", "ring"])
    backend = open_backend("sim:instant", faults=plan_of(chance))
    ended = dict.fromkeys(("stop", "length", "abort", "error"), 0)

    codes: set[str | None] = set()
    one_more = asyncio.Condition()

    async def one(number: int) -> None:
        before = number - chance.randint(2, 12)
        async with one_more:
            await one_more.wait_for(lambda: sum(ended.values()) >= before)
        if number % 2:
            # The others come as they come, and are refused while the device is opened again.
            await until(lambda: engine.state == "serving")
        prompt, most = f"{number}" * chance.randint(1, 60), chance.randint(1, 40)
        sampling = Sampling(chance.choice([0.0, 0.7]), 0.9, number)
        asked = Asked(tuple(Characters().encode(prompt)), most, sampling)
        generation = Generation(f"r{number}", asked, OutputText(Characters(), ()))
        try:
            engine.submit(generation)
            leaves = chance.randint(1, most) if chance.random() < 0.2 else None
            text = ""
            while piece := await generation.more():
                text += piece
                if leaves is not None and len(generation.tokens) >= leaves:
                    engine.cancel(generation)
            if generation.ended in ("stop", "length"):
                assert generation.tokens == answer(prompt, most, sampling.sampler())
                assert text == text_of(generation.tokens)
        except ApiError as error:
            codes.add(error.code)
        async with one_more:
            ended[generation.ended or "error"] += 1
            one_more.notify_all()

    try:
        asyncio.get_running_loop().call_later(25, print_tasks)
        with leak_check(), anyio.fail_after(30):
            async with serving(model, Characters(), backend, Settings(name="x", mode=mode, waiting_room=99)) as opened:
                engine = opened.engine
                async with asyncio.TaskGroup() as tasks:
                    for number in range(30):
                        tasks.create_task(one(number))
                await until(lambda: not engine.busy and not engine.scheduler.blocks.waiting)
                assert engine.scheduler.blocks.available == engine.scheduler.blocks.total
                assert sorted(engine.scheduler._rows) == list(range(model.limits.batch))
    finally:
        backend.close()
    assert sum(ended.values()) == 30
    assert codes <= {"step_failed", "device_lost"}
    assert ended["stop"] + ended["length"] >= 1
