"""The engine against a plain model: any interleaving of what callers, hooks, clocks and the device can do.

The device is a `ManualBackend`: each of its operations happens when a rule says so, and until then its buffers are in
use, whatever the engine believes. After every rule the ring's books are compared with the device's own queue.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from async_orch import Orchestrator
from async_orch._ring import Ring
from async_orch.abc import Buffer
from async_orch.exceptions import (
    BuildError,
    DependencyFailed,
    OrchestratorClosed,
    PipelineFailed,
    StepCancelled,
    StepTimeout,
)
from async_orch.testing import ManualFence, VirtualClockLoop
from tests.faults.support import Records, assert_balanced, no_log_thread
from tests.programs import settle
from tests.property.engine_model import ERRORS, Chained, Entry, Payload, Plain, VirtualManualBackend

FOR_EVER_S = 1e6


class EngineStates(RuleBasedStateMachine):
    """See the module."""

    @initialize(
        slots=st.integers(1, 3),
        queue_depth=st.integers(1, 2),
        max_inflight=st.sampled_from([None, 1, 2, 4]),
        policy=st.sampled_from(["fail_step", "fail_step", "discard_dependents", "fail_pipeline"]),
        grow=st.sampled_from(["never", "high_water"]),
        mode=st.sampled_from(["pipelined", "pipelined", "ring", "naive"]),
        upload=st.sampled_from(["full", "delta"]),
        shares=st.booleans(),
        fails_at_the_end=st.booleans(),
    )
    def open(self, *, shares: bool, fails_at_the_end: bool, **options: Any) -> None:
        """Enter an orchestrator in a task of its own."""
        self.error = ArithmeticError("the body failed") if fails_at_the_end else None
        self.loop = VirtualClockLoop()
        self.backend = VirtualManualBackend(self.loop)
        self.backend.shares_memory = shares
        self.entries: list[Entry] = []
        self.launches: list[Payload] = []
        self.barriers: list[asyncio.Task[None]] = []
        self.records = Records()
        self.policy = options["policy"]
        self.leave = asyncio.Event()
        plain, chained = Plain(self.launches), Chained(self.launches)
        for program in (plain, chained):
            program.slot = dataclasses.replace(program.slot, image_at="shared")
        plain.grows = chained.grows = options["grow"] == "high_water"
        self.orch: Orchestrator[Any, Any] = Orchestrator(
            {"plain": plain, "chained": chained},
            self.backend,
            step_log=self.records,
            fence_timeout_s=FOR_EVER_S,
            drain_timeout_s=FOR_EVER_S,
            **options,
        )
        self.body = self.loop.create_task(self._body())
        self._turn()

    async def _body(self) -> None:
        with no_log_thread():
            await self.orch.__aenter__()
        await self.leave.wait()
        await self.orch.__aexit__(type(self.error) if self.error else None, self.error, None)

    def _turn(self) -> None:
        self.loop.run_until_complete(settle())

    # -- what callers do -----------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        program=st.sampled_from(["plain", "chained"]),
        fail=st.sampled_from([None] * 8 + list(ERRORS)),
        failing_builds=st.sampled_from([0, 0, 0, 1, 2]),
        retries=st.integers(0, 2),
        timeout_s=st.sampled_from([None, None, 1.0, 5.0]),
        hold=st.booleans(),
        wait=st.sampled_from([False, False, True]),
        workspace_nbytes=st.sampled_from([64, 64, 128, 256]),
    )
    def submit(
        self,
        data: st.DataObject,
        program: str,
        fail: str | None,
        failing_builds: int,
        retries: int,
        timeout_s: float | None,
        hold: bool,
        wait: bool,
        workspace_nbytes: int,
    ) -> None:
        accepted = [e for e in self.entries if e.handle is not None]
        after = data.draw(st.sampled_from([None, *accepted[-4:]]))
        if fail == "feed" and (program == "plain" or after is None):
            fail = None
        payload = Payload(
            len(self.entries) + 1, fail, failing_builds, ManualFence() if hold else None, workspace_nbytes
        )
        fence = ManualFence() if wait else None
        task = self.loop.create_task(
            self.orch.submit(
                payload,
                program=program,
                after=None if after is None else after.handle,
                wait_for=() if fence is None else (fence,),
                timeout_s=timeout_s,
                retries=retries,
            )
        )
        entry = Entry(payload, program, after, timeout_s, task, wait_for=fence)
        entry.build_fails = fail == "build" or failing_builds > retries
        self.entries.append(entry)
        self._turn()

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a handle, or the submit that still waits for one."""
        entry = data.draw(st.sampled_from(self.entries[-6:]))
        if entry.handle is not None:
            entry.cancelled = entry.handle.cancel() or entry.cancelled
        else:
            entry.task.cancel()
        self._turn()

    @precondition(lambda self: len(self.barriers) < 3)
    @rule(rebuild=st.booleans())
    def barrier(self, rebuild: bool) -> None:
        accepted = [e for e in self.entries if e.handle is not None]

        def at_rest() -> None:
            assert all(e.handle is not None and e.handle.done() for e in accepted)
            assert not {id(e.payload) for e in accepted} & self._on_device()

        self.barriers.append(self.loop.create_task(self._guarded(at_rest, rebuild)))
        self._turn()

    async def _guarded(self, at_rest: Any, rebuild: bool) -> None:
        try:
            await self.orch.barrier(at_rest, rebuild=rebuild)
        except (PipelineFailed, OrchestratorClosed):
            assert self.policy == "fail_pipeline" or self.leave.is_set()

    # -- what happens by itself ----------------------------------------------------------------------------

    @rule(name=st.sampled_from(["copy", "compute"]), count=st.sampled_from([1, 1, 2, 5, 20]))
    def device(self, name: str, count: int) -> None:
        """The device performs some operations of one stream."""
        self.backend.streams[name].run(count)
        self._turn()

    @precondition(lambda self: self._foreign())
    @rule(data=st.data())
    def foreign_fence(self, data: st.DataObject) -> None:
        """Another stream gets to where it was waited for."""
        data.draw(st.sampled_from(self._foreign())).finish()
        self._turn()

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def time(self, seconds: float) -> None:
        """Time limits strike."""
        self.loop.jump(seconds)
        self._turn()

    def _foreign(self) -> list[ManualFence]:
        fences = [f for e in self.entries for f in (e.payload.hold, e.wait_for) if f is not None]
        return [f for f in fences if not f.query()]

    def _on_device(self) -> set[int]:
        return {id(args[0]) for kind, (_, args) in self._ops() if kind == "launch"}

    def _ops(self) -> list[tuple[str, Any]]:
        ops = [op for stream in self.backend.streams.values() for op in stream.ops]
        return [op for op in ops if op[0] == "launch"]

    # -- what holds at any moment --------------------------------------------------------------------------

    @invariant()
    def every_step_counts_once(self) -> None:
        statistics = self.orch.statistics()
        ended = statistics.completed + statistics.failed + statistics.cancelled
        assert statistics.submitted == ended + statistics.pending
        seqs = [record.seq for record in self.records]
        assert len(seqs) == len(set(seqs))

    @invariant()
    def every_index_is_in_one_place(self) -> None:
        memory = self.orch._pipeline().memory
        rings: list[Ring[Any]] = [memory.staging, *(c.ring for c in memory.classes)]
        for ring in rings:
            places = [*ring.free_indices, *ring.parked, *ring._quarantined]
            assert len(places) == len(set(places))
            assert set(places) <= set(range(len(ring)))
            assert not ring._quarantined

    @invariant()
    def no_buffer_is_free_while_the_device_or_another_stream_uses_it(self) -> None:
        memory = self.orch._pipeline().memory
        used: set[int] = set()
        for stream in self.backend.streams.values():
            for kind, payload in stream.ops:
                values = payload[:2] if kind == "copy" else payload[1] if kind == "launch" else ()
                used |= {id(value) for value in values if isinstance(value, Buffer)}
        slots = memory.classes[0]
        for i, item in enumerate(slots.memories):
            if any(id(buffer) in used for buffer in item.buffers()):
                assert not slots.ring.is_free(i), f"slot {i} is free, and the device works on it"
        for i, staging in enumerate(memory.staging.items):
            if id(staging.buffer) in used:
                assert not memory.staging.is_free(i), f"staging {i} is free, and the device reads it"
            if staging.device is not None:
                assert id(staging.device) not in used, f"images are built in staging {i}, and kernels read it"
        for entry in self.entries:
            payload = entry.payload
            if payload.hold is not None and payload.slot_index >= 0 and not payload.hold.query():
                assert payload.fail == "launch" or not slots.ring.is_free(payload.slot_index)

    @invariant()
    def launches_are_in_order(self) -> None:
        seqs = [e.handle.seq for p in self.launches for e in self.entries if e.payload is p and e.handle is not None]
        assert seqs == sorted(seqs)

    @invariant()
    def results_are_right(self) -> None:
        for entry in self.entries:
            handle = entry.handle
            if handle is not None and handle.status == "completed":
                assert handle.result().output == entry.expected

    # -- the end -------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Let everything end, leave, and compare each outcome with the model's."""
        if not hasattr(self, "loop"):
            return
        if self.error is not None:
            self._close_now()
        else:
            self._end_in_peace()
        assert_balanced(self.orch)
        self.records.assert_one_a_step(self.orch.statistics().submitted)
        assert self.backend.live == []
        assert asyncio.all_tasks(self.loop) == set()
        self.loop.close()

    def _close_now(self) -> None:
        """The body raises in the middle of everything: all is cancelled, and the fences are awaited."""
        self.leave.set()
        while not self.body.done():
            self._turn()
            for fence in self._foreign():
                fence.finish()
            for stream in self.backend.streams.values():
                stream.run(1)
        for task in (*(e.task for e in self.entries), *self.barriers):
            self.loop.run_until_complete(asyncio.wait((task,)))
        for barrier in self.barriers:
            barrier.result()
        assert all(e.handle is None or e.handle.done() for e in self.entries)

    def _end_in_peace(self) -> None:
        for _ in range(4 * len(self.entries) + 4):
            for fence in self._foreign():
                fence.finish()
            for stream in self.backend.streams.values():
                stream.run()
            self._turn()
        assert all(e.task.done() for e in self.entries)
        assert all(barrier.done() for barrier in self.barriers), "a barrier still waits"
        for barrier in self.barriers:
            barrier.result()
        for entry in self.entries:
            self._compare(entry)
        self.leave.set()
        self.loop.run_until_complete(self.body)

    def _compare(self, entry: Entry) -> None:
        handle = entry.handle
        if handle is None:
            error = None if entry.task.cancelled() else entry.task.exception()
            assert error is None or isinstance(error, PipelineFailed), error
            return
        assert handle.done(), f"{handle!r} never ended"
        error, payload = handle.exception(), entry.payload
        allowed: list[type[BaseException]] = []
        if entry.cancelled:
            allowed.append(StepCancelled)
        if entry.timeout_s is not None:
            allowed.append(StepTimeout)
        if payload.fail is not None:
            allowed.append(ERRORS[payload.fail])
        if entry.build_fails:
            allowed.append(BuildError)
        if self.policy == "fail_pipeline":
            allowed.append(PipelineFailed)
        root = entry.after
        needs = self.policy == "discard_dependents" or entry.program == "chained"
        if needs and root is not None and root.handle is not None and root.handle.status != "completed":
            allowed.append(DependencyFailed)
        if error is None:
            assert payload.fail is None
            assert not entry.build_fails
            assert not entry.cancelled
            assert handle.result().output == entry.expected
        else:
            assert isinstance(error, tuple(allowed)), (error, allowed)


FULL = os.environ.get("ASYNC_ORCH_PROOFS") == "full"

TestEngineStates = EngineStates.TestCase
TestEngineStates.settings = settings(
    max_examples=600 if FULL else 60,
    stateful_step_count=80 if FULL else 40,
    deadline=None,
    derandomize=not FULL,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)
