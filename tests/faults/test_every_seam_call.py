"""Each call to the backend fails once: each method, each of its calls, each kind of error, inline and in naive mode."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from async_orch import Device, Orchestrator, StepHandle
from async_orch.exceptions import DeviceError, DeviceLost, OrchError, OutOfDeviceMemory
from async_orch.testing import run_virtual
from tests.faults.faulty_backend import FaultyBackend
from tests.faults.support import Records, assert_no_tasks, no_log_thread
from tests.faults.test_after_and_barrier import Fed
from tests.faults.test_cancel_anywhere import make_backend

METHODS = [
    "backend.alloc",
    "backend.alloc_host",
    "backend.touch",
    "backend.create_stream",
    "backend.close_stream",
    "buffer.free",
    "fence.time_ns",
    *(f"{stream}.{call}" for stream in ("copy", "compute") for call in ("copy", "record", "isolate")),
    "compute.launch",
    "compute.wait",
]
ERRORS: list[type[DeviceError]] = [DeviceError, DeviceLost, OutOfDeviceMemory]
STEPS = 5


class Resident(Fed):
    """Allocates in open as well."""

    def open(self, device: Device) -> None:
        super().open(device)
        device.alloc(64, name="weights")


async def trial(method: str, nth: int, error: BaseException | None, mode: Any) -> FaultyBackend:
    """Some chained and some single steps with one failing call in between; checks what is left."""
    inner = make_backend("sim")
    backend, records = FaultyBackend(inner, method, nth, error), Records()  # type: ignore[arg-type] # it is a sim
    orch = Orchestrator(Resident(), backend, slots=2, queue_depth=1, mode=mode, step_log=records, drain_timeout_s=5.0)
    handles: list[StepHandle[int]] = []
    entered = False
    with suppress(DeviceError), no_log_thread():
        async with orch:
            entered = True
            with suppress(OrchError):
                for i in range(STEPS):
                    handles.append(await orch.submit(i, after=handles[-1] if i in (1, 2) else None))
            for i, handle in enumerate(handles):
                with suppress(OrchError):
                    assert (await handle).output == i * i
    lost_nbytes = 0
    if entered:
        statistics = orch.statistics()
        assert statistics.submitted == len(handles) == len(records), statistics
        assert statistics.pending == statistics.slots_leased == statistics.staging_leased == 0, statistics
        records.assert_one_a_step(len(handles))
        if error is None:
            assert statistics.completed == STEPS
        lost_nbytes = statistics.slots_quarantined + statistics.staging_quarantined
    if not lost_nbytes:
        assert backend.live == [], backend.live
    assert inner.allocated_nbytes == sum(b.nbytes for b in backend.live if not b.is_host)
    inner.close()
    assert_no_tasks()
    return backend


@pytest.mark.parametrize("mode", ["pipelined", "naive"])
@pytest.mark.parametrize("method", METHODS)
def test_any_call_of_a_backend_may_fail(method: str, mode: str) -> None:
    """Every handle settles, results are right, each step has one record, and what is accounted for is free."""

    async def main() -> None:
        calls = (await trial("", 0, None, mode)).calls[method]
        assert calls > 0
        for kind in ERRORS:
            for nth in range(1, calls + 1):
                await trial(method, nth, kind(f"{method} {nth}"), mode)

    run_virtual(main())
