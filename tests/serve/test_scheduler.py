"""The scheduler's decisions, one call at a time, without a device."""

from __future__ import annotations

from typing import Any, cast

import pytest

from async_orch import StepHandle
from examples.qwen3.paged_steps import FROM_DEVICE, FROM_FEED, DecodeBatch, PrefillBatch
from examples.serve.errors import ApiError, unavailable
from examples.serve.generation import Asked, Generation, Sampling
from examples.serve.scheduler import Flight, Plan, Scheduler
from examples.serve.text import OutputText
from tests.serve.hash_model import Characters, HashModel


class FakeHandle:
    """A step that has settled as the test says; ``failure`` None means that it is still on its way."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.status = "launched"

    def done(self) -> bool:
        return self.failure is not None

    def exception(self) -> Exception | None:
        return self.failure

    def cancel(self) -> bool:
        return False


def request(prompt: int, tokens: int, *, temperature: float = 0) -> Generation:
    """A request for ``tokens`` tokens after a prompt of so many."""
    asked = Asked((5,) * prompt, tokens, Sampling(temperature))
    return Generation(f"r{prompt}-{tokens}", asked, OutputText(Characters(), ()))


def scheduler(**sizes: Any) -> Scheduler:
    """A scheduler for the hash model: blocks of 16, prefill steps of 64 tokens."""
    return Scheduler(HashModel(**({"batch": 2, "context": 256} | sizes)), waiting_room=8)


def fly(made: Scheduler) -> tuple[Plan, FakeHandle]:
    """Plan the next step and put it in flight."""
    plan, handle = made.next_plan(), FakeHandle()
    assert plan is not None
    made.window.append(Flight(plan, cast("StepHandle[Any]", handle)))
    return plan, handle


def land(made: Scheduler, token: int = 7) -> Plan:
    """The oldest step gives every sequence the same token."""
    plan = made.window.popleft().plan
    made.settled(plan, [token if gives else -1 for gives in plan.gives])
    return plan


def test_admission_takes_all_blocks_and_nobody_overtakes() -> None:
    """A request waits until its whole length fits; a smaller one behind it waits too."""
    made = scheduler(batch=4, kv_blocks=6)
    large, larger, small = request(40, 9), request(50, 15), request(4, 4)
    for each in (large, larger, small):
        made.add(each)
    assert made.blocks_for(large) == 3  # 48 positions: the last token is never stored
    fly(made)
    assert [s.generation for s in made.running] == [large]
    assert list(made.waiting) == [larger, small]
    made.remove(large)
    assert made.blocks.available == 3, "the step in flight may still write to its blocks"
    assert made.next_plan() is None
    made.window[0].plan.batch.fence = None
    cast("FakeHandle", made.window[0].handle).status = "failed"
    assert made.next_plan() is not None
    assert [s.generation for s in made.running] == [larger, small]


def test_prompts_are_cut_to_the_size_of_a_prefill_step() -> None:
    """100 tokens take a step of 64 and one of 36, which has room for another prompt; only ends give tokens."""
    made = scheduler()
    made.add(request(100, 5))
    made.add(request(10, 5))
    first, _ = fly(made)
    second, _ = fly(made)
    assert isinstance(first.batch, PrefillBatch)
    assert isinstance(second.batch, PrefillBatch)
    assert [(c.start, len(c.tokens), c.last) for c in first.batch.chunks] == [(0, 64, False)]
    assert [(c.start, len(c.tokens), c.last) for c in second.batch.chunks] == [(64, 36, True), (0, 10, True)]
    assert (first.gives, second.gives) == ([False], [True, True])


def test_prompts_and_decode_take_turns() -> None:
    """A stream does not stand still while long prompts come in, nor do prompts wait for streams to end."""
    made = scheduler()
    made.add(request(4, 50))
    fly(made)
    land(made)
    made.add(request(200, 50))
    programs = []
    for _ in range(8):
        programs.append(fly(made)[0].program)
        land(made)
    assert programs == ["decode", "decode", "decode", "prefill"] * 2


def test_the_input_token_is_known_on_the_device_or_fed() -> None:
    """Known once its step has settled; before that it is left on the device, or fed if the host samples."""
    for temperature, placeholder in ((0.0, FROM_DEVICE), (1.0, FROM_FEED)):
        made = scheduler()
        made.add(request(4, 50, temperature=temperature))
        fly(made)
        plan, _ = fly(made)
        assert isinstance(plan.batch, DecodeBatch)
        assert (plan.batch.rows[0].token, plan.batch.rows[0].position, plan.fed) == (placeholder, 4, temperature > 0)
        land(made, token=9)
        land(made, token=11)
        plan, _ = fly(made)
        assert isinstance(plan.batch, DecodeBatch)
        assert (plan.batch.rows[0].token, plan.batch.rows[0].position, plan.fed) == (11, 5, False)


def test_a_sequence_never_gets_a_step_more_than_its_length() -> None:
    """What is on its way counts: no step is wasted at the end of the length."""
    made = scheduler()
    made.add(request(4, 2))
    fly(made)
    fly(made)
    assert made.next_plan() is None
    land(made)
    assert made.next_plan() is None
    land(made)
    assert not made.running


def test_after_a_stop_one_step_is_wasted_and_the_blocks_wait_for_it() -> None:
    """The token of the step in flight is dropped, and blocks are free when that step has left the device."""
    made = scheduler()
    generation = request(4, 50)
    made.add(generation)
    fly(made)
    _, last = fly(made)
    land(made, token=0)
    assert generation.ended == "stop"
    assert not made.running
    assert made.blocks.available < made.blocks.total
    last.status = "failed"  # over, and never launched
    assert made.blocks.available == made.blocks.total
    land(made)
    assert generation.tokens == [0]


def test_what_was_built_on_a_failed_step_is_planned_again() -> None:
    """A sequence that the failed step did not carry goes on from its last known token."""
    made = scheduler()
    stays, falls = request(4, 50), request(5, 50, temperature=1.0)
    made.add(stays)
    for _ in ("prefill", "decode", "decode", "decode"):
        fly(made)
        land(made, token=9)
    made.add(falls)
    carried, _ = fly(made)
    built_on, handle = fly(made)
    assert [s.generation for s in carried.sequences] == [falls]
    assert [s.generation for s in built_on.sequences] == [stays, falls]
    handle.failure = RuntimeError("it comes after the other")
    made.window.popleft()
    made.failed(carried, unavailable("no"))
    made.drop_failed()
    assert falls.ended == "error"
    assert not made.window
    plan, _ = fly(made)
    assert isinstance(plan.batch, DecodeBatch)
    assert [(row.token, row.position) for row in plan.batch.rows] == [(9, 7)]


def test_a_full_waiting_room_is_refused() -> None:
    """Free rows and waiting room take requests; beyond both it is 429 with the time after which to come back."""
    made = scheduler()
    for _ in range(2 + 8):
        made.add(request(4, 4))
    with pytest.raises(ApiError) as full:
        made.add(request(4, 4))
    assert (full.value.status, full.value.retry_after_s) == (429, 6)


def test_rows_that_are_taken_no_longer_count_as_room() -> None:
    """Once the rows are given out, as many may wait as the waiting room holds and no more."""
    made = scheduler()
    for _ in range(2 + 8):
        made.add(request(4, 4))
    fly(made)
    assert (len(made.running), len(made.waiting)) == (2, 8)
    with pytest.raises(ApiError, match="8 requests are waiting"):
        made.add(request(4, 4))
