"""Backend ``sim``: a device whose operations take the time that a profile says.

Time is a schedule. An operation starts when it was enqueued, what it depends on has ended and its stream is free,
whichever is last; it ends its cost later, and no fence shows before that. Its effect on memory is real and happens
at the start; an effect that takes longer than the cost moves the end.

With ``clock="real"`` a stream is a thread that sleeps and, for the last stretch, spins yielding the GIL. With
``clock="virtual"`` it is a schedule on the event loop's clock, for tests on a loop whose clock jumps.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from async_orch.abc import Buffer, DeviceInfo, Fence
from async_orch.exceptions import ConfigurationError, DeviceError

from ._device_state import DeviceState
from ._memory import PAGE_NBYTES, physical_nbytes, touch_pages
from ._operations import Work
from ._software_backend import SoftwareBackend
from ._software_fence import DoneFence, PendingFence
from ._software_stream import SoftwareStream
from ._stream_worker import SPIN_NS, StreamWorker
from ._timeline import Timeline
from ._virtual_stream import VirtualWorker
from .sim_profile import SimProfile, load_profile

__all__ = ["SimBackend", "open_backend"]


class SimBackend(SoftwareBackend):
    """A simulated device.

    Parameters
    ----------
    profile:
        The costs.
    clock:
        ``"real"`` or ``"virtual"``.
    loop:
        The loop whose clock virtual time follows; by default the one that runs at first use.

    An allocation blocks the caller for its cost, first touch included. In virtual time, where blocking a loop
    would let no time pass, it moves the backend's clock ahead instead, as if the host were busy.
    """

    def __init__(
        self,
        profile: SimProfile,
        *,
        clock: Literal["real", "virtual"] = "real",
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if clock not in ("real", "virtual"):
            raise ConfigurationError(f"clock must be 'real' or 'virtual', not {clock!r}")
        if loop is not None and clock == "real":
            raise ConfigurationError("loop= is for clock='virtual'")
        info = DeviceInfo(
            backend="sim",
            device=profile.name,
            support=profile.support,
            alignment_nbytes=PAGE_NBYTES,
            pinned=True,
            alloc_visibility="all",
            device_clock="device",
            memory_nbytes=physical_nbytes() if profile.memory_nbytes is None else profile.memory_nbytes,
        )
        super().__init__(info, huge_pages=True)
        self.profile = profile
        self._timeline = Timeline(loop) if clock == "virtual" else None
        self._alloc_costs = _Costs(profile, "alloc")

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        start_ns = time.monotonic_ns()
        buffer = super().alloc(nbytes, name=name)
        cost_ns = self._alloc_costs.alloc_ns(nbytes)
        if cost_ns and self._timeline is not None:
            self._timeline.advance(cost_ns)
        elif cost_ns:
            touch_pages(buffer)  # within the cost, which includes it
            _sleep_until(start_ns + cost_ns)
        return buffer

    def clock_source(self) -> Callable[[], int]:
        return time.monotonic_ns if self._timeline is None else self._timeline.now_ns

    def clock_ns(self) -> int:
        return time.monotonic_ns() if self._timeline is None else self._timeline.now_ns()

    def _make_stream(self, name: str) -> SoftwareStream:
        timeline = self._timeline
        costs = _Costs(self.profile, name)
        if timeline is None:
            worker = partial(_TimedWorker, name, self._device)
            return SoftwareStream(name, self._device, worker, clock_ns=time.monotonic_ns, costs=costs)
        virtual = partial(VirtualWorker, name, self._device, timeline)
        return SoftwareStream(name, self._device, virtual, clock_ns=timeline.now_ns, costs=costs)


class _Costs:
    """A profile's costs with jitter, drawn in the order of the calls."""

    __slots__ = ("_jitter", "_profile", "_random", "free")

    def __init__(self, profile: SimProfile, purpose: str) -> None:
        self._profile = profile
        self._jitter = profile.jitter
        self._random = random.Random(f"{profile.seed}/{purpose}")  # one per stream: threads do not mix the draws
        self.free = profile.streams_are_free

    def alloc_ns(self, nbytes: int) -> int:
        return self._vary(self._profile.alloc_ns(nbytes))

    def copy_ns(self, nbytes: int) -> int:
        return self._vary(self._profile.copy_ns(nbytes))

    def launch_ns(self, cost_ns: int | None) -> int:
        if cost_ns is not None and cost_ns < 0:
            raise DeviceError(f"cost_ns must not be negative, got {cost_ns}")
        return self._vary(self._profile.launch_ns + (self._profile.kernel_ns if cost_ns is None else cost_ns))

    def _vary(self, cost_ns: int) -> int:
        if not self._jitter or not cost_ns:
            return cost_ns
        return round(cost_ns * self._random.uniform(1 - self._jitter, 1 + self._jitter))


class _TimedWorker(StreamWorker):
    """A stream's thread that keeps to the schedule.

    The schedule does not contain how late the thread woke up, so lateness does not add up over many operations.
    """

    __slots__ = ("_free_ns",)

    def __init__(self, name: str, device: DeviceState) -> None:
        super().__init__(name, device)
        self._free_ns = 0

    def _perform(self, work: Work) -> None:
        effect, args, cost_ns, enqueue_ns = work
        start_ns = max(enqueue_ns, self._free_ns)
        began_ns = time.monotonic_ns()
        try:
            effect(*args)
        finally:
            self._free_ns = start_ns + max(cost_ns, time.monotonic_ns() - began_ns)
            self._pause_until(self._free_ns)

    def _reach(self, fence: PendingFence) -> int:
        self._free_ns = max(self._free_ns, fence.enqueue_ns)
        return self._free_ns

    def _passed(self, fence: Fence) -> None:
        reached_ns = fence.time_ns() if isinstance(fence, DoneFence | PendingFence) else None
        self._free_ns = max(self._free_ns, time.monotonic_ns() if reached_ns is None else reached_ns)


def _sleep_until(end_ns: int) -> None:
    """Block the calling thread until ``end_ns`` of CLOCK_MONOTONIC, never less."""
    while (rest_ns := end_ns - time.monotonic_ns()) > 0:
        time.sleep(max(rest_ns - SPIN_NS, 0) / 1e9)


def open_backend(target: str | None = None, *, clock: str = "real", **options: Any) -> SimBackend:
    """Open ``sim`` with the profile that ``target`` names: one that is shipped, or a path ending in ``.json``.

    ``clock="virtual"`` follows the running event loop's clock instead of real time. Raises `BackendUnavailable`
    for an unknown profile and `ConfigurationError` for a broken one or an unknown option.
    """
    if options:
        raise ConfigurationError(f"backend 'sim' takes the option 'clock' only, got {', '.join(sorted(options))}")
    if clock == "virtual":
        return SimBackend(load_profile(target), clock="virtual")
    if clock != "real":
        raise ConfigurationError(f"clock must be 'real' or 'virtual', not {clock!r}")
    return SimBackend(load_profile(target))
