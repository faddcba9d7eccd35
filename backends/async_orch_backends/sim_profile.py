"""Profiles of simulated devices: what each operation costs, and where each figure is from.

A profile is a JSON object. Each figure is a number, or an object that also says where the number is from::

    {
      "name": "my-device",
      "calibrated_to": "my vendor's report of 2026-03",
      "copy_bytes_per_s": {"value": 12e9, "claim": "measured", "source": "the report, table 2"},
      "kernel_ns": {"value": 5000000, "claim": "assumed", "note": "no figure published"}
    }

Durations are nanoseconds, rates bytes per second; a rate of null costs nothing. ``jitter`` is the largest relative
deviation of a cost, drawn uniformly from a generator seeded with ``seed``.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from async_orch.exceptions import BackendUnavailable, ConfigurationError

__all__ = ["SimProfile", "load_profile"]

_DURATIONS = ("alloc_fixed_ns", "copy_fixed_ns", "launch_ns", "kernel_ns")
_RATES = ("alloc_bytes_per_s", "copy_bytes_per_s")
_TEXTS = ("name", "calibrated_to")
_FREE_FORM = ("notes",)
_CLAIMS = ("measured", "derived", "assumed")
_LARGEST_NS = 10**15  # eleven days: more is a unit mixed up
_LARGEST_RATE = 1e18
_FREE_NBYTES = 2**60


@dataclass(frozen=True, slots=True)
class SimProfile:
    """Costs of a simulated device.

    Attributes
    ----------
    name:
        Shows as the device's name.
    calibrated_to:
        The report that the figures were fitted to, None if they are made up.
    alloc_fixed_ns, alloc_bytes_per_s:
        An allocation blocks the host for ``alloc_fixed_ns + nbytes / alloc_bytes_per_s``, first touch included.
    copy_fixed_ns, copy_bytes_per_s:
        Duration of a copy on its stream, by the same formula.
    launch_ns, kernel_ns:
        A launch occupies its stream for ``launch_ns + kernel_ns``; its own ``cost_ns`` replaces ``kernel_ns``.
    jitter, seed:
        Each cost is multiplied by a number drawn uniformly from 1 - jitter to 1 + jitter.
    memory_nbytes:
        Size of the device's memory, None for that of this machine.
    adversary:
        Whether operations take effect as late as they may, and memory given back is scribbled over.
    assumed:
        Names of the figures that the profile claims no source for (``"claim": "assumed"``).
    """

    name: str
    calibrated_to: str | None = None
    alloc_fixed_ns: int = 0
    alloc_bytes_per_s: float | None = None
    copy_fixed_ns: int = 0
    copy_bytes_per_s: float | None = None
    launch_ns: int = 0
    kernel_ns: int = 0
    jitter: float = 0.0
    seed: int = 0
    memory_nbytes: int | None = None
    adversary: bool = False
    assumed: tuple[str, ...] = ()

    @property
    def support(self) -> str:
        """The claim of support in the words of `async_orch.abc.DeviceInfo`."""
        return "tested against a fake" if self.calibrated_to is None else f"calibrated to {self.calibrated_to}"

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is assumed, with its value, as ``"kernel_ns 36.8 ms"``; what costs something comes first."""
        values = [(name, getattr(self, name) or 0) for name in self.assumed]
        values.sort(key=lambda pair: not pair[1])
        return tuple(
            f"{name} {value / 1e6:g} ms" if value and name in _DURATIONS else f"{name} {value:g}"
            for name, value in values
        )

    @property
    def copy_overhead_nbytes(self) -> int:
        """Bytes that are copied in the time of ``copy_fixed_ns``; where bytes cost nothing, more than any image has."""
        if not self.copy_fixed_ns:
            return 0
        if self.copy_bytes_per_s is None:
            return _FREE_NBYTES
        return min(round(self.copy_fixed_ns * self.copy_bytes_per_s / 1e9), _FREE_NBYTES)

    @property
    def streams_are_free(self) -> bool:
        """Whether no operation on a stream takes time."""
        return (self.copy_fixed_ns, self.copy_bytes_per_s, self.launch_ns, self.kernel_ns) == (0, None, 0, 0)

    def alloc_ns(self, nbytes: int) -> int:
        """Duration of an allocation of ``nbytes`` with its first touch."""
        return self.alloc_fixed_ns + _transfer_ns(nbytes, self.alloc_bytes_per_s)

    def copy_ns(self, nbytes: int) -> int:
        """Duration of a copy of ``nbytes``."""
        return self.copy_fixed_ns + _transfer_ns(nbytes, self.copy_bytes_per_s)

    @classmethod
    def from_json(cls, text: str | bytes, where: str) -> SimProfile:
        """Read a profile; ``where`` names it in errors. Raises `ConfigurationError` naming the key at fault."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as exc:  # a ValueError also for text that is not UTF-8
            raise ConfigurationError(f"profile {where} is not JSON: {exc}") from exc
        if not isinstance(raw, dict):
            raise ConfigurationError(f"profile {where} must be a JSON object, not {type(raw).__name__}")
        known = (*_TEXTS, *_DURATIONS, *_RATES, "jitter", "seed", "memory_nbytes", "adversary", *_FREE_FORM)
        for key in raw:
            if key not in known:
                raise ConfigurationError(f"profile {where}: unknown key {key!r}; known are {', '.join(known)}")
        values: dict[str, Any] = {"name": Path(where).stem}
        for key in _TEXTS:
            if key in raw:
                values[key] = _text(raw[key], key, where)
        for key in _DURATIONS:
            if key in raw:
                values[key] = round(_number(_figure(raw[key], key, where), key, where, 0, _LARGEST_NS))
        for key in _RATES:
            value = _figure(raw.get(key), key, where)
            if value is not None:
                values[key] = _number(value, key, where, 1, _LARGEST_RATE)
        if "jitter" in raw:
            values["jitter"] = float(_number(_figure(raw["jitter"], "jitter", where), "jitter", where, 0, 1))
        for key in ("seed", "memory_nbytes"):
            value = raw.get(key)
            if value is not None:
                if not isinstance(value, int):
                    raise ConfigurationError(f"profile {where}: {key} must be a whole number, got {value!r}")
                values[key] = int(_number(value, key, where, 0, 2**63))
        if "adversary" in raw:
            if not isinstance(raw["adversary"], bool):
                raise ConfigurationError(f"profile {where}: adversary must be true or false, got {raw['adversary']!r}")
            values["adversary"] = raw["adversary"]
        values["assumed"] = tuple(
            key for key, figure in raw.items() if isinstance(figure, dict) and figure.get("claim") == "assumed"
        )
        return cls(**values)


def load_profile(target: str | None) -> SimProfile:
    """Find the profile that ``sim:target`` names: a file if it ends in ``.json``, else one that is shipped.

    Raises `BackendUnavailable` if there is none and `ConfigurationError` if it cannot be used.
    """
    name = target or "instant"
    if name.endswith(".json"):
        try:
            return SimProfile.from_json(Path(name).read_bytes(), name)
        except OSError as exc:
            raise BackendUnavailable(f"cannot read profile {name}: {exc.strerror or exc}") from exc
    shipped = resources.files(__package__ or "async_orch_backends") / "profiles"
    for entry in shipped.iterdir():
        if entry.name == f"{name}.json":
            return SimProfile.from_json(entry.read_bytes(), entry.name)
    names = sorted(entry.name.removesuffix(".json") for entry in shipped.iterdir())
    raise BackendUnavailable(
        f"no profile {name!r} for backend 'sim'; shipped are {', '.join(names)}; a file of yours must end in .json"
    )


def _transfer_ns(nbytes: int, bytes_per_s: float | None) -> int:
    return 0 if bytes_per_s is None else round(nbytes * 1e9 / bytes_per_s)


def _text(value: object, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"profile {where}: {key} must be a non-empty string, got {value!r}")
    return value


def _figure(value: object, key: str, where: str) -> object:
    """The number of a figure, after checking that a claim about it comes with what backs it."""
    if not isinstance(value, dict):
        return value
    for part in value:
        if part not in ("value", "claim", "note", "source"):
            raise ConfigurationError(f"profile {where}: {key} has unknown part {part!r}")
    if "value" not in value:
        raise ConfigurationError(f"profile {where}: {key} has no 'value'")
    claim = value.get("claim", "assumed")
    if claim not in _CLAIMS:
        raise ConfigurationError(f"profile {where}: claim of {key} must be one of {', '.join(_CLAIMS)}, got {claim!r}")
    backing = "note" if claim == "assumed" else "source"
    if claim != "assumed" or "claim" in value:
        _text(value.get(backing), f"{backing} of {key}, which is {claim},", where)
    return value["value"]


def _number(value: object, key: str, where: str, least: float, most: float) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigurationError(f"profile {where}: {key} must be a finite number, got {value!r}")
    if not least <= value <= most:
        raise ConfigurationError(f"profile {where}: {key} must be from {least:g} to {most:g}, got {value!r}")
    return value
