"""What each fault does to its own step, to a step that needs its output, and to one that does not.

``python -m tests.faults.fault_matrix`` prints the table of docs/reliability.md; a test compares the two.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from async_orch import Device, Orchestrator, Slot, StepHandle
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import DeviceLost, OrchError
from tests.faults.support import assert_balanced
from tests.faults.test_after_and_barrier import Fed
from tests.programs import settle

__all__ = ["FAULTS", "POLICIES", "observe", "table"]

POLICIES = ["fail_step", "discard_dependents", "fail_pipeline"]

FAULTS: dict[tuple[str, str], dict[str, Any]] = {
    ("build", "raises"): {},
    ("build", "says more bytes than there are"): {},
    ("build", "hangs, `build_timeout_s`"): {"build_in": "thread", "build_timeout_s": 0.05},
    ("build", "allocates device memory"): {},
    ("feed", "raises"): {},
    ("launch", "raises"): {},
    ("launch", "says more bytes than there are"): {},
    ("launch", "finds the device lost"): {},
    ("kernel", "raises"): {},
    ("kernel", "loses the device"): {},
    ("collect", "raises"): {},
    ("collect", "returns memory of its view"): {},
    ("collect", "hangs, `collect_timeout_s`"): {"collect_in": "thread", "collect_timeout_s": 0.05},
    ("caller", "cancels before the launch"): {},
    ("caller", "cancels after the launch"): {},
    ("clock", "passes `timeout_s` in the build"): {"build_in": "thread"},
}

FAULTY = -1


def lose() -> None:
    """A kernel that takes the device with it."""
    raise DeviceLost("bus error")


def break_down() -> None:
    """A kernel that raises."""
    raise ArithmeticError("kernel")


class Faulty(Fed):
    """The step -1 has the fault; `act` says what happens in the hook."""

    def __init__(self, hook: str, fault: str) -> None:
        super().__init__()
        self.hook, self.fault = hook, fault
        self.release = threading.Event()
        self.cancel: Callable[[], object] = lambda: None

    def open(self, device: Device) -> None:
        super().open(device)
        self.device = device

    def _act(self, hook: str, step: int) -> int | None:
        if step != FAULTY:
            return None
        if hook == self.hook and self.fault == "raises":
            raise ArithmeticError(hook)
        if (hook == self.hook and "hangs" in self.fault) or (hook == "build" and "timeout_s` in" in self.fault):
            self.release.wait(30)
        if hook == self.hook and "allocates" in self.fault and self.device is not None:
            self.device.alloc(64)
        if hook == self.hook and "lost" in self.fault:
            raise DeviceLost("the driver says so")
        if hook == "launch" and self.fault == "cancels after the launch":
            self.cancel()
        return 1 << 20 if hook == self.hook and "more bytes" in self.fault else None

    def build(self, step: int, image: Any) -> int | None:
        super().build(step, image)
        return self._act("build", step)

    def feed(self, step: int, previous: Any, feed: ByteArray) -> int | None:
        self._act("feed", step)
        return super().feed(step, previous, feed)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        used = self._act("launch", step)
        if step == FAULTY and self.hook == "kernel":
            stream.launch(lose if "loses" in self.fault else break_down)
        super().launch(step, slot, stream)
        return used

    def collect(self, step: int, output: ByteArray) -> Any:
        self._act("collect", step)
        if step == FAULTY and "memory of its view" in self.fault:
            return output
        return super().collect(step, output)


async def observe(hook: str, fault: str, policy: Any) -> tuple[str, str, str]:
    """What became of the step with the fault, of one that is fed by it, and of one that has nothing to do with it."""
    program = Faulty(hook, fault)
    options = {"policy": policy, "slots": 4, "queue_depth": 4, "drain_timeout_s": 5.0} | FAULTS[hook, fault]
    async with Orchestrator(program, "host", **options) as orch:
        handles: list[StepHandle[int]] = []
        # The first only gives the faulty one something to be fed with.
        handles.append(await orch.submit(2))
        await handles[0]
        gate = asyncio.Event()
        barrier = asyncio.ensure_future(orch.barrier(gate.wait, rebuild=True))
        await settle()  # it stands: nothing is built before all are accepted
        for step, needs_last in ((FAULTY, True), (3, True), (4, False)):
            limit = 0.05 if step == FAULTY and hook == "clock" else None
            handles.append(orch.submit_nowait(step, after=handles[-1] if needs_last else None, timeout_s=limit))
        program.cancel = handles[1].cancel
        if fault == "cancels before the launch":
            handles[1].cancel()
        gate.set()
        await barrier
        told = [await _told(handle) for handle in handles]
        program.release.set()
    assert told[0] == "completed", told
    if "hangs" not in fault and hook != "clock":
        assert_balanced(orch)
    return told[1], told[2], told[3]


async def _told(handle: StepHandle[int]) -> str:
    try:
        await handle
    except OrchError as exc:
        return type(exc).__name__
    return "completed"


async def table() -> str:
    """The matrix as a Markdown table; each cell: the step itself / one that needs its output / another."""
    lines = ["| hook | fault | " + " | ".join(f"`{policy}`" for policy in POLICIES) + " |", "|---|---|---|---|---|"]
    for hook, fault in FAULTS:
        cells = [" / ".join(await observe(hook, fault, policy)) for policy in POLICIES]
        lines.append(f"| {hook} | {fault} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(asyncio.run(table()))
