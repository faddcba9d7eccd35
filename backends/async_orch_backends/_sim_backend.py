"""The simulated device behind the backend ``sim``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from async_orch.abc import Buffer, DeviceInfo, Stream
from async_orch.exceptions import ConfigurationError, DeviceLost

from ._costs import ProfileCosts
from ._fault_stream import FaultyStream, Plan
from ._memory import PAGE_NBYTES, physical_nbytes, touch_pages
from ._software_backend import SoftwareBackend
from ._software_stream import SoftwareStream
from ._stream_worker import SPIN_NS
from ._timed_worker import TimedWorker
from ._timeline import Timeline
from ._virtual_stream import VirtualWorker
from .sim_profile import SimProfile

__all__ = ["SimBackend"]


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
    faults:
        What shall go wrong, such as an `async_orch.testing.FaultPlan`; None for nothing.
    compute_stream, copy_stream:
        Streams of the caller's, which faults do not strike.

    An allocation blocks the caller for its cost, first touch included. In virtual time, where blocking a loop
    would let no time pass, it moves the backend's clock ahead instead, as if the host were busy.
    """

    def __init__(
        self,
        profile: SimProfile,
        *,
        clock: Literal["real", "virtual"] = "real",
        loop: asyncio.AbstractEventLoop | None = None,
        faults: Plan | None = None,
        compute_stream: Stream | None = None,
        copy_stream: Stream | None = None,
    ) -> None:
        if clock not in ("real", "virtual"):
            raise ConfigurationError(f"clock must be 'real' or 'virtual', not {clock!r}")
        if loop is not None and clock == "real":
            raise ConfigurationError("loop= is for clock='virtual'")
        if faults is not None and not callable(getattr(faults, "strike", None)):
            raise ConfigurationError(f"faults must be an async_orch.testing.FaultPlan, not {type(faults).__name__}")
        info = DeviceInfo(
            backend="sim",
            device=profile.name,
            support=profile.support,
            alignment_nbytes=PAGE_NBYTES,
            pinned=True,
            alloc_visibility="all",
            device_clock="device",
            memory_nbytes=physical_nbytes() if profile.memory_nbytes is None else profile.memory_nbytes,
            assumed=profile.assumptions,
        )
        super().__init__(info, huge_pages=True, compute_stream=compute_stream, copy_stream=copy_stream)
        self.profile = profile
        self.copy_overhead_nbytes = profile.copy_overhead_nbytes
        self.faults = faults
        self._timeline = Timeline(loop) if clock == "virtual" else None
        self._alloc_costs = ProfileCosts(profile, "alloc")

    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        if self.faults is not None:
            self._strike_alloc(self.faults, "alloc")
        start_ns = time.monotonic_ns()
        buffer = super().alloc(nbytes, name=name)
        cost_ns = self._alloc_costs.alloc_ns(nbytes)
        if cost_ns and self._timeline is None:
            touch_pages(buffer)  # within the cost, which includes it
        self._pass_time(start_ns, cost_ns)
        return buffer

    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        if self.faults is not None:
            self._strike_alloc(self.faults, "alloc_host")
        return super().alloc_host(nbytes, name=name)

    def _strike_alloc(self, faults: Plan, operation: str) -> None:
        strike = faults.strike(operation)
        if strike is None:
            return
        if strike.action == "delay":
            self._pass_time(time.monotonic_ns(), strike.delay_ns)
            return
        if isinstance(strike.error, DeviceLost):
            self._device.lose(strike.error)
        raise strike.error

    def _pass_time(self, start_ns: int, cost_ns: int) -> None:
        """Block the caller for ``cost_ns`` from ``start_ns`` on."""
        if cost_ns and self._timeline is not None:
            self._timeline.advance(cost_ns)
        elif cost_ns:
            _sleep_until(start_ns + cost_ns)

    def create_stream(self, name: str) -> Stream:
        stream = super().create_stream(name)
        if self.faults is None or not isinstance(stream, SoftwareStream) or self.adopted(stream):
            return stream
        return FaultyStream(stream, self.faults, self._device)

    def clock_source(self) -> Callable[[], int]:
        return time.monotonic_ns if self._timeline is None else self._timeline.now_ns

    def clock_ns(self) -> int:
        return time.monotonic_ns() if self._timeline is None else self._timeline.now_ns()

    def _make_stream(self, name: str) -> SoftwareStream:
        timeline = self._timeline
        costs = ProfileCosts(self.profile, name)
        if timeline is None:
            worker = partial(TimedWorker, name, self._device)
            return SoftwareStream(name, self._device, worker, clock_ns=time.monotonic_ns, costs=costs)
        virtual = partial(VirtualWorker, name, self._device, timeline)
        return SoftwareStream(name, self._device, virtual, clock_ns=timeline.now_ns, costs=costs)


def _sleep_until(end_ns: int) -> None:
    """Block the calling thread until ``end_ns`` of CLOCK_MONOTONIC, never less."""
    while (rest_ns := end_ns - time.monotonic_ns()) > 0:
        time.sleep(max(rest_ns - SPIN_NS, 0) / 1e9)
