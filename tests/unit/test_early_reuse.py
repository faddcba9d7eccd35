"""On ``sim:adversary`` every result is right, and a ring that gives memory back too early is caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from async_orch_backends.sim import AdversaryBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import Orchestrator, Slot, open_backend
from async_orch.abc import Backend, Buffer, Stream
from async_orch.testing import run_virtual
from tests.early_reuse import BROKEN, NBYTES, SumUp, run_under_fire


async def wrong_steps(backend: Backend, count: int, program: SumUp | None = None, **options: Any) -> list[int]:
    """The steps of a run whose results are not theirs."""
    wrong = []
    program = SumUp() if program is None else program
    async with Orchestrator(program, backend, **options) as orch:
        program.orchestrator = orch
        step = 0
        async for result in orch.map(range(count)):
            if result.output != (step, step):
                wrong.append(step)
            step += 1
    backend.close()
    return wrong


async def _virtual(count: int, **options: Any) -> list[int]:
    return await wrong_steps(open_backend("sim:adversary", clock="virtual"), count, **options)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_early_reuse_does_not_happen(slots: int) -> None:
    """Rings of one to four give every step its own data."""
    assert run_virtual(_virtual(100, slots=slots)) == []


@pytest.mark.parametrize("mode", ["ring", "naive"])
def test_early_reuse_does_not_happen_in_the_serial_modes(mode: str) -> None:
    """Neither with one step at a time, nor with a slot allocated each step."""
    assert run_virtual(_virtual(20, mode=mode)) == []


async def test_early_reuse_does_not_happen_in_real_time() -> None:
    """The same with threads that sleep and wake."""
    backend = AdversaryBackend(SimProfile(name="late", copy_fixed_ns=2_000_000, kernel_ns=200_000, adversary=True))
    assert await wrong_steps(backend, 40, slots=3, build_in="thread", build_workers=2) == []


@pytest.mark.parametrize("name", BROKEN)
def test_each_broken_ring_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Released before its last fence, a buffer gives wrong data at once; the unbroken rings above do not."""
    program = BROKEN[name](monkeypatch)
    assert len(run_virtual(_virtual(20, program=program, slots=3))) >= 10


class _ReadLate(SumUp):
    """A third stream reads each step's workspace long after the step's own work; with or without holding the slot."""

    def __init__(self, reader: Stream, buffers: list[Buffer], *, hold: bool) -> None:
        self.reader = reader
        self.buffers = buffers
        self.hold = hold

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        used = super().launch(step, slot, stream)
        self.reader.isolate()
        self.reader.wait(stream.record())
        for _ in range(3):
            self.reader.copy(self.buffers[step], slot.workspace, NBYTES)
        if self.hold:
            slot.hold(self.reader.record())
        return used


@pytest.mark.parametrize("hold", [True, False])
def test_a_third_stream_that_reads_late_needs_hold(hold: bool) -> None:
    """With ``slot.hold`` every workspace arrives whole on the other stream; without it the slot is gone by then."""

    async def main() -> list[int]:
        backend = open_backend("sim:adversary", clock="virtual")
        reader = backend.create_stream("reader")
        buffers = [backend.alloc_host(NBYTES) for _ in range(20)]
        async with Orchestrator(_ReadLate(reader, buffers, hold=hold), backend, slots=2) as orch:
            outputs = [result.output async for result in orch.map(range(20))]
        reader.synchronize()
        seen = [int(buffer.array.view(np.int64)[-1]) for buffer in buffers]
        backend.close()
        assert outputs == [(step, step) for step in range(20)]
        return [step for step, value in enumerate(seen) if value != step]

    wrong = run_virtual(main())
    assert wrong == [] if hold else len(wrong) >= 10


@pytest.mark.parametrize("seed", range(8))
def test_data_is_right_under_random_cancels_and_faults(seed: int) -> None:
    """Whatever is cancelled or fails, a step that completes has its own data, and nothing is left behind."""
    done, wrong = run_virtual(run_under_fire(seed, 300))
    assert done > 100
    assert wrong == 0
