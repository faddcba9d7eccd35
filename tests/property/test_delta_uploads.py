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
from async_orch.exceptions import DeviceError, DeviceLost, OrchError
from async_orch.testing import Fault, FaultPlan, leak_check, run_virtual
from tests.uploads import Mirror

EXAMPLES = 400 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 40
NBYTES = 2_000


class Images:
    """Images that are much alike, and now and then not at all; sizes grow and shrink."""

    def __init__(self, seed: int, largest_nbytes: int) -> None:
        self.random = random.Random(seed)
        self._image = bytearray(largest_nbytes)
        self._used = NBYTES

    def next(self) -> bytes:
        """One more image, never the same twice."""
        chance = self.random
        if chance.random() < 0.1:
            self._image[:] = chance.randbytes(len(self._image))
        for _ in range(chance.choice((0, 1, 3, 10))):
            self._image[chance.randrange(self._used)] = chance.randrange(256)
        if chance.random() < 0.3:
            self._used = chance.randint(8, len(self._image) if chance.random() < 0.2 else NBYTES)
        self._image[:8] = chance.randbytes(8)
        return bytes(self._image[: self._used])


def plan_for(seed: int) -> FaultPlan:
    """Copies and launches that fail in the call or on the device, copies that end half-way."""
    return FaultPlan(
        Fault(action="raise", operation="copy", stream="copy", probability=0.04),
        Fault(action="raise", operation="copy", stream="copy", where="call", probability=0.02),
        Fault(action="short_copy", operation="copy", stream="copy", probability=0.04, copied_nbytes=5),
        Fault(action="raise", operation="launch", probability=0.03),
        Fault(action="lose_device", operation="launch", probability=0.004),
        Fault(action="delay", operation="launch", probability=0.05, delay_ns=70_000_000),
        seed=seed,
    )


async def run(backend: Any, seed: int, count: int, *, grows: bool, fixed: bool, **options: Any) -> int:
    """Steps of two programs with faults, cancels and reopening; gives how many gave their image back while it ran."""
    images = Images(seed, 3 * NBYTES if grows else NBYTES)
    chance = images.random
    programs = {
        "one": Mirror(NBYTES, grows=grows),
        "other": Mirror(NBYTES, grows=grows, image_at="fixed" if fixed else "slot"),
    }
    right = 0
    with leak_check(backend) as leaks:
        orch: Orchestrator[Any, Any] = Orchestrator(
            programs,
            backend,
            upload="delta",
            grow="high_water" if grows else "never",
            max_quarantined=1_000,
            **options,
        )
        async with leaks.watch(orch):
            handles: list[Any] = []
            for _ in range(count):
                step, name = images.next(), chance.choice(("one", "other"))
                if chance.random() < 0.1:
                    programs[name].fails[step] = chance.choice(("build", "launch", "kernel"))
                try:
                    handles.append((step, await orch.submit(step, program=name)))
                    if chance.random() < 0.15:
                        chance.choice(handles)[1].cancel()
                    while handles and (len(handles) > 4 or chance.random() < 0.4):
                        expected, handle = handles.pop(0)
                        result = await handle
                        assert result.output == expected
                        right += 1
                except DeviceLost:
                    await orch.reopen()
                    handles.clear()
                except OrchError:
                    continue
            for expected, handle in handles:
                try:
                    assert (await handle).output == expected
                except OrchError:
                    continue
    return right


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 30), slots=st.integers(1, 3), grows=st.booleans(), mode=st.sampled_from(["ring", None]))
def test_the_device_has_every_image_whole(seed: int, slots: int, grows: bool, mode: str | None) -> None:
    """On the adversary, in virtual time: after any sequence of steps, faults and cancels a kernel has its own image."""

    async def main() -> int:
        backend = open_backend("sim:adversary", clock="virtual", faults=plan_for(seed))
        try:
            options = {} if mode is None else {"mode": mode}
            return await run(backend, seed, 40, grows=grows, fixed=not grows, slots=slots, **options)
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
    assert await run(backend, seed, 150, grows=seed % 3 == 2, fixed=seed % 3 == 1, **threads) > 0
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
            await run(backend, seed, 60, grows=False, fixed=False, slots=1)
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
