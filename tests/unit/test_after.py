"""Steps that come after others: late input, dependency failures, policies."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from async_orch import Orchestrator, Slot, SlotSpec, StepHandle, StepProgram
from async_orch._step import Step
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import (
    BuildError,
    ConfigurationError,
    DependencyFailed,
    LaunchError,
    PipelineFailed,
    StepCancelled,
)
from async_orch.logs import StepRecord
from async_orch.testing import ManualBackend
from tests.programs import Hooked, Square, settle


def add(image: ByteArray, feed: ByteArray, output: ByteArray) -> None:
    """Kernel: own number plus what was fed."""
    output.view(np.int64)[0] = image[:8].view(np.int64)[0] + feed.view(np.int64)[0]


class Sums(StepProgram[int, int]):
    """Each step's output is its number plus the output of the step that it comes after."""

    slot = SlotSpec(image_nbytes=8, feed_nbytes=8, output_nbytes=8)

    def __init__(self, **fail: set[int]) -> None:
        self.fail = fail
        self.order: list[str] = []

    def build(self, step: int, image: ByteArray) -> int | None:
        self.order.append(f"build {step}")
        if step in self.fail.get("build", ()):
            raise ArithmeticError(f"build of {step}")
        image.view(np.int64)[0] = step
        return None

    def feed(self, step: int, previous: Any, feed: ByteArray) -> int | None:
        self.order.append(f"feed {step}")
        if step in self.fail.get("feed", ()):
            raise ArithmeticError(f"feed of {step}")
        feed.view(np.int64)[0] = previous
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self.order.append(f"launch {step}")
        stream.launch(add, slot.image, slot.feed, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        self.order.append(f"collect {step}")
        return int(output.view(np.int64)[0])


@pytest.mark.parametrize("backend", ["sim:instant", "host"])
@pytest.mark.parametrize("slots", [1, 2, 3])
async def test_a_chain_feeds_each_step_what_the_one_before_gave(backend: str, slots: int) -> None:
    """map(chain=True) passes outputs on, with one slot as with several (promise 10)."""
    async with Orchestrator(Sums(), backend, slots=slots) as orch:
        assert [r.output async for r in orch.map([5, 1, 2, 3], chain=True)] == [5, 6, 8, 11]


async def test_only_the_feed_waits_build_and_copy_run_ahead() -> None:
    """N+1 is built and copied while N is on the device; N's slot is back before the feed of N+1 is called."""
    backend, program = ManualBackend(), Sums()
    leased_at_feed: list[int] = []
    async with Orchestrator(program, backend, slots=2) as orch:
        first = await orch.submit(1)
        original = program.feed

        def feed(step: int, previous: Any, view: ByteArray) -> int | None:
            leased_at_feed.append(orch.statistics().slots_leased)
            return original(step, previous, view)

        orch._opened.runtimes["default"].feed = feed  # type: ignore[union-attr]
        second = await orch.submit(2, after=first)
        assert program.order == ["build 1", "launch 1", "build 2"]
        assert second.status == "acquired"
        assert backend.copy.enqueued.count("copy") == 2
        backend.copy.run()
        backend.compute.run()
        await settle()
        assert program.order == ["build 1", "launch 1", "build 2", "collect 1", "feed 2", "launch 2"]
        assert leased_at_feed == [1], "only the second step's own slot"
        backend.compute.run()
        assert (await second).output == 3


async def test_without_after_feed_is_not_called() -> None:
    """A step on its own runs with whatever its feed buffer holds; the hook is not called."""
    program = Sums()
    async with Orchestrator(program, "sim:instant") as orch:
        await orch.run(1)
    assert not any(entry.startswith("feed") for entry in program.order)


async def test_after_a_step_that_settled_long_ago() -> None:
    """The earlier step may have settled before the later one is submitted."""
    async with Orchestrator(Sums(), "sim:instant") as orch:
        first = await orch.submit(4)
        await first
        assert (await orch.run(1, after=first)).output == 5


@pytest.mark.parametrize("policy", ["fail_step", "discard_dependents"])
async def test_a_step_that_needs_a_failed_output_fails_with_its_root(policy: Any) -> None:
    """The whole chain behind a failure names the step at the root and has its cause; others complete."""
    async with Orchestrator(Sums(build={2}), "host", policy=policy, max_inflight=8) as orch:
        root = await orch.submit(2, step_id="root")
        child = await orch.submit(3, step_id="child", after=root)
        grandchild = await orch.submit(4, step_id="grandchild", after=child)
        other = await orch.submit(5)
        with pytest.raises(BuildError) as root_error:
            await root
        for handle in (child, grandchild):
            with pytest.raises(DependencyFailed, match="needs the output of step 'root', which failed") as caught:
                await handle
            assert caught.value.root_step_id == "root"
            assert caught.value.__cause__.__cause__ is root_error.value.__cause__  # type: ignore[union-attr]
        await other
    assert orch.statistics().slots_leased == 0


async def test_a_failing_feed_fails_its_own_step() -> None:
    """An exception of feed is that step's launch failure; its slot comes back."""
    async with Orchestrator(Sums(feed={2}), "host") as orch:
        first = await orch.submit(1)
        second = await orch.submit(2, after=first)
        with pytest.raises(LaunchError, match="feed raised: ArithmeticError: feed of 2"):
            await second
        assert (await first).output == 1
    assert orch.statistics().slots_leased == 0


async def test_discard_dependents_takes_launched_steps_too() -> None:
    """Under discard_dependents a step built on a failed one fails even if it has no feed and is on the device."""
    backend = ManualBackend()
    async with Orchestrator(Hooked(kernel={0}), backend, policy="discard_dependents") as orch:
        root = await orch.submit(0)
        child = await orch.submit(1, after=root)
        other = await orch.submit(2)
        assert child.status == "launched"
        backend.copy.run()
        backend.compute.run()
        await settle()
        with pytest.raises(LaunchError):
            await root
        with pytest.raises(DependencyFailed):
            await child
        assert (await other).output == 4
        assert orch.statistics().slots_leased == 0


async def test_under_fail_step_a_dependent_without_feed_goes_on() -> None:
    """``after`` without late input is order only, which the queue gives anyway."""
    async with Orchestrator(Hooked(build={0}), "host") as orch:
        root = await orch.submit(0)
        child = await orch.submit(1, after=root)
        assert (await child).output == 1
        assert isinstance(root.exception(), BuildError)


async def test_fail_pipeline_fails_everything() -> None:
    """One failed step fails all steps and every later submit, each with the failure as its cause."""
    backend = ManualBackend()
    async with Orchestrator(Hooked(build={1}), backend, policy="fail_pipeline", drain_timeout_s=0.1) as orch:
        first = await orch.submit(0)
        second = await orch.submit(1)
        with pytest.raises(BuildError):
            await second
        with pytest.raises(PipelineFailed) as caught:
            await first
        assert isinstance(caught.value.__cause__, BuildError)
        with pytest.raises(PipelineFailed):
            await orch.submit(2)
        backend.copy.run()
        backend.compute.run()


async def test_cancelling_a_removed_step_fails_those_that_need_it() -> None:
    """A step cancelled before launch has no output to feed."""
    backend = ManualBackend()
    async with Orchestrator(Sums(), backend, slots=1) as orch:
        first = await orch.submit(1)
        second = await orch.submit(2)
        third = await orch.submit(3, after=second)
        second.cancel()
        with pytest.raises(DependencyFailed, match="was removed"):
            await third
        for _ in range(2):
            backend.copy.run()
            backend.compute.run()
            await settle()
        assert (await first).output == 1


async def test_a_detached_step_still_feeds_its_dependent() -> None:
    """Cancelling a launched step detaches its result; collect runs all the same because a live step needs it."""
    backend = ManualBackend()
    records: list[StepRecord] = []
    async with Orchestrator(Sums(), backend, step_log=records.append) as orch:
        first = await orch.submit(1)
        second = await orch.submit(2, after=first)
        assert first.cancel()
        with pytest.raises(StepCancelled):
            await first
        for _ in range(2):
            backend.copy.run()
            backend.compute.run()
            await settle()
        assert (await second).output == 3
    assert [(r.event, r.seq, r.after) for r in records] == [("step.detached", 0, None), ("step.completed", 1, 0)]
    assert records[1].feed_ns is not None
    assert records[1].feed_wait_ns is not None


async def test_wrong_afters_are_refused_at_submit() -> None:
    """A handle of another orchestrator, or none at all, is an error before anything starts."""
    async with Orchestrator(Square(), "sim:instant") as one, Orchestrator(Square(), "sim:instant") as two:
        foreign: StepHandle[int] = await one.submit(1)
        with pytest.raises(ConfigurationError, match="is a step of another orchestrator"):
            await two.submit(1, after=foreign)
        with pytest.raises(TypeError, match="after must be a StepHandle, got int"):
            await two.submit(1, after=3)  # type: ignore[arg-type]
        assert two.statistics().submitted == 0


def test_feed_and_its_size_go_together() -> None:
    """feed() without feed_nbytes, and feed_nbytes without feed(), are refused at construction."""

    class NoSize(Sums):
        slot = SlotSpec(image_nbytes=8, output_nbytes=8)

    class NoFeed(Square):
        slot = SlotSpec(image_nbytes=8, output_nbytes=8, feed_nbytes=8)

    with pytest.raises(ConfigurationError, match=r"NoSize defines feed\(\) but feed_nbytes of its slot is 0"):
        Orchestrator(NoSize(), "sim:instant")
    with pytest.raises(ConfigurationError, match=r"feed_nbytes=8 but no feed\(\) is defined"):
        Orchestrator(NoFeed(), "sim:instant")


async def test_a_long_chain_keeps_no_earlier_step_alive() -> None:
    """A thousand steps, each after the one before, hold no chain of steps (promise 5)."""
    async with Orchestrator(Sums(), "sim:instant") as orch:
        handle = await orch.submit(0)
        for _ in range(1000):
            handle = await orch.submit(1, after=handle)
        assert (await handle).output == 1000
        gc.collect()
        assert sum(type(o) is Step for o in gc.get_objects()) < 10
