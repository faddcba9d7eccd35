"""Worker processes that are killed, crash, hang or cannot be had: the step pays, nobody else does, nothing is left."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from async_orch import Orchestrator
from async_orch.exceptions import (
    DependencyFailed,
    OrchestratorClosed,
    PipelineFailed,
    StepCancelled,
    StepTimeout,
    WorkerDied,
)
from async_orch.testing import leak_check
from tests.faults.support import Records, assert_balanced, eventually
from tests.process_programs import Acts, Fades, Order
from tests.process_support import is_gone, state_of, worker_pids

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test leaves no process, zombie, thread or open file behind."""
    with leak_check():
        yield
    assert worker_pids() == set()


def processes(program: Any = None, **options: Any) -> Orchestrator[Any, Any]:
    """An orchestrator with one worker process."""
    chosen: dict[str, Any] = {"build_in": "process", "drain_timeout_s": 20.0} | options
    return Orchestrator(Acts() if program is None else program, "sim:instant", **chosen)


async def test_a_worker_that_is_killed_fails_its_step_only() -> None:
    """The step's exception names step, pid and signal; those before and behind complete, in a new process."""
    records = Records()
    async with processes(step_log=records) as orch:
        (first,) = worker_pids()
        handles = [await orch.submit(Order(i, "die" if i == 2 else ""), step_id=f"step {i}") for i in range(4)]
        with pytest.raises(WorkerDied) as caught:
            await handles[2]
        assert [(await handles[i]).output for i in (0, 1, 3)] == [0, 1, 9]
        error = caught.value
        assert (error.stage, error.step_id, error.pid, error.exit_code) == ("build", "step 2", first, -signal.SIGKILL)
        assert f"step 'step 2' (seq 2) failed in build: worker process {first} was killed by SIGKILL" in str(error)
        # A process that ends by itself is told apart.
        with pytest.raises(WorkerDied, match="ended with exit status 5 while it built this step"):
            await orch.run(Order(1, "leave"))
        await orch.run(Order(1))
    records.assert_one_a_step(6)
    assert [r.stage for r in records if r.event == "step.failed"] == ["build", "build"]
    assert_balanced(orch)


async def test_a_worker_that_closes_its_channel_is_killed_and_the_error_says_by_whom() -> None:
    """A kill by the orchestrator itself is not blamed on a lack of memory."""
    async with processes() as orch:
        with pytest.raises(
            WorkerDied, match="was killed by this process because its channel was closed while it"
        ) as died:
            await orch.run(Order(1, "hang_up"))
        assert "memory" not in str(died.value)
        assert (await orch.run(Order(2))).output == 4


@pytest.mark.parametrize("on_its_way", [False, True])
async def test_a_worker_that_is_killed_while_idle_costs_no_step(*, on_its_way: bool) -> None:
    """Neither when nothing was sent to it, nor when it had not read what was: another process builds the step."""
    async with processes() as orch:
        assert (await orch.run(Order(1))).output == 1
        (idle,) = worker_pids()
        if on_its_way:
            os.kill(idle, signal.SIGSTOP)
            await eventually(lambda: state_of(idle) == "T")
            handle = await orch.submit(Order(6))
            assert handle.status == "building"
            os.kill(idle, signal.SIGKILL)
        else:
            os.kill(idle, signal.SIGKILL)
            await eventually(lambda: is_gone(idle))
            handle = await orch.submit(Order(6))
        assert (await handle).output == 36
        assert idle not in worker_pids()
    assert_balanced(orch)


async def test_a_retry_covers_a_worker_that_died(tmp_path: Path) -> None:
    """The step keeps its seq and its staging, and is built again by another process."""
    async with processes() as orch:
        result = await orch.run(Order(7, "die_once", str(tmp_path / "died")), retries=1)
        assert (result.output, result.seq) == (49, 0)
    assert_balanced(orch)


@pytest.mark.parametrize("limit", ["build_timeout_s", "timeout_s"])
async def test_a_build_that_overruns_its_limit_costs_its_worker_and_no_buffer(limit: str) -> None:
    """The process is killed, in pure Python that never returns; its staging is used again, nothing is quarantined."""
    async with processes(queue_depth=1, slots=1, **({limit: 0.3} if limit == "build_timeout_s" else {})) as orch:
        stuck = worker_pids()
        with pytest.raises(StepTimeout):
            await orch.run(Order(1, "spin"), timeout_s=0.3 if limit == "timeout_s" else None)
        for i in range(8):
            assert (await orch.run(Order(i))).output == i * i
        assert orch.statistics().staging_quarantined == 0
        assert not worker_pids() & stuck
    assert_balanced(orch)
    assert orch.statistics().threads_abandoned == 0


