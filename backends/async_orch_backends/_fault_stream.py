"""A stream on which a plan's faults strike."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from async_orch.abc import Buffer, Fence, Stream
from async_orch.exceptions import DeviceLost

from ._device_state import DeviceState
from ._software_stream import SoftwareStream

__all__ = ["FaultyStream", "Plan", "Strike"]


class Strike(Protocol):
    """What strikes one operation; `async_orch.testing.FaultPlan` makes them."""

    @property
    def action(self) -> str: ...
    @property
    def on_device(self) -> bool: ...
    @property
    def delay_ns(self) -> int: ...
    @property
    def copied_nbytes(self) -> int: ...
    @property
    def error(self) -> Exception: ...
    @property
    def fence(self) -> Fence | None: ...


class Plan(Protocol):
    """Decides for each operation whether it is struck."""

    def strike(self, operation: Any, stream: str | None = None, /) -> Strike | None: ...


class FaultyStream(Stream):
    """Asks the plan before each operation, and lets the stream behind it do what the plan leaves of it."""

    def __init__(self, stream: SoftwareStream, plan: Plan, device: DeviceState) -> None:
        self.name = stream.name
        self._stream = stream
        self._plan = plan
        self._device = device

    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        strike = self._strike("copy")
        if strike is not None and strike.action == "short_copy":
            self._stream.ranges(dst, src, nbytes, dst_offset, src_offset)
            nbytes = min(nbytes, strike.copied_nbytes)
        elif strike is not None and strike.on_device and strike.action in ("raise", "lose_device"):
            self._fail("copy", strike.error)
            return
        self._stream.copy(dst, src, nbytes, dst_offset=dst_offset, src_offset=src_offset)
        if strike is not None and strike.action == "short_copy":
            self._fail("copy", strike.error)

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        strike = self._strike("launch")
        if strike is not None and strike.on_device and strike.action in ("raise", "lose_device"):
            self._fail("launch", strike.error)
            return
        self._stream.launch(kernel, *args, cost_ns=cost_ns)

    def record(self) -> Fence:
        self._strike("record")
        return self._stream.record()

    def wait(self, fence: Fence) -> None:
        self._strike("wait")
        self._stream.wait(fence)

    def _strike(self, operation: str) -> Strike | None:
        """Do what comes before the operation: raise from the call, delay or hang the stream."""
        strike = self._plan.strike(operation, self.name)
        if strike is None:
            return None
        if strike.action == "delay":
            self._stream.enqueue(_pass, (), strike.delay_ns)
        elif strike.fence is not None:
            self._stream.wait(strike.fence)
        elif not strike.on_device:
            if isinstance(strike.error, DeviceLost):
                self._device.lose(strike.error)
            raise strike.error
        return strike

    def _fail(self, operation: str, error: Exception) -> None:
        """Enqueue work that fails."""
        self._stream.enqueue(_Failing(operation, error), (), 0)

    def isolate(self) -> None:
        self._stream.isolate()

    def idle(self) -> bool:
        return self._stream.idle()

    def synchronize(self, timeout_s: float | None = None) -> None:
        self._stream.synchronize(timeout_s)

    def close(self) -> None:
        self._stream.close()

    @property
    def native(self) -> Any:
        return self._stream


def _pass() -> None:
    """Work that only takes time."""


class _Failing:
    """Work that fails when it runs."""

    __slots__ = ("_error", "_operation")

    def __init__(self, operation: str, error: Exception) -> None:
        self._operation = operation
        self._error = error

    def __call__(self) -> NoReturn:
        raise self._error

    def __repr__(self) -> str:  # names the operation in the fence's error
        return self._operation
