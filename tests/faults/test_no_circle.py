"""Combinations that could wait in a circle: all end, in virtual time where nothing takes place on threads."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from async_orch import Orchestrator, StepHandle
from async_orch.exceptions import DependencyFailed, OrchError
from async_orch.testing import LoopStuck, run_virtual
from tests.faults.support import assert_balanced, assert_no_tasks
from tests.faults.test_after_and_barrier import Fed
from tests.faults.test_cancel_anywhere import make_backend

SHAPES = list(itertools.product([1, 2, 3], [1, 2], [1, 2, None]))


class Fails(Fed):
    """Builds of the values in ``fail`` raise."""

    def __init__(self, *fail: int) -> None:
        super().__init__()
        self.fail = fail

    def build(self, step: int, image: Any) -> int | None:
        if step in self.fail:
            raise ArithmeticError("build")
        return super().build(step, image)


@pytest.mark.parametrize(("slots", "queue_depth", "max_inflight"), SHAPES)
@pytest.mark.parametrize("policy", ["fail_step", "discard_dependents"])
def test_feed_failures_barriers_and_nested_runs_end_in_any_shape(
    slots: int, queue_depth: int, max_inflight: int | None, policy: Any
) -> None:
    """A chained map whose consumer calls run, with failures in the chain and barriers beside it, comes to its end."""

    async def main() -> None:
        backend, program = make_backend("sim"), Fails(3)
        barriers: list[int] = []
        orch = Orchestrator(
            program, backend, slots=slots, queue_depth=queue_depth, max_inflight=max_inflight, policy=policy
        )

        async def stop_the_world() -> None:
            for i in range(4):
                await orch.barrier(partial(barriers.append, i), rebuild=bool(i % 2))

        results: list[int] = []
        failures: list[type[BaseException]] = []
        async with orch:
            beside = asyncio.ensure_future(stop_the_world())
            iterator = orch.map(range(6), chain=True)
            while True:
                try:
                    result = await anext(iterator)
                except StopAsyncIteration:
                    break
                except OrchError as exc:
                    failures.append(type(exc))
                    continue
                results.append(result.output)
                assert (await orch.run(result.output)).output == result.output**2
            await beside
        assert results == [0, 1, 4]
        # What comes after the failed step needs its output, and so on to the end.
        assert [kind.__name__ for kind in failures] == ["BuildError", "DependencyFailed", "DependencyFailed"]
        assert barriers == [0, 1, 2, 3]
        assert_balanced(orch)
        assert_no_tasks()
        backend.close()

    run_virtual(main())


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("policy", ["fail_step", "discard_dependents"])
async def test_two_workers_that_finish_out_of_order_do_not_take_each_others_turn(slots: int, policy: Any) -> None:
    """The later build ends first, and its step needs the earlier one as feed: with a ring of one both complete."""

    class Reversed(Fed):
        def __init__(self) -> None:
            super().__init__()
            self.built = {i: threading.Event() for i in range(8)}

        def build(self, step: int, image: Any) -> int | None:
            if step % 2 == 0:
                self.built[step + 1].wait(20)
            used = super().build(step, image)
            self.built[step].set()
            return used

    program = Reversed()
    async with Orchestrator(
        program, "host", slots=slots, build_in="thread", build_workers=2, policy=policy, collect_in="thread"
    ) as orch:
        handles: list[StepHandle[int]] = []
        for i in range(8):
            handles.append(await orch.submit(i, after=handles[-1] if i % 2 else None))
        await orch.barrier(lambda: None, rebuild=True)
        assert [(await handle).output for handle in handles] == [i * i for i in range(8)]
    assert_balanced(orch)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("chain", [False, True])
def test_fewer_steps_than_slots(count: int, chain: bool) -> None:
    """No step, one step, or fewer than the ring has: the iteration ends by itself."""

    async def main() -> None:
        backend = make_backend("sim")
        async with Orchestrator(Fed(), backend, slots=4, queue_depth=3, max_inflight=8) as orch:
            assert [r.output async for r in orch.map(range(count), chain=chain)] == [i * i for i in range(count)]
            await orch.drain()
        assert_balanced(orch)
        backend.close()

    run_virtual(main())


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("source", ["sync", "async"])
def test_a_source_that_raises_does_so_after_the_results_before_it(at: int, source: str) -> None:
    """Results of the steps that it gave come first, then its own exception, unchanged."""
    error = LookupError("source")

    def items() -> Iterator[int]:
        yield from range(at)
        raise error

    async def items_async() -> AsyncIterator[int]:
        for i in range(at):
            yield i
        raise error

    async def main() -> None:
        backend = make_backend("sim")
        async with Orchestrator(Fed(), backend) as orch:
            iterator = orch.map(items() if source == "sync" else items_async())
            results = [(await anext(iterator)).output for _ in range(at)]
            with pytest.raises(LookupError) as caught:
                await anext(iterator)
            assert caught.value is error
            assert results == [i * i for i in range(at)]
        assert_balanced(orch)
        backend.close()

    run_virtual(main())


def test_an_async_source_that_blocks_holds_up_nobody() -> None:
    """What it gave is delivered, others run, and leaving the loop ends the source."""
    ended: list[bool] = []

    async def source() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main() -> None:
        backend = make_backend("sim")
        async with Orchestrator(Fed(), backend, max_inflight=1) as orch:
            results = []
            async for result in orch.map(source()):
                results.append(result.output)
                assert (await orch.run(5)).output == 25
                if len(results) == 2:
                    break
            await orch.drain()
            assert results == [1, 4]
        assert ended == [True]
        assert_balanced(orch)
        assert_no_tasks()
        backend.close()

    run_virtual(main())


def test_a_failed_step_in_a_ring_of_one_takes_its_whole_chain_with_it() -> None:
    """discard_dependents in the smallest pipeline: each dependent fails at once, with the root, and later steps run."""

    async def main() -> None:
        backend = make_backend("sim")
        options: Any = {"slots": 1, "queue_depth": 1, "max_inflight": 1, "policy": "discard_dependents"}
        async with Orchestrator(Fails(0), backend, **options) as orch:
            handles: list[StepHandle[int]] = []
            for i in range(5):
                handles.append(await orch.submit(i, after=handles[-1] if handles else None))
            for handle in handles[1:]:
                with pytest.raises(DependencyFailed, match="needs the output of step 0"):
                    await handle
            assert (await orch.run(6)).output == 36
        assert_balanced(orch)
        backend.close()

    run_virtual(main())


def test_a_pipeline_that_is_stuck_is_noticed() -> None:
    """The proof of the proofs: a step that can never be launched ends the virtual loop with LoopStuck."""

    async def main() -> None:
        backend = make_backend("sim")
        async with Orchestrator(Fed(), backend, fence_timeout_s=1e6, drain_timeout_s=1e6) as orch:
            orch._pipeline().barriers.put_up(rebuild=True)  # and nobody takes it down
            await orch.run(1)

    with pytest.raises(LoopStuck, match="nothing is ready"):
        run_virtual(main())
