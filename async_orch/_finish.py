"""Running something to its end whatever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["finish"]

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T], patience_s: float | None = None) -> T:
    """Run ``work`` in a task of its own and wait for it; a cancel of the caller is raised only then.

    A shielded scope alone does not do: it holds off cancel scopes, but not `asyncio.Task.cancel`; and neither does a
    task group, which ends its tasks when its own is cancelled. This is the one task outside a group, and it never
    outlives the call. With ``patience_s`` the wait ends that long after the first cancel, and ``work`` is cancelled.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    limit: asyncio.TimerHandle | None = None
    try:
        with anyio.CancelScope(shield=True):
            while not task.done():
                try:
                    await asyncio.wait((task,))
                except asyncio.CancelledError as exc:
                    cancelled = exc
                    if patience_s is not None and limit is None:
                        limit = asyncio.get_running_loop().call_later(patience_s, task.cancel)
    finally:
        if limit is not None:
            limit.cancel()
    if cancelled is not None:
        raise cancelled from (None if task.cancelled() else task.exception())
    return task.result()
