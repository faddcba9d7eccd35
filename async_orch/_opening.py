"""Opening in order, and closing in reverse whatever was opened: also after half an opening."""

from __future__ import annotations

import asyncio
import importlib.metadata
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from async_orch import logs
from async_orch._config import OrchestratorConfig
from async_orch._device import Device
from async_orch._events import emit
from async_orch._pipeline import Pipeline
from async_orch._program import ProgramRuntime, StepProgram, image_view
from async_orch._records import RecordMaker, RecordWriter
from async_orch._registry import open_backend
from async_orch._ring import Ring
from async_orch._slot import SlotMemory, SlotSizes, Staging, allocate_slot
from async_orch._step import LAUNCHED, Step
from async_orch._targets import targets_for
from async_orch.abc import Backend
from async_orch.exceptions import OutOfDeviceMemory

__all__ = ["Opened", "close_all", "open_all"]

JOIN_TIMEOUT_S = 1.0
WRITER_TIMEOUT_S = 10.0


class Opened:
    """Everything that is open; ``stack`` closes it in reverse."""

    def __init__(self, config: OrchestratorConfig, stack: ExitStack) -> None:
        self.config = config
        self.stack = stack
        self.backend: Backend
        self.device: Device
        self.pipeline: Pipeline
        self.runtimes: list[ProgramRuntime] = []
        self.writer: RecordWriter | None = None
        self.threads_abandoned = 0


def open_all(
    loop: asyncio.AbstractEventLoop,
    config: OrchestratorConfig,
    backend: str | Backend,
    programs: Mapping[str, StepProgram[Any, Any]],
) -> Opened:
    """Open backend, streams, rings, programs and the log, in this order; all or nothing."""
    with ExitStack() as stack:
        opened = Opened(config, stack)
        targets = targets_for(config.step_log, config.observers)
        for target in targets:
            stack.callback(target.close)
        device_backend = open_backend(backend) if isinstance(backend, str) else backend
        if isinstance(backend, str):
            stack.callback(device_backend.close)
        opened.backend = device_backend
        copy_stream = device_backend.create_stream("copy")
        stack.callback(device_backend.close_stream, copy_stream)
        compute_stream = device_backend.create_stream("compute")
        stack.callback(device_backend.close_stream, compute_stream)
        strict = config.strict_alloc and config.mode != "naive"
        device = opened.device = Device(device_backend, compute_stream, copy_stream, strict=strict)
        stack.callback(device.free_all)

        opened.runtimes = [ProgramRuntime(name, i, p) for i, (name, p) in enumerate(programs.items())]
        sizes = _sizes(programs)
        staging = _open_staging(opened, programs, sizes)
        slots, allocate = _open_slots(opened, sizes)

        maker = RecordMaker(
            uuid.uuid4().hex,
            f"{device_backend.info.backend}:{device_backend.info.device}",
            device_backend.info.device_clock,
            device_backend.clock_ns,
        )
        maker.sees_allocations = device_backend.info.alloc_visibility != "none"
        opening = _opening_event(opened, maker)
        sink: Callable[[Step], None] | None = None
        if targets:
            opened.writer = RecordWriter(maker, targets, loop, lambda: opening)
            stack.callback(opened.writer.close, WRITER_TIMEOUT_S)
            sink = opened.writer.put
        pipeline = Pipeline(loop, config, device_backend, device, staging, slots, allocate, sink)
        opened.pipeline = pipeline
        stack.callback(pipeline.stop)

        for runtime in opened.runtimes:
            stack.callback(runtime.program.close)
            runtime.program.open(device)
        device.arm()
        emit("info", **opening)
        opened.stack = stack.pop_all()
        return opened


def _sizes(programs: Mapping[str, StepProgram[Any, Any]]) -> SlotSizes:
    specs = [program.slot for program in programs.values()]
    return SlotSizes(
        max(spec.image_nbytes for spec in specs),
        max(spec.workspace_nbytes for spec in specs),
        max(spec.output_nbytes for spec in specs),
    )


