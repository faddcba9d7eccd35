"""``sim:adversary``: a device that is correct, and as unkind as the rules allow to who reuses memory too early."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from async_orch.abc import Buffer, ReuseOrder

from ._costs import ProfileCosts
from ._late import SCRIBBLE, LateStream, LateTimedWorker, LateVirtualWorker, UndefinedBuffers
from ._memory import SoftwareBuffer
from ._sim_backend import SimBackend
from ._software_stream import OrderedWorker, SoftwareStream
from .sim_profile import SimProfile

__all__ = ["AdversaryBackend"]


class AdversaryBackend(SimBackend):
    """A simulated device on which early reuse of memory shows as wrong data.

    - A copy reads its source at the end of its cost, and from its start on its destination holds 0xDD.
    - A kernel runs at the end of its cost. At its start it fills with 0xDD those of its buffer arguments that were
      given back (`released`) and since then have been neither a copy's destination nor a kernel's argument: the
      workspace and the output of a step at its first kernel, never its image or resident memory.
    - A buffer given back is filled with 0xDD at once, and so is fresh device memory.
    - The buffer given back last is used next (``reuse_order`` is ``"lifo"``).
    - With ``upload="delta"`` each differing range is a copy of its own, however dear (``copy_overhead_nbytes`` is 0).

    The shipped profile lets a copy last 20 ms and a kernel 1 ms: a copy takes longer than a rotation of a ring of up to
    16 slots.
    """

    reuse_order: ReuseOrder = "lifo"

    def __init__(self, profile: SimProfile, **options: Any) -> None:
        super().__init__(profile, **options)
        self._undefined = UndefinedBuffers()
        self.copy_overhead_nbytes = 0

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        buffer = super().alloc(nbytes, name=name)
        buffer.array.fill(SCRIBBLE)
        return buffer

    def touch(self, buffer: Buffer) -> None:
        super().touch(buffer)
        buffer.array.fill(SCRIBBLE)

    def released(self, buffer: Buffer) -> None:
        if buffer not in self._buffers:
            return  # memory of somebody else's, that a ring only numbers
        buffer.array.fill(SCRIBBLE)
        if not buffer.is_host:
            self._undefined.add(buffer)

    def _freed(self, buffer: SoftwareBuffer) -> None:
        self._undefined.take(buffer)
        super()._freed(buffer)

    def _make_stream(self, name: str) -> SoftwareStream:
        timeline = self._timeline
        costs = ProfileCosts(self.profile, name)
        worker: Callable[[], OrderedWorker]
        if timeline is None:
            worker = partial(LateTimedWorker, name, self._device)
        else:
            worker = partial(LateVirtualWorker, name, self._device, timeline)
        return LateStream(self._undefined, costs, name, self._device, worker, clock_ns=self.clock_ns)