async def test_cancelling_a_step_in_its_build_keeps_the_worker(tmp_path: Path) -> None:
    """The handle settles at once; the staging comes back when the build returns, and the process goes on."""
    gate = tmp_path / "gate"
    async with processes() as orch:
        held = gate.open("w")
        fcntl.flock(held, fcntl.LOCK_EX)
        workers = worker_pids()
        handle = await orch.submit(Order(1, "wait", str(gate)))
        queued = await orch.submit(Order(2))
        assert handle.cancel()
        assert queued.cancel()
        for cancelled in (handle, queued):
            with pytest.raises(StepCancelled):
                await cancelled
        assert orch.statistics().staging_leased == 2
        held.close()
        assert (await orch.run(Order(3))).output == 9
        assert orch.statistics().staging_leased == 0
        assert worker_pids() == workers
    assert_balanced(orch)


async def test_leaving_ends_a_worker_whose_build_hangs() -> None:
    """Within drain_timeout_s the step is cancelled and its process killed; the lease is back, nothing is abandoned."""
    orch = processes(drain_timeout_s=0.2, build_workers=2)
    handles = []
    with pytest.raises(TimeoutError, match=r"drain_timeout_s=0\.2"):
        async with orch:
            handles.append(await orch.submit(Order(1, "spin")))
    with pytest.raises(StepCancelled):
        await handles[0]
    assert_balanced(orch)
    assert orch.statistics().threads_abandoned == 0


async def test_when_no_worker_can_be_had_the_pipeline_fails(tmp_path: Path) -> None:
    """A replacement that cannot make its program is not tried for ever: steps in line and later submits fail."""
    async with processes(Fades(str(tmp_path / "made"))) as orch:
        dies = await orch.submit(Order(1, "die"))
        waits = await orch.submit(Order(2))
        with pytest.raises(WorkerDied):
            await dies
        with pytest.raises(PipelineFailed, match="no worker process is left to build"):
            await waits
        with pytest.raises(PipelineFailed):
            await orch.submit(Order(3))
    assert_balanced(orch)


@pytest.mark.parametrize("policy", ["fail_step", "discard_dependents", "fail_pipeline"])
async def test_policies_hold_for_a_worker_that_died(policy: Any) -> None:
    """What becomes of the others is the policy's business, as for any failed build."""
    async with processes(policy=policy) as orch:
        dies = await orch.submit(Order(1, "die"))
        after = await orch.submit(Order(2), after=dies)
        other = await orch.submit(Order(3))
        with pytest.raises(WorkerDied):
            await dies
        if policy == "fail_step":
            assert (await after).output == 4
        else:
            with pytest.raises(DependencyFailed if policy == "discard_dependents" else PipelineFailed):
                await after
        if policy == "fail_pipeline":
            with pytest.raises(PipelineFailed):
                await other
        else:
            assert (await other).output == 9
    assert_balanced(orch)


async def test_a_cancel_while_the_workers_start_leaves_none() -> None:
    """Opening that is cancelled ends the processes that it has begun."""

    async def enter() -> None:
        async with processes(build_workers=2):
            raise AssertionError("opened")

    task = asyncio.ensure_future(enter())
    await eventually(worker_pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nothing_is_accepted_after_leaving_and_nothing_waits() -> None:
    """Submits after the end are refused as ever; every process is joined by then."""
    async with processes(build_workers=2) as orch:
        await orch.run(Order(1))
    assert worker_pids() == set()
    with pytest.raises(OrchestratorClosed):
        await orch.submit(Order(2))


PARENT = """
import asyncio, os, signal, sys
from async_orch import Orchestrator
from tests.process_programs import Acts, Order
from tests.process_support import worker_pids

async def main():
    async with Orchestrator(Acts(), "sim:instant", build_in="process", build_workers=2) as orch:
        await orch.run(Order(1))
        await orch.submit(Order(1, "spin"))
        print(*worker_pids(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    """One that is idle and one that is in a build that never returns both end with it."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while not all(is_gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"{pids} are still there"
        os.sched_yield()
