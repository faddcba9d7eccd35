"""What the engine asks to be woken for: each wake-up costs a step two changes of threads on a real device."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from anyio import move_on_after, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from async_orch import Orchestrator
from async_orch._fences import FenceWatcher
from async_orch.abc import Fence
from async_orch.testing import ManualBackend
from tests.programs import Square

PATIENCE_S = 10.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Fence]:
    """The fences that the engine asked to be woken at, in order."""
    found: list[Fence] = []
    watch = FenceWatcher.watch

    def note(self: FenceWatcher, fence: Fence) -> None:
        found.append(fence)
        watch(self, fence)

    monkeypatch.setattr(FenceWatcher, "watch", note)
    return found


def _last_fences(backend: ManualBackend) -> list[Fence]:
    """The fence behind each step's output, of the steps that the compute stream has not reached."""
    ops = list(backend.compute.ops)
    ends = [i for i in range(len(ops)) if i + 1 == len(ops) or ops[i + 1][0] == "isolate"]
    return [ops[i][1] for i in ends]


async def test_the_next_steps_fence_is_asked_before_the_first_one_is_done(asked: list[Fence]) -> None:
    """A thread that waits for fences goes from one to the next: each step's fence is asked once, one step ahead."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=3) as orch:
        handles = [await orch.submit(i) for i in range(3)]
        await wait_all_tasks_blocked()
        first, second, third = _last_fences(backend)
        assert asked == [first, second]
        backend.copy.run()
        backend.compute.run_step()
        await wait_all_tasks_blocked()
        assert [handle.done() for handle in handles] == [True, False, False]
        assert asked == [first, second, third]
        backend.compute.run_step()
        await wait_all_tasks_blocked()
        assert asked == [first, second, third]
        backend.run()
        assert [(await handle).output for handle in handles] == [0, 1, 4]


async def test_a_step_launched_later_is_asked_for_as_well(asked: list[Fence]) -> None:
    """The head was asked for while it was alone; the step behind it is asked for when it comes."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=3) as orch:
        handles = [await orch.submit(1)]
        await wait_all_tasks_blocked()
        assert asked == _last_fences(backend)
        handles.append(await orch.submit(2))
        await wait_all_tasks_blocked()
        assert asked == _last_fences(backend)
        backend.run()
        assert [(await handle).output for handle in handles] == [1, 4]


async def test_only_the_first_of_the_fences_that_cannot_notify_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are waited for in slices of time, one after the other: the second one's slice would hold up the first."""
    backend, asked = ManualBackend(), list[Fence]()
    async with Orchestrator(Square(), backend, slots=3) as orch:
        with monkeypatch.context() as patch:
            record = backend.compute.record

            def silent() -> Any:
                fence: Any = record()
                fence.notifies = False
                return fence

            patch.setattr(backend.compute, "record", silent)
            patch.setattr(FenceWatcher, "watch", lambda self, fence: asked.append(fence))
            handles = [await orch.submit(i) for i in range(2)]
            await wait_all_tasks_blocked()
            assert asked == _last_fences(backend)[:1]
        backend.run()
        handles.append(await orch.submit(2))  # any event lets the engine look
        await wait_all_tasks_blocked()
        backend.run()
        assert [(await handle).output for handle in handles] == [0, 1, 4]