def _open_staging(opened: Opened, programs: Mapping[str, StepProgram[Any, Any]], sizes: SlotSizes) -> Ring[Staging]:
    backend, items = opened.backend, []
    if sizes.image_nbytes:
        for i in range(opened.config.staging_count):
            buffer = backend.alloc_host(sizes.image_nbytes, name=f"staging{i}")
            opened.stack.callback(buffer.free)
            backend.touch(buffer)
            items.append(Staging(buffer, [image_view(p, buffer.array) for p in programs.values()]))
    return Ring(items)


def _open_slots(opened: Opened, sizes: SlotSizes) -> tuple[Ring[SlotMemory], Callable[[Step, int], None] | None]:
    """The slot ring; in mode naive also the function that allocates a slot when a step acquires it."""
    backend, config = opened.backend, opened.config
    memories = [SlotMemory() for _ in range(config.slots)]
    for index, memory in enumerate(memories):
        opened.stack.callback(memory.free)
        if sizes.output_nbytes:
            host = backend.alloc_host(sizes.output_nbytes, name=f"slot{index}.output_host")
            memory.set_output_host(host)
            backend.touch(host)
        if config.mode == "naive":
            continue
        try:
            allocate_slot(backend, sizes, memory, touch=True)
        except OutOfDeviceMemory as exc:
            raise OutOfDeviceMemory(
                f"slot {index + 1} of {config.slots} does not fit: each needs {sizes.device_nbytes} B "
                f"(image {sizes.image_nbytes}, workspace {sizes.workspace_nbytes}, output {sizes.output_nbytes}); "
                f"lower slots or the sizes ({exc})"
            ) from exc
    if config.mode != "naive":
        return Ring(memories), None

    def allocate(step: Step, index: int) -> None:
        start = backend.clock_ns()
        step.alloc_count = allocate_slot(backend, sizes, memories[index], touch=True)
        step.alloc_ns = backend.clock_ns() - start
        step.alloc_nbytes = sizes.device_nbytes
        step.cold_reason = "each_step"
        opened.device.step_path_allocs += step.alloc_count

    return Ring(memories, on_free=lambda index: memories[index].free_device()), allocate


def _opening_event(opened: Opened, maker: RecordMaker) -> dict[str, Any]:
    """``orchestrator.opened``: what a reader of the log must know of the run, and a clock anchor."""
    config = asdict(opened.config) | {"step_log": None, "observers": len(opened.config.observers)}
    return {
        "event": "orchestrator.opened",
        "schema": logs.SCHEMA,
        "run_id": maker.run_id,
        "pid": maker.pid,
        "host": maker.host,
        "backend": opened.backend.info.backend,
        "device": maker.device,
        "support": opened.backend.info.support,
        "program": [type(runtime.program).__name__ for runtime in opened.runtimes],
        "config": config,
        "versions": {name: importlib.metadata.version(name) for name in ("async-orch", "numpy", "anyio")},
        "mono_ns": maker.anchor_mono_ns,
        "wall_ns": maker.anchor_wall_ns,
    }


async def close_all(opened: Opened) -> None:
    """Close in reverse order; what the steps still hold is reported, and its memory left mapped."""
    pipeline, backend = opened.pipeline, opened.backend
    for step in list(pipeline.retire.queue):
        # Its fence never came: the record says what is known.
        if step.state >= LAUNCHED and opened.writer is not None:
            opened.writer.put(step)
    pool = pipeline.build.pool
    if pool is not None:
        pool.stop()
        opened.threads_abandoned += pool.join(0.0 if pool.busy else JOIN_TIMEOUT_S)
    opened.stack.close()
    opened.threads_abandoned += backend.threads_abandoned()
    emit(
        "info",
        "orchestrator.closed",
        submitted=pipeline.accepted,
        completed=pipeline.completed,
        failed=pipeline.failed,
        cancelled=pipeline.cancelled,
        threads_abandoned=opened.threads_abandoned,
    )
