"""Operations that take effect as late as they may: what makes early reuse of memory visible.

A copy reads its source, and a kernel runs, at the end of its cost; from the start on, what it will write holds
`SCRIBBLE`. On a real device both happen somewhere in between, mostly early enough to hide the mistake.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from async_orch.abc import Buffer, ByteArray

from ._operations import Work
from ._software_stream import Costs, SoftwareStream, as_kernel
from ._timed_worker import TimedWorker
from ._virtual_stream import VirtualWorker

__all__ = ["SCRIBBLE", "LateStream", "LateTimedWorker", "LateVirtualWorker", "UndefinedBuffers"]

SCRIBBLE = 0xDD
"""What memory holds whose contents nobody may rely on."""


class UndefinedBuffers:
    """Device buffers that were given back and not written since, by any copy or kernel enqueued."""

    def __init__(self) -> None:
        self._buffers: set[Buffer] = set()

    def add(self, buffer: Buffer) -> None:
        self._buffers.add(buffer)

    def take(self, buffer: Buffer) -> bool:
        """Whether the buffer was undefined; from now on it is not."""
        if buffer in self._buffers:
            self._buffers.discard(buffer)
            return True
        return False


class _LateEffect:
    """A copy or kernel, and the memory to scribble over at its start."""

    __slots__ = ("_effect", "_targets")

    def __init__(self, effect: Callable[..., object], targets: list[ByteArray]) -> None:
        self._effect = effect
        self._targets = targets

    def begin(self) -> None:
        for target in self._targets:
            target.fill(SCRIBBLE)

    def __call__(self, *args: Any) -> None:
        self._effect(*args)

    def __repr__(self) -> str:  # names the operation in errors
        return getattr(self._effect, "__qualname__", None) or repr(self._effect)


class LateStream(SoftwareStream):
    """A stream whose operations take effect at the end of their cost. Needs a late worker.

    A copy scribbles over its destination at its start, a kernel over those of its buffer arguments that are
    undefined: given back by the engine, and since then neither a copy's destination nor a kernel's argument. So the
    first kernel of a step finds workspace and output scribbled, and the second finds what the first left there.
    """

    def __init__(self, undefined: UndefinedBuffers, costs: Costs, *args: Any, **options: Any) -> None:
        super().__init__(*args, costs=costs, **options)
        self._undefined = undefined
        self._late_costs = costs

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        target, source = self.ranges(dst, src, nbytes, dst_offset, src_offset)
        self.enqueue(_LateEffect(np.copyto, [target]), (target, source), self._late_costs.copy_ns(nbytes))
        self._undefined.take(dst)

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        arrays = as_kernel(kernel, args)
        targets = [arg.array for arg in args if isinstance(arg, Buffer) and self._undefined.take(arg)]
        self.enqueue(_LateEffect(kernel, targets), arrays, self._late_costs.launch_ns(cost_ns))


class LateTimedWorker(TimedWorker):
    """In real time: the effect comes when the cost has passed, and not at all if the stream stops before."""

    __slots__ = ()

    def _perform(self, work: Work) -> None:
        effect, args, cost_ns, enqueue_ns = work
        if not isinstance(effect, _LateEffect):
            super()._perform(work)
            return
        end_ns = max(enqueue_ns, self._free_ns) + cost_ns
        try:
            effect.begin()
            self._pause_until(end_ns)
            if not self._halted() and self.device.lost is None:
                effect(*args)
        finally:
            self._free_ns = max(end_ns, time.monotonic_ns())


class LateVirtualWorker(VirtualWorker):
    """In virtual time: the start and the end of an operation are two events of the schedule."""

    __slots__ = ()

    def _perform(self, effect: Callable[..., object], args: tuple[Any, ...], cost_ns: int, enqueue_ns: int) -> bool:
        if not isinstance(effect, _LateEffect):
            return super()._perform(effect, args, cost_ns, enqueue_ns)
        self._free_ns = max(self._free_ns, enqueue_ns) + cost_ns
        try:
            effect.begin()
        except Exception as exc:  # noqa: BLE001 - memory that cannot be written is the operation's failure
            self.fail(effect, exc)
        self.timeline.at(self._free_ns, lambda: self._end(effect, args))
        return True

    def _end(self, effect: _LateEffect, args: tuple[Any, ...]) -> None:
        if self._stopping:
            return
        if self.error is None and self.device.lost is None:
            self.apply(effect, args)
        self._run()