async def test_the_oldest_steps_fence_is_looked_at_once_a_pump(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look is a call of the driver; whatever else moves in the same pump, the fence's own wake-up will tell."""
    backend, looks = ManualBackend(), list[Fence]()
    async with Orchestrator(Square(), backend, slots=1) as orch:
        handles = [orch.submit_nowait(0)]
        await wait_all_tasks_blocked()
        (head,) = _last_fences(backend)
        query = type(head).query

        def look(self: Fence) -> bool:
            looks.append(self)
            return query(self)

        with monkeypatch.context() as patch:
            patch.setattr(type(head), "query", look)
            handles.append(orch.submit_nowait(1))
        built = orch.statistics().queue_lengths
        backend.run()
        await wait_all_tasks_blocked()
        backend.run()
        assert [(await handle).output for handle in handles] == [0, 1]
    assert (built["build"], built["acquire"]) == (0, 1)  # it was built, which takes the pump another round
    assert looks == [head]


async def _finish(backend: ManualBackend, steps: list[asyncio.Task[Any]]) -> list[int]:
    """Let the device go on until every step has its result."""
    while not all(step.done() for step in steps):
        backend.run()
        await wait_all_tasks_blocked()
    return [step.result().output for step in steps]


async def test_copies_are_not_asked_for_while_a_built_step_waits_for_a_slot(asked: list[Fence]) -> None:
    """Steps are built already, so no build is urgent; staging comes back with the look at the slot's fence."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=2, max_inflight=8) as orch, asyncio.TaskGroup() as group:
        steps = [group.create_task(orch.run(i)) for i in range(8)]
        await wait_all_tasks_blocked()
        lengths, wanted, before = orch.statistics().queue_lengths, _last_fences(backend), list(asked)
        outputs = await _finish(backend, steps)
    assert (lengths["build"], lengths["acquire"], lengths["retire"]) == (2, 2, 2)
    assert before == wanted
    assert outputs == [i * i for i in range(8)]


@pytest.mark.parametrize(
    ("slots", "queue_depth", "before", "after"),
    [(8, 1, (0, 3), (0, 6)), (3, 2, (1, 3), (3, 3))],
    ids=["none is built and slots are free", "one is built and two are promised"],
)
async def test_a_copy_is_asked_for_when_too_few_steps_are_built(
    asked: list[Fence], slots: int, queue_depth: int, before: tuple[int, int], after: tuple[int, int]
) -> None:
    """All staging is being copied: the next build waits for the oldest copy, and not until a slot is free."""
    backend = ManualBackend()
    options: dict[str, Any] = {"slots": slots, "queue_depth": queue_depth, "max_inflight": 8}
    found = []
    async with Orchestrator(Square(), backend, **options) as orch, asyncio.TaskGroup() as group:
        steps = [group.create_task(orch.run(i)) for i in range(8)]
        await wait_all_tasks_blocked()
        asked_before = list(asked)
        _, copied, *_ = (fence for kind, fence in backend.copy.ops if kind == "record")
        for act in (lambda: None, backend.copy.run):
            act()
            await wait_all_tasks_blocked()
            lengths = orch.statistics().queue_lengths
            found.append((lengths["acquire"], lengths["retire"]))
        outputs = await _finish(backend, steps)
    assert copied in asked_before
    assert found == [before, after]
    assert outputs == [i * i for i in range(8)]


async def test_copies_are_asked_for_while_a_build_worker_has_no_staging(asked: list[Fence]) -> None:
    """A worker that could build is not left idle until a slot is free, however many steps are built."""
    backend = ManualBackend()
    options: dict[str, Any] = {"slots": 2, "max_inflight": 8, "build_in": "thread"}
    async with Orchestrator(Square(), backend, **options) as orch, asyncio.TaskGroup() as group:
        steps = [group.create_task(orch.run(i)) for i in range(8)]
        found = False
        with move_on_after(PATIENCE_S):
            while not found:
                await checkpoint()
                copied = [fence for kind, fence in backend.copy.ops if kind == "record"]
                found = orch.statistics().queue_lengths["acquire"] == 2 and copied[1] in asked
        outputs = await _finish(backend, steps)
    assert found
    assert outputs == [i * i for i in range(8)]


async def test_the_fence_that_was_asked_for_ahead_is_let_go_with_its_step(asked: list[Fence]) -> None:
    """Fences are few on some devices: when no step is on the device, the engine holds none."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=3) as orch:
        handles = [await orch.submit(i) for i in range(2)]
        await wait_all_tasks_blocked()
        fences = [weakref.ref(fence) for fence in asked]
        asked.clear()
        backend.run()
        for handle in handles:
            await handle
        gc.collect()
        assert [fence() for fence in fences] == [None, None]


async def test_a_map_that_waits_for_its_step_gives_no_extra_turn() -> None:
    """Waiting for the device lets other tasks run; a turn given on top of that costs a round of the loop each step."""
    backend = ManualBackend()
    now_ns = 0
    backend.clock_source = lambda: lambda: now_ns  # type: ignore[method-assign]
    async with Orchestrator(Square(), backend, slots=2) as orch:
        iterator = orch.map(range(3))
        await wait_all_tasks_blocked()
        now_ns += 10**9  # so the turn of whoever iterates is over
        following = asyncio.ensure_future(anext(iterator))
        await wait_all_tasks_blocked()
        backend.copy.run()
        backend.compute.run_step()
        assert (await following).output == 0
        now_ns += 10**9
        first: Any = anext(iterator).__await__().send(None)
        assert asyncio.isfuture(first), "it gave a turn before it waited"
        backend.run()


async def test_a_map_that_waits_lets_a_log_that_is_behind_catch_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not the step under way has ended: the log's writer goes first."""
    backend, caught_up = ManualBackend(), list[str]()

    class Behind:
        behind = True

        async def catch_up(self) -> None:
            caught_up.append("yes")

    async with Orchestrator(Square(), backend) as orch:
        opened: Any = orch
        with monkeypatch.context() as patch:
            patch.setattr(opened._opened, "writer", Behind())
            await orch.give_turn(waits_next=True)
            await orch.give_turn()
    assert caught_up == ["yes", "yes"]
