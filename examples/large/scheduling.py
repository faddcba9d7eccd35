"""How long a graph takes on a number of cores: list scheduling of its kernel calls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from async_orch.graph import TensorPlace, UnrolledTask
from examples.large.shape import Shape

__all__ = ["Scheduled", "moved_nbytes", "schedule"]


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduled:
    """A schedule, in units of the costs.

    ``makespan`` on the cores given, ``work`` on one core, ``critical`` on any number.
    """

    calls: int
    cores: int
    makespan: float
    work: float
    critical: float

    @property
    def busy_share(self) -> float:
        """Of the cores' time until the last call ends."""
        return self.work / (self.makespan * self.cores)


def schedule(calls: Sequence[UnrolledTask], costs: Sequence[float], cores: int) -> Scheduled:
    """Start each call when its producers are done and a core is free, in the order of the list among those ready."""
    waiting = [len(call.after) for call in calls]
    followers: list[list[int]] = [[] for _ in calls]
    for number, call in enumerate(calls):
        for producer in call.after:
            followers[producer].append(number)
    ready = [number for number, left in enumerate(waiting) if not left]
    heapify(ready)
    longest = [0.0] * len(calls)
    running: list[tuple[float, int]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < cores:
            number = heappop(ready)
            heappush(running, (now + costs[number], number))
        now, done = heappop(running)
        longest[done] += costs[done]
        for follower in followers[done]:
            longest[follower] = max(longest[follower], longest[done])
            waiting[follower] -= 1
            if not waiting[follower]:
                heappush(ready, follower)
    return Scheduled(len(calls), cores, now, sum(costs), max(longest, default=0.0))


def moved_nbytes(call: UnrolledTask, shape: Shape) -> int:
    """Bytes that a call reads and writes: decoding one token a row is bound by memory, so they stand for its time."""
    if call.kernel == "attend":  # the keys and values of the row's context, not of the whole cache
        return 2 * 2 * shape.context * shape.head_dim
    if call.kernel == "kv_append":
        return 4 * 2 * shape.rows * shape.head_dim
    if call.kernel in ("embed", "rope_rows"):  # some rows of a large table
        return 2 * 2 * shape.rows * shape.hidden
    sizes = {"float32": 4, "int32": 4, "uint16": 2}
    total = 0
    for arg in call.args:
        if isinstance(arg, TensorPlace):
            nbytes = sizes[arg.dtype]
            for dim in arg.shape:
                nbytes *= dim
            total += nbytes
    return total
