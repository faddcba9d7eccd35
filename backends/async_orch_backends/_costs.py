"""A profile's costs with jitter, drawn in the order of the calls."""

from __future__ import annotations

import random

from async_orch.exceptions import DeviceError

from .sim_profile import SimProfile

__all__ = ["ProfileCosts"]


class ProfileCosts:
    """What a profile says that each operation of one ``purpose`` (a stream's name, ``"alloc"``) costs."""

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
