"""A step's time limit strikes wherever the step is: it ends with `StepTimeout`, and nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from async_orch import Orchestrator, Slot, StepHandle
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import StepTimeout
from async_orch.testing import ManualBackend
from tests.faults.support import assert_balanced, eventually
from tests.unit.test_after import Sums

LIMIT_S = 0.02


class Held(Sums):
    """Stays in the hook named, for the step 9, until the test lets go."""

    def __init__(self, hook: str) -> None:
        super().__init__()
        self.hook = hook
        self.gate = threading.Event()

    def _hold(self, hook: str, step: int) -> None:
        if step == 9 and hook == self.hook:
            self.gate.wait(20)

    def build(self, step: int, image: ByteArray) -> int | None:
        self._hold("build", step)
        return super().build(step, image)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self._hold("launch", step)
        return super().launch(step, slot, stream)

    def collect(self, step: int, output: ByteArray) -> int:
        self._hold("collect", step)
        return super().collect(step, output)


# Where the step 9 is when its limit strikes: the hook that holds it, the steps in front of it, whether it needs the
# first of those, and whether the device runs meanwhile.
STAGES: dict[str, tuple[str, int, bool, bool]] = {
    "queued": ("", 3, False, False),
    "building": ("build", 0, False, True),
    "built": ("", 2, False, False),
    "acquired": ("", 1, True, False),
    "launching": ("launch", 0, False, True),
    "launched": ("", 0, False, False),
    "retiring": ("collect", 0, False, True),
}


@pytest.mark.parametrize("stage", STAGES)
async def test_a_time_limit_strikes_at_each_stage(stage: str) -> None:
    """StepTimeout names the stage; steps in front and behind complete; every lease is back or accounted for."""
    hook, ahead, chained, running = STAGES[stage]
    backend, program = ManualBackend(), Held(hook)
    options: dict[str, Any] = {"slots": 2, "queue_depth": 1, "max_inflight": 8, "drain_timeout_s": 5}
    if hook:
        options[f"{hook}_in"] = "thread"
    async with Orchestrator(program, backend, **options) as orch:
        first = [orch.submit_nowait(i) for i in range(ahead)]
        handle = await orch.submit(9, timeout_s=LIMIT_S, after=first[0] if chained else None)
        await eventually(at_stage(handle, backend, stage, running=running))
        with pytest.raises(StepTimeout, match=f"timed out in {stage} after {LIMIT_S} s"):
            await handle
        program.gate.set()
        behind = await orch.submit(4)
        await eventually(done(behind, backend))
        assert (await behind).output == 4
        for i, earlier in enumerate(first):
            assert (await earlier).output == i
    assert_balanced(orch, quarantined=1 if stage == "building" else 0)


def at_stage(handle: StepHandle[int], backend: ManualBackend, stage: str, *, running: bool) -> Callable[[], bool]:
    """Whether the step is there; lets the device work meanwhile if it shall."""

    def look() -> bool:
        if running:
            backend.run()
        return handle.status == stage or handle.done()

    return look


def done(handle: StepHandle[int], backend: ManualBackend) -> Callable[[], bool]:
    """Whether the step has settled, with the device working."""

    def look() -> bool:
        backend.run()
        return handle.done()

    return look
