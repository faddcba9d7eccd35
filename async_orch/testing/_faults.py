"""What shall go wrong on the simulated device, and when."""

from __future__ import annotations

import random
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

from async_orch.abc import Fence
from async_orch.exceptions import ConfigurationError, DeviceError, DeviceLost, OutOfDeviceMemory
from async_orch.testing._manual_fence import ManualFence

__all__ = ["Action", "Fault", "FaultPlan", "Operation", "Strike"]

Operation = Literal["alloc", "alloc_host", "copy", "launch", "record", "wait"]
Action = Literal["raise", "delay", "hang", "lose_device", "short_copy", "out_of_memory"]
Where = Literal["call", "device"]

_POSSIBLE: dict[str, tuple[str, ...]] = {
    "alloc": ("raise", "delay", "lose_device", "out_of_memory"),
    "alloc_host": ("raise", "delay", "lose_device", "out_of_memory"),
    "copy": get_args(Action),
    "launch": ("raise", "delay", "hang", "lose_device", "out_of_memory"),
    "record": ("raise", "delay", "hang", "lose_device", "out_of_memory"),
    "wait": ("raise", "delay", "hang", "lose_device", "out_of_memory"),
}
_EITHER_SIDE = ("raise", "lose_device")  # of a copy or launch: the call may fail, or the work when it runs
_ON_DEVICE = ("delay", "hang", "short_copy")
_STREAMS = ("copy", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong. Without ``nth`` and ``probability`` it strikes every time.

    Attributes
    ----------
    action:
        ``"raise"``: fail with ``error``. ``"delay"``: ``delay_ns`` pass first. ``"hang"``: the stream stops there until
        `FaultPlan.release`. ``"lose_device"``: `DeviceLost`, and everything fails until the backend's ``reset``.
        ``"short_copy"``: only ``copied_nbytes`` are copied, then the copy fails. ``"out_of_memory"``: the call raises
        `OutOfDeviceMemory`.
    operation:
        ``"alloc"``, ``"alloc_host"``, ``"copy"``, ``"launch"``, ``"record"`` or ``"wait"``.
    stream:
        Only operations on streams of this name, ``"copy"`` or ``"compute"``; None for all.
    nth:
        Only the n-th such operation since the plan was made, counted from 1.
    probability:
        Each such operation is struck with this probability, drawn from the plan's seed.
    where:
        For ``"raise"`` and ``"lose_device"`` at a copy or launch: whether the ``"call"`` raises, or the work fails on
        the ``"device"`` (default) and with it its fences. Other operations fail in the call.
    delay_ns, copied_nbytes, error:
        As said under ``action``. ``error`` is a class that takes a message.

    Raises `ConfigurationError` for an argument of a wrong type or name, and for a combination that cannot be.
    """

    action: Action
    operation: Operation
    stream: str | None = None
    nth: int | None = None
    probability: float | None = None
    where: Where | None = None
    delay_ns: int = 1_000_000
    copied_nbytes: int = 0
    error: type[Exception] = DeviceError

    def __post_init__(self) -> None:
        self._check_each()
        possible = _POSSIBLE[self.operation]
        if self.action not in possible:
            raise ConfigurationError(
                f"action={self.action!r} is not possible at {self.operation!r}; possible are {', '.join(possible)}"
            )
        if self.stream is not None and self.operation.startswith("alloc"):
            raise ConfigurationError(f"stream={self.stream!r} makes no sense for {self.operation!r}")
        if self.nth is not None and self.probability is not None:
            raise ConfigurationError(f"give nth={self.nth} or probability={self.probability}, not both")
        if self.nth is not None and self.nth < 1:
            raise ConfigurationError(f"nth={self.nth} must be >= 1: operations are counted from 1")
        if self.probability is not None and not 0 <= self.probability <= 1:
            raise ConfigurationError(f"probability={self.probability} must be from 0 to 1")
        for name in ("delay_ns", "copied_nbytes"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be >= 0")
        if self.where is not None and (self.action not in _EITHER_SIDE or self.operation not in ("copy", "launch")):
            raise ConfigurationError(
                f"where={self.where!r} is for 'raise' and 'lose_device' at a copy or launch, "
                f"not for {self.action!r} at {self.operation!r}"
            )

    def _check_each(self) -> None:
        """Names and types, each argument for itself."""
        _require_one_of("operation", self.operation, tuple(_POSSIBLE))
        _require_one_of("action", self.action, get_args(Action))
        if self.stream is not None:
            _require_one_of("stream", self.stream, _STREAMS, "; None is for both")
        if self.where is not None:
            _require_one_of("where", self.where, get_args(Where), "; None is for 'device'")
        if self.nth is not None:
            _require_int("nth", self.nth)
        chance = self.probability
        if chance is not None and (isinstance(chance, bool) or not isinstance(chance, int | float)):
            raise ConfigurationError(f"probability={chance!r} must be a number from 0 to 1")
        _require_int("delay_ns", self.delay_ns)
        _require_int("copied_nbytes", self.copied_nbytes)
        _require_error(self.error)

    @property
    def on_device(self) -> bool:
        """Whether it strikes when the work runs rather than when it is enqueued."""
        if self.action in _EITHER_SIDE:
            return self.operation in ("copy", "launch") and self.where != "call"
        return self.action in _ON_DEVICE and not self.operation.startswith("alloc")


def _require_one_of(name: str, value: object, known: tuple[str, ...], more: str = "") -> None:
    if not isinstance(value, str) or value not in known:
        raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(known)}{more}")


def _require_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name}={value!r} must be an int, not {type(value).__name__}")


def _require_error(error: object) -> None:
    """Refuse what could not be raised when the fault strikes, far from where it was written."""
    if not isinstance(error, type) or not issubclass(error, Exception):
        raise ConfigurationError(f"error={error!r} must be a class of exceptions, such as RuntimeError")
    try:
        error("planned fault")
    except Exception as exc:
        raise ConfigurationError(
            f"error={error.__qualname__} must take a message as its only argument: {type(exc).__name__}: {exc}"
        ) from exc


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that strikes one operation now: what a backend needs to know of it.

    Attributes
    ----------
    action, on_device, delay_ns, copied_nbytes:
        As in `Fault`.
    error:
        A fresh exception to raise.
    fence:
        For ``"hang"``: done once the plan is released.
    """

    action: Action
    on_device: bool
    delay_ns: int
    copied_nbytes: int
    error: Exception
    fence: Fence | None


class FaultPlan:
    """Faults for a simulated device: ``open_backend("sim:instant", faults=FaultPlan(Fault(...), seed=3))``.

    The same faults, seed and sequence of operations give the same strikes. Where several faults would strike one
    operation, the first of them does; each counts its own operations. Streams that a backend adopts are not struck.

    Attributes
    ----------
    struck:
        How often each pair of operation and action was struck.
    """

    def __init__(self, *faults: Fault, seed: int = 0) -> None:
        for fault in faults:
            if not isinstance(fault, Fault):
                raise ConfigurationError(f"{fault!r} is a {type(fault).__name__}, not a Fault; give FaultPlan(*faults)")
        _require_int("seed", seed)
        self.faults = faults
        self.seed = seed
        self.struck: Counter[tuple[Operation, Action]] = Counter()
        self._seen = [0] * len(faults)
        # A generator for each fault: adding one does not change when the others strike.
        self._random = [random.Random(f"{seed}/{index}") for index in range(len(faults))]
        self._hanging: list[ManualFence] = []
        self._lock = threading.Lock()

    @property
    def hanging(self) -> int:
        """Operations that hang now."""
        return sum(not fence.query() for fence in self._hanging)

    def release(self) -> None:
        """Let everything that hangs go on. What the plan strikes later hangs anew."""
        with self._lock:
            hanging, self._hanging = self._hanging, []
        for fence in hanging:
            fence.finish()

    def strike(self, operation: Operation, stream: str | None = None) -> Strike | None:
        """Count an operation; what strikes it, if anything does. For backends."""
        with self._lock:
            struck: Fault | None = None
            for index, fault in enumerate(self.faults):
                if fault.operation != operation or fault.stream not in (None, stream):
                    continue
                self._seen[index] += 1
                if self._falls_on(index, fault) and struck is None:
                    struck = fault
            if struck is None:
                return None
            self.struck[operation, struck.action] += 1
            fence = ManualFence() if struck.action == "hang" else None
            if fence is not None:
                self._hanging.append(fence)
        return Strike(
            struck.action,
            struck.on_device,
            struck.delay_ns,
            struck.copied_nbytes,
            _error_of(struck, stream),
            fence,
        )

    def _falls_on(self, index: int, fault: Fault) -> bool:
        if fault.nth is not None:
            return self._seen[index] == fault.nth
        return fault.probability is None or self._random[index].random() < fault.probability

    def __repr__(self) -> str:
        return f"<FaultPlan of {len(self.faults)}, seed {self.seed}, struck {self.struck.total()} times>"


def _error_of(fault: Fault, stream: str | None) -> Exception:
    place = fault.operation if stream is None else f"{fault.operation} on stream {stream!r}"
    what = f"planned fault {fault.action!r} at {place}"
    if fault.action == "lose_device":
        return DeviceLost(what)
    if fault.action == "out_of_memory":
        return OutOfDeviceMemory(what)
    if fault.action == "short_copy":
        return fault.error(f"{what}: only {fault.copied_nbytes} B were copied")
    return fault.error(what)
