"""Images in shared memory under fire: a kernel reads the image of its own step, however late it runs.

On `sim:adversary` memory that may be reused is scribbled over at once, and kernels run at the latest moment.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_orch import open_backend
from async_orch._slot import SlotMemory
from async_orch._staging import Staging
from async_orch.testing import run_virtual
from tests.sharing import share_memory
from tests.uploads_under_fire import plan_for, run

EXAMPLES = 400 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 40
SHARED = ("shared", "shared")


async def _on_the_adversary(seed: int, count: int, **options: Any) -> int:
    backend = share_memory(open_backend("sim:adversary", clock="virtual", faults=plan_for(seed)))
    try:
        return await run(backend, seed, count, image_at=SHARED, **options)
    finally:
        backend.close()


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 1 << 30),
    slots=st.integers(1, 4),
    grows=st.booleans(),
    mode=st.sampled_from(["pipelined", "pipelined", "ring"]),
)
def test_every_kernel_has_its_own_image(seed: int, slots: int, grows: bool, mode: Any) -> None:
    """After any sequence of steps, faults, cancels and reopening, in virtual time."""
    assert run_virtual(_on_the_adversary(seed, 40, slots=slots, grows=grows, mode=mode)) > 0


@pytest.mark.parametrize("name", ["sim:instant", "host"])
@pytest.mark.parametrize("seed", range(10 if EXAMPLES > 100 else 4))
async def test_so_it_has_in_real_time(name: str, seed: int) -> None:
    """The same with streams that are threads, and with builds and launches on threads."""
    options: dict[str, Any] = {"faults": plan_for(seed)} if name.startswith("sim") else {}
    backend = share_memory(open_backend(name, **options))
    threads: dict[str, Any] = {"build_in": "thread", "build_workers": 2, "launch_in": "thread"} if seed % 2 else {}
    assert await run(backend, seed, 150, grows=seed % 4 > 1, image_at=SHARED, **threads) > 0
    backend.close()


def _keep_the_memory(memory: SlotMemory, staging: Staging) -> bool:
    """An exchange that forgets half of it: staging still has the memory that the kernels are to read."""
    memory.image = staging.device
    return True


def test_staging_that_keeps_its_memory_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run with memory that is built in while kernels read it is caught: the proof can fail."""
    monkeypatch.setattr(SlotMemory, "take_image", _keep_the_memory)
    with pytest.raises(AssertionError):
        for seed in range(20):
            run_virtual(_on_the_adversary(seed, 60, slots=2))
