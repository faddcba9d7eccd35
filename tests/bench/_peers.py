"""The same no-op work in the pipelines of others: four stages, queues of two where there are queues.

Each takes a number of items and gives what came out. `asyncio` ones are coroutines; SPDL and Ray bring threads and
processes of their own and are called. Every form is the one that the project's documentation shows for such a chain;
SPDL also in the fastest form that we found.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from async_orch._bench._overhead import DEPTH, STAGES
from tests.bench._kit import refuse

__all__ = [
    "RayGraph",
    "aiometer_map",
    "aiostream_pipes",
    "anyio_streams",
    "pypeln_tasks",
    "sequential",
    "spdl_best",
    "spdl_default",
]


async def _stage(item: int, *_: object) -> int:
    return item


async def sequential(steps: int) -> list[int]:
    """No pipeline: each item through four awaits, one after the other."""
    out = []
    for i in range(steps):
        item = i
        for _ in range(STAGES):
            item = await _stage(item)
        out.append(item)
    return out


async def anyio_streams(steps: int) -> list[int]:
    """A task a stage, joined by memory object streams."""
    import anyio

    async def worker(receive: Any, send: Any) -> None:
        async with receive, send:
            async for item in receive:
                await send.send(await _stage(item))

    async def source(send: Any) -> None:
        async with send:
            for i in range(steps):
                await send.send(i)

    async with anyio.create_task_group() as tasks:
        send, receive = anyio.create_memory_object_stream[int](DEPTH)
        tasks.start_soon(source, send)
        for _ in range(STAGES):
            next_send, next_receive = anyio.create_memory_object_stream[int](DEPTH)
            tasks.start_soon(worker, receive, next_send)
            receive = next_receive
        async with receive:
            out = [item async for item in receive]
    return out


async def aiostream_pipes(steps: int) -> list[int]:
    """`pipe.map`, ordered, two tasks a stage."""
    try:
        from aiostream import pipe, stream
    except ModuleNotFoundError:
        refuse("aiostream")
    chain: Any = stream.iterate(range(steps))
    for _ in range(STAGES):
        chain |= pipe.map(_stage, task_limit=DEPTH)
    async with chain.stream() as items:
        return [item async for item in items]


async def aiometer_map(steps: int) -> list[int]:
    """Items beside each other, each through all stages: it has no stages, and no order."""
    try:
        import aiometer
    except ModuleNotFoundError:
        refuse("aiometer")

    async def whole(item: int) -> int:
        for _ in range(STAGES):
            item = await _stage(item)
        return item

    async with aiometer.amap(whole, range(steps), max_at_once=DEPTH) as items:
        return sorted([item async for item in items])


async def pypeln_tasks(steps: int) -> list[int]:
    """`pypeln.task.map`, one worker a stage, queues of two; it promises no order."""
    try:
        import pypeln
    except ModuleNotFoundError:
        refuse("pypeln")
    items: Any = range(steps)
    for _ in range(STAGES):
        items = pypeln.task.map(_stage, items, workers=1, maxsize=DEPTH)
    return sorted([item async for item in items])


def _spdl() -> Any:
    try:
        from spdl import pipeline
    except ModuleNotFoundError:
        refuse("spdl-core")
    logging.getLogger("spdl").setLevel(logging.CRITICAL)
    return pipeline


def spdl_default(steps: int) -> list[int]:
    """`PipelineBuilder` with async stages, as documented."""
    builder: Any = _spdl().PipelineBuilder().add_source(range(steps))
    for _ in range(STAGES):
        builder = builder.pipe(_stage)
    pipeline = builder.add_sink(DEPTH).build(num_threads=1)
    with pipeline.auto_stop():
        return list(pipeline)


def spdl_best(steps: int) -> list[int]:
    """An async source, no statistics or hooks, results handed over 64 at a time through a thread's queue."""
    spdl = _spdl()

    async def source() -> AsyncIterator[int]:
        for i in range(steps):
            yield i

    builder: Any = spdl.PipelineBuilder().add_source(source())
    for _ in range(STAGES):
        builder = builder.pipe(_stage)
    pipeline = (
        builder.aggregate(64)
        .add_sink(DEPTH)
        .build(
            num_threads=1, queue_class=spdl.AsyncQueue, task_hook_factory=lambda *_: [], use_thread_output_queue=True
        )
    )
    with pipeline.auto_stop():
        return list(itertools.chain.from_iterable(pipeline))


class RayGraph:
    """A compiled graph over four actors; as many executions in flight as an orchestrator has steps."""

    IN_FLIGHT = 5

    def __init__(self) -> None:
        self._graph: Any = None
        self._ray: Any = None

    def __call__(self, steps: int) -> list[int]:
        """Run items through; the first call starts Ray."""
        graph = self._graph or self._start()
        get: Callable[[Any], int] = self._ray.get
        out: list[int] = []
        waiting: deque[Any] = deque()
        for i in range(steps):
            waiting.append(graph.execute(i))
            if len(waiting) == self.IN_FLIGHT:
                out.append(get(waiting.popleft()))
        out.extend(map(get, waiting))
        return out

    def _start(self) -> Any:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        try:
            import ray
            from ray.dag import InputNode
        except ModuleNotFoundError:
            refuse("ray")
        self._ray = ray
        ray.init(num_cpus=STAGES, include_dashboard=False, log_to_driver=False)

        class Stage:
            def work(self, item: int) -> int:
                return item

        actor: Any = ray.remote(num_cpus=0.5)(Stage)
        with InputNode() as first:
            chain: Any = first
            for _ in range(STAGES):
                chain = actor.remote().work.bind(chain)
        self._graph = chain.experimental_compile(_max_inflight_executions=2 * self.IN_FLIGHT)
        self(50)
        return self._graph
