"""Opening in order, and closing in reverse whatever was opened: also after half an opening.

There are two layers. The outer one lives as long as the orchestrator: the backend, the log, the device thread. The
inner one is everything on the device, which `Orchestrator.reopen` makes anew after the device was lost.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from async_orch import logs
from async_orch._annotate import Marker, annotate, load_marker
from async_orch._config import OrchestratorConfig
from async_orch._device import Device
from async_orch._engine_program import EngineAdapter, EngineBackend, unwrap
from async_orch._events import emit, enabled
from async_orch._finish import finish
from async_orch._memory_plan import MemoryPlan
from async_orch._pipeline import Counts, Pipeline
from async_orch._process_boot import refuse_in_worker
from async_orch._program import ProgramRuntime, StepProgram
from async_orch._record import RecordMaker
from async_orch._records import RecordWriter
from async_orch._registry import open_backend
from async_orch._step import LAUNCHING, Step
from async_orch._targets import targets_for
from async_orch._waker import Waker
from async_orch._witness import watch_allocations
from async_orch._workers import WorkerPool
from async_orch.abc import Backend
from async_orch.exceptions import OrchError

if TYPE_CHECKING:
    from async_orch._process_wire import Hello

__all__ = ["Opened"]

JOIN_TIMEOUT_S = 1.0
WRITER_TIMEOUT_S = 10.0


class Opened:
    """Everything that is open. Made by `open`; `close` undoes it in reverse."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: OrchestratorConfig,
        programs: Mapping[str, StepProgram[Any, Any]],
    ) -> None:
        self.loop = loop
        self.loop_thread = threading.get_ident()
        self.config = config
        self.programs = programs
        self.counts = Counts()
        self.threads_abandoned = 0
        self.writer: RecordWriter | None = None
        self._marker: Marker | None = None
        self._device_waker: Waker
        self.device_thread: WorkerPool[Callable[[], None]] | None = None
        self.backend: Backend
        self.device: Device
        self.pipeline: Pipeline
        self.memory: MemoryPlan
        self.runtimes: dict[str, ProgramRuntime] = {}
        self.plain: ProgramRuntime | None = None
        """The only program, if its steps are alike: what a submit without arguments means."""
        self._portable: Hello | None = None
        """The programs as worker processes get them: as they were before their first ``open``."""
        self.reopening = asyncio.Lock()
        self._outer = AsyncExitStack()
        self._inner = AsyncExitStack()
        self._hook_done: asyncio.Future[None] | None = None

    async def open(self, backend: str | Backend) -> None:
        """Open backend, log, rings, workers and programs, in this order; all or nothing."""
        refuse_in_worker()
        if self.config.build_in == "process":
            from async_orch._process_programs import portable_programs  # noqa: PLC0415 - slow to import

            self._portable = portable_programs(self.programs)
        async with AsyncExitStack() as if_not_whole:
            if_not_whole.push_async_callback(self._give_back)
            await self._open_outer(backend)
            await self.open_inner()
            if_not_whole.pop_all()

    async def _give_back(self) -> None:
        try:
            await finish(self.close())
        except Exception as exc:  # noqa: BLE001 - what made opening fail is what the caller must see
            emit("error", "orchestrator.leaving_failed", error=repr(exc))

    async def _open_outer(self, backend: str | Backend) -> None:
        config, outer = self.config, self._outer
        self._marker = load_marker(config.annotate)
        targets = targets_for(config.step_log, config.observers)
        for target in targets:
            outer.callback(target.close)
        if isinstance(next(iter(self.programs.values())), EngineAdapter):
            self.backend = EngineBackend(lambda: config.fence_timeout_s)
            outer.callback(self.backend.close)
        elif isinstance(backend, str):
            self.backend = open_backend(backend)
            outer.callback(self.backend.close)
        else:
            self.backend = backend
        info = self.backend.info
        maker = RecordMaker(uuid.uuid4().hex, f"{info.backend}:{info.device}", info.device_clock, self.backend.clock_ns)
        maker.sees_allocations = info.alloc_visibility != "none"
        if targets or enabled():
            opening = self._opening_event(maker)
            emit("info", **opening)
            if targets:
                self.writer = RecordWriter(maker, targets, self.loop, lambda: opening | maker.anchor())
                outer.callback(self._close_writer, self.writer)
        if config.launch_in == "thread":
            self._device_waker = Waker(self.loop, self._device_thread_woke)
            outer.callback(self._device_waker.close)
            self.device_thread = WorkerPool("device", 1, _call, self._device_waker.wake)

    async def open_inner(self, loss: OrchError | None = None) -> None:
        """Streams, rings and programs; after a failure `close` or `close_inner` frees what there is.

        Until all of it is open nothing is accepted: after ``loss``, every submit gets that.
        """
        config, backend, inner = self.config, self.backend, self._inner
        copy_stream = backend.create_stream("copy")
        inner.callback(backend.close_stream, copy_stream)
        compute_stream = backend.create_stream("compute")
        inner.callback(backend.close_stream, compute_stream)
        strict = config.strict_alloc and config.mode != "naive"
        device = self.device = Device(backend, compute_stream, copy_stream, strict=strict)
        inner.callback(self._free_resident, device)
        self.runtimes = {
            name: ProgramRuntime(name, i, program) for i, (name, program) in enumerate(self.programs.items())
        }
        runtimes = list(self.runtimes.values())
        self.plain = runtimes[0] if len(runtimes) == 1 and not runtimes[0].has_sizes else None
        has_memory = not isinstance(backend, EngineBackend)
        memory = self.memory = MemoryPlan(config, backend, runtimes, has_memory=has_memory)
        inner.callback(memory.free)
        memory.allocate()
        sink: Callable[[Step], None] | None = None if self.writer is None else self.writer.put
        self.pipeline = Pipeline(
            self.loop, config, backend, (copy_stream, compute_stream), memory, self.counts, sink, self.device_thread
        )
        if self._marker is not None:
            annotate(self.pipeline, self._marker)
        self.pipeline.failure = loss
        inner.callback(self.pipeline.stop)
        self.pipeline.waker.listen()
        if self.pipeline.build.workers is not None:
            await self.pipeline.build.workers.open(self._portable)
        for runtime in runtimes:
            program = runtime.program
            inner.push_async_callback(self.on_device_thread, program.close)
            if program.slot.image_at == "fixed":
                runtime.fixed_image = device.alloc(program.slot.image_nbytes, name=f"{runtime.name}.fixed_image")
            device.fixed_image = runtime.fixed_image
            await self.on_device_thread(partial(program.open, device))
        counter = backend.allocation_counter()
        if counter is not None:
            for runtime in runtimes:
                watch_allocations(runtime, counter, self.pipeline, device)
        device.arm()
        self.pipeline.failure = None

    def _free_resident(self, device: Device) -> None:
        # A hook that hangs on the device thread may still touch it: then it stays mapped, and shows in the statistics.
        if self.device_thread is None or not self.device_thread.busy:
            device.free_all()

    def _close_writer(self, writer: RecordWriter) -> None:
        if not writer.close(min(WRITER_TIMEOUT_S, self.config.drain_timeout_s)):
            self.threads_abandoned += 1

    def replace_device_thread(self) -> None:
        """A launch hangs for good: its thread is abandoned, and another does the device's hooks."""
        if self.device_thread is not None:
            self.device_thread.stop()
            self.threads_abandoned += self.device_thread.join(0.0)
            self.device_thread = WorkerPool("device", 1, _call, self._device_waker.wake)

    # -- hooks on the device thread ------------------------------------------------------------------------

    def _device_thread_woke(self) -> None:
        if self._hook_done is not None:
            if not self._hook_done.done():
                self._hook_done.set_result(None)
        else:
            self.pipeline.pump()

    async def on_device_thread(self, hook: Callable[[], None]) -> None:
        """Run ``open`` or ``close`` of a program where its ``launch`` runs."""
        thread = self.device_thread
        if thread is None or thread.busy:
            # Busy only if a launch hangs: then close runs here rather than never.
            hook()
            return
        done = self._hook_done = self.loop.create_future()
        failed: list[BaseException] = []

        def call() -> None:
            try:
                hook()
            except BaseException as exc:  # noqa: BLE001 - raised again below, on the loop
                failed.append(exc)

        thread.submit(call)

        async def returned() -> None:
            await done

        try:
            # Memory cannot be freed under a hook that runs: a cancel waits for it, though not for ever.
            await finish(returned(), self.config.drain_timeout_s)
        finally:
            self._hook_done = None
            if done.done() and not done.cancelled():
                thread.take()
        if failed:
            raise failed[0]

    def _opening_event(self, maker: RecordMaker) -> dict[str, Any]:
        """``orchestrator.opened``: what a reader of the log must know of the run, and a clock anchor."""
        from importlib.metadata import version  # noqa: PLC0415 - slow to import

        log = self.config.step_log
        words = str(log) if isinstance(log, str | os.PathLike) else None if log is None else type(log).__name__
        config = asdict(replace(self.config, step_log=words, observers=())) | {"observers": len(self.config.observers)}
        return {
            "event": "orchestrator.opened",
            "schema": logs.SCHEMA,
            "run_id": maker.run_id,
            "pid": maker.pid,
            "host": maker.host,
            "backend": self.backend.info.backend,
            "device": maker.device,
            "support": self.backend.info.support,
            "program": {name: type(unwrap(program)).__name__ for name, program in self.programs.items()},
            "config": config,
            "versions": {name: version(name) for name in ("async-orch", "numpy", "anyio")},
            **maker.anchor(),
        }

    # -- closing -------------------------------------------------------------------------------------------

    async def close_inner(self) -> None:
        """Stop the workers and free the device's memory, except what somebody may still touch."""
        pipeline = getattr(self, "pipeline", None)
        if pipeline is not None:
            busy = pipeline.launch.busy
            for step in [*pipeline.retire.queue, *(() if busy is None else (busy,))]:
                # Its launch did not return or its fence never came: the record says what is known.
                if step.state >= LAUNCHING and not step.recorded:
                    step.recorded = True
                    if self.writer is not None:
                        self.writer.put(step)
            if pipeline.build.workers is not None:
                self.threads_abandoned += await pipeline.build.workers.close(JOIN_TIMEOUT_S)
            for pool in (pipeline.h2d.pool, pipeline.retire.pool):
                if pool is not None:
                    pool.stop()
                    self.threads_abandoned += pool.join(JOIN_TIMEOUT_S)
        await self._inner.aclose()

    async def close(self) -> None:
        """Close everything, in reverse order of opening."""
        try:
            await self.close_inner()
        finally:
            if self.device_thread is not None:
                self.device_thread.stop()
                self.threads_abandoned += self.device_thread.join(JOIN_TIMEOUT_S)
            backend = getattr(self, "backend", None)
            try:
                await self._outer.aclose()
            finally:
                if backend is not None:
                    self.threads_abandoned += backend.threads_abandoned()
                counts = self.counts
                emit(
                    "info",
                    "orchestrator.closed",
                    submitted=counts.accepted,
                    completed=counts.completed,
                    failed=counts.failed,
                    cancelled=counts.cancelled,
                    threads_abandoned=self.threads_abandoned,
                )


def _call(job: Callable[[], None]) -> None:
    job()
