"""Delta uploads under fire: the device's image is the step's, whatever came before in that slot.

The results are what kernels read from the device, on `sim:adversary` at the latest moment and from memory that is
scribbled over whenever that is allowed.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_orch import Orchestrator, open_backend
from async_orch import _uploads as uploads
from async_orch.exceptions import DeviceError
from async_orch.testing import run_virtual
from tests.uploads import Mirror
from tests.uploads_under_fire import plan_for, run

EXAMPLES = 400 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 40


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 30), slots=st.integers(1, 3), grows=st.booleans(), mode=st.sampled_from(["ring", None]))
def test_the_device_has_every_image_whole(seed: int, slots: int, grows: bool, mode: str | None) -> None:
    """On the adversary, in virtual time: after any sequence of steps, faults and cancels a kernel has its own image."""

    async def main() -> int:
        backend = open_backend("sim:adversary", clock="virtual", faults=plan_for(seed))
        try:
            at = "slot" if grows else "fixed"
            options = {} if mode is None else {"mode": mode}
            return await run(
                backend, seed, 40, grows=grows, image_at=("slot", at), slots=slots, upload="delta", **options
            )
        finally:
            backend.close()

    assert run_virtual(main()) > 0


@pytest.mark.parametrize("name", ["sim:instant", "host"])
@pytest.mark.parametrize("seed", range(10 if EXAMPLES > 100 else 3))
async def test_so_it_has_when_the_thread_compares(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in real time with every comparison on its thread, also with kernels and builds on threads."""
    monkeypatch.setattr(uploads, "INLINE_NBYTES", 0)
    options: dict[str, Any] = {"faults": plan_for(seed)} if name.startswith("sim") else {}
    backend = open_backend(name, **options)
    threads: dict[str, Any] = {"build_in": "thread", "build_workers": 2, "launch_in": "thread"} if seed % 2 else {}
    at = ("slot", "fixed" if seed % 3 == 1 else "slot")
    assert await run(backend, seed, 150, grows=seed % 3 == 2, image_at=at, upload="delta", **threads) > 0
    backend.close()


async def test_alike_images_are_worth_it() -> None:
    """Of a thousand small edits a fraction of the bytes is copied."""
    backend = open_backend("sim:instant")
    image, chance, copied = bytearray(64_000), random.Random(0), list[int]()

    def count(record: Any) -> None:
        copied.append(record.copy_nbytes)

    async with Orchestrator(Mirror(64_000), backend, slots=2, upload="delta", step_log=count) as orch:
        for _ in range(1_000):
            image[chance.randrange(64_000)] ^= 1
            assert (await orch.run(bytes(image))).output == bytes(image)
    assert sum(copied) == 2 * 64_000 + sum(copied[2:])
    assert sum(copied[2:]) / 998 <= 128, "two blocks a step: the one changed now, and the one before in the other slot"
    backend.close()


def test_a_shadow_that_is_believed_too_early_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with copies taken for good that were not is caught: the proof can fail."""
    monkeypatch.setattr("async_orch._delta.Shadow.settle", _believe)

    async def main(seed: int) -> None:
        backend = open_backend("sim:adversary", clock="virtual", faults=plan_for(seed))
        try:
            await run(backend, seed, 60, slots=1, upload="delta")
        finally:
            backend.close()

    with pytest.raises(AssertionError):
        for seed in range(20):
            run_virtual(main(seed))


def _believe(shadow: Any) -> None:
    shadow._known_nbytes = max(shadow._known_nbytes, shadow._hoped_nbytes)


def test_the_faults_strike() -> None:
    """The plan does what the proof relies on."""
    plan = plan_for(3)
    assert {fault.action for fault in plan.faults} >= {"raise", "short_copy", "lose_device"}
    assert issubclass(plan.faults[0].error, DeviceError)
