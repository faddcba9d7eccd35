"""The live page: figures and a swim lane, pushed to the browser twice a second as server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import anyio
from starlette.types import Receive, Scope, Send

from async_orch import Orchestrator
from async_orch.logs import StepRecord
from examples.serve.answers import STREAM_HEADERS, event
from examples.serve.engine import Engine
from examples.serve.errors import unavailable
from examples.serve.front import error_response
from examples.serve.observed import Observed

__all__ = ["LANES", "PAGE", "Live", "Spans"]

PAGE = Path(__file__).resolve().parent / "page"

LANES = ("build", "h2d", "device", "retire")
"""Rows of the swim lane."""

PERIOD_S = 0.5
MOST_VIEWERS = 16
SPANS = 1024
"""How many steps are kept for browsers that come later."""


class Spans:
    """The last steps' spans, put in by the log writer's thread as an observer of records and read on the loop."""

    def __init__(self) -> None:
        self._rows: deque[tuple[int, list[Any]]] = deque(maxlen=SPANS)  # appending and copying are atomic
        self._count = 0

    def __call__(self, record: StepRecord) -> None:
        spans = (
            (record.build_start_ns, record.build_ns),
            (record.h2d_start_ns, record.h2d_ns),
            (record.device_start_ns, record.device_ns),
            (record.retire_start_ns, record.retire_ns),
        )
        row = [record.seq, record.program, record.event.partition(".")[2]]
        row += [None if start is None or length is None else [start, start + length] for start, length in spans]
        self._count += 1
        self._rows.append((self._count, row))

    def since(self, count: int) -> tuple[int, list[list[Any]]]:
        """What came after the first ``count`` steps, and the new count."""
        rows = [(at, row) for at, row in self._rows.copy() if at > count]
        return (rows[-1][0] if rows else count), [row for _, row in rows]


class Live:
    """``GET /live``, as an ASGI application; ends when the server drains."""

    def __init__(self, orchestrator: Orchestrator[Any, Any], engine: Engine, observed: Observed, spans: Spans) -> None:
        self._orchestrator = orchestrator
        self._engine = engine
        self._observed = observed
        self._spans = spans
        self._viewers = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._viewers >= MOST_VIEWERS:
            await error_response(unavailable(f"{self._viewers} browsers are watching already"))(scope, receive, send)
            return
        self._viewers += 1
        try:
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._push, send, tasks.cancel_scope)
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()
        finally:
            self._viewers -= 1

    async def _push(self, send: Send, scope: anyio.CancelScope) -> None:
        count = 0
        while self._engine.state in ("serving", "reopening"):
            count, spans = self._spans.since(count)
            # The browser places spans by the device's clock: where "now" is on it comes with them.
            data = self.figures() | {"now_ns": time.monotonic_ns(), "spans": spans}
            await send({"type": "http.response.body", "body": event(data), "more_body": True})
            await asyncio.sleep(PERIOD_S)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        scope.cancel()

    def figures(self) -> dict[str, Any]:
        """What the page shows in numbers."""
        scheduler, observed, now = self._engine.scheduler, self._observed, self._orchestrator.statistics()
        return {
            "state": self._engine.state,
            "tokens_per_s": observed.tokens_per_s(),
            "tokens_total": observed.tokens_total,
            "first_s": percentiles(observed.first_s),
            "between_s": percentiles(observed.between_s),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "blocks_used": scheduler.blocks.total - scheduler.blocks.available,
            "blocks_total": scheduler.blocks.total,
            "slots": [now.slots_total, now.slots_leased, now.slots_quarantined],
            "queues": dict(now.queue_lengths),
            "steps": [now.completed, now.failed, now.cancelled],
        }


def percentiles(values: Iterable[float]) -> list[float] | None:
    """p50 and p99 by nearest rank; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99)]
