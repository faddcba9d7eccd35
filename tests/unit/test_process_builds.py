"""Builds in worker processes: the same results, records and errors as anywhere else, and nothing left behind."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from async_orch_backends._adversary import AdversaryBackend
from async_orch_backends.host import HostBackend
from async_orch_backends.sim_profile import SimProfile

from async_orch import Orchestrator
from async_orch.abc import Buffer, ByteArray
from async_orch.exceptions import BuildError, ConfigurationError, DeviceLost, RemoteError
from async_orch.logs import StepRecord
from async_orch.testing import leak_check
from tests.early_reuse import SumUp
from tests.process_programs import Acts, Graphs, Greets, Order, Sized, Whence
from tests.process_support import worker_pids
from tests.unit.test_early_reuse import wrong_steps
from tests.unit.test_reopen import Loses

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worker processes need Linux")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test leaves no process, zombie, thread or open file behind."""
    with leak_check():
        yield
    assert worker_pids() == set()


async def test_workers_build_and_the_records_say_so() -> None:
    """Two processes build; each one's first step is cold; times are the workers' own; nothing is copied on host."""
    records: list[StepRecord] = []
    async with Orchestrator(
        Whence(), "host", build_in="process", build_workers=2, max_inflight=4, step_log=records.append
    ) as orch:
        assert len(worker_pids()) == 2
        pids = {result.output async for result in orch.map(range(40))}
    assert pids <= worker_pids() | pids
    assert os.getpid() not in pids
    cold = [record for record in records if record.cold_reason == "worker_start"]
    # The very first step is marked by its first launch instead.
    assert len(cold) == len(pids) - 1
    assert [record.seq for record in records] == list(range(40))
    for record in records:
        assert record.build_start_ns is not None
        assert record.accept_ns is not None
        assert record.build_start_ns >= record.accept_ns
        assert record.staging_copy_ns is None


class NotRegistering(HostBackend):
    """Cannot copy from memory that it did not allocate."""

    def register_host(self, array: ByteArray, *, name: str = "") -> Buffer | None:
        return None


async def test_without_registering_images_are_copied_to_the_devices_own_staging() -> None:
    """Where the backend refuses shared memory the result is the same, and the record says what the copy took."""
    records: list[StepRecord] = []
    backend = NotRegistering()
    async with Orchestrator(Sized(), backend, build_in="process", step_log=records.append, slots=2) as orch:
        assert [r.output async for r in orch.map([64, 7, 1])] == [192, 21, 3]
    backend.close()
    assert all(record.staging_copy_ns for record in records)


async def test_sizes_and_growth_reach_the_workers() -> None:
    """A step that needs a larger image gets it: the worker maps the new memory, and the old one is freed."""
    async with Orchestrator(Sized(), "host", build_in="process", slots=2, grow="high_water") as orch:
        sizes = [64, 8, 100_000, 64, 1, 300_000, 5]
        assert [r.output async for r in orch.map(sizes)] == [3 * n for n in sizes]


async def test_several_programs_and_graph_builders_work_in_a_worker() -> None:
    """A worker makes every program; layouts, `GraphBuilder` and `Built` are as they are inline."""
    records: list[StepRecord] = []
    programs: dict[str, Any] = {"graphs": Graphs(), "greets": Greets(100)}
    async with Orchestrator(programs, "host", build_in="process", step_log=records.append) as orch:
        for i in range(3):
            assert (await orch.run(i, program="graphs")).output == [2 * i, 2 * i + 2, 2 * i + 4, 2 * i + 6]
            assert (await orch.run(i, program="greets")).output == (100 + i) ** 2
    assert records[0].sm_nbytes == records[0].copy_nbytes


async def test_a_large_step_travels_too() -> None:
    """What does not fit in a message is sent as a file in memory."""
    step = Order(3, file="x" * 1_000_000)
    async with Orchestrator(Acts(), "sim:instant", build_in="process") as orch:
        for _ in range(20):
            assert (await orch.run(step)).output == 9


async def test_errors_of_a_build_come_over_whole() -> None:
    """Type, message and traceback cross the border; what cannot is replaced by a `RemoteError` with all its words."""
    async with Orchestrator(Acts(), "sim:instant", build_in="process") as orch:

        async def cause_of(step: Any) -> BaseException:
            with pytest.raises(BuildError) as caught:
                await orch.run(step)
            assert caught.value.__cause__ is not None
            return caught.value.__cause__

        raised = await cause_of(Order(7, "raise"))
        assert (type(raised), str(raised)) == (ArithmeticError, "no number for 7")
        (note,) = raised.__notes__
        assert note.startswith("raised in worker process ")
        assert "process_programs.py" in note
        assert "invalid literal for int()" in note

        unreadable, unpicklable = await cause_of(Order(1, "unreadable")), await cause_of(Order(1, "unpicklable"))
        assert isinstance(unreadable, RemoteError)
        assert isinstance(unpicklable, RemoteError)
        assert unreadable.type_name == "tests.process_programs.UnreadableError"
        assert "tests.process_programs.Unpicklable: holds a lock (it cannot be pickled)" in str(unpicklable)
        assert "in _unpicklable" in unpicklable.__notes__[0]

        assert isinstance(await cause_of(Order(1, "exit")), SystemExit)
        assert isinstance(await cause_of(Order("x")), ValueError)  # type: ignore[arg-type]
        not_sent = await cause_of(threading.Lock())
        assert isinstance(not_sent, ConfigurationError)
        assert "the step cannot be sent to a worker process" in str(not_sent)
        assert isinstance(await cause_of(Order(1, "gone")), RuntimeError)
        assert (await orch.run(Order(5))).output == 25


async def test_the_text_of_an_exception_is_cut_in_the_worker() -> None:
    """An exception of megabytes does not come over whole: its text is cut, and says that and by how much."""
    async with Orchestrator(Acts(), "sim:instant", build_in="process") as orch:
        with pytest.raises(BuildError) as caught:
            await orch.run(Order(1, "shout"))
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteError)
    assert cause.type_name == "ArithmeticError"
    assert "x ... 1934464 characters left out ... x" in str(cause)
    assert len(str(cause)) < 70_000
    assert "more than the 262144 that are sent" in str(cause)


async def test_a_build_that_raised_is_tried_again_in_a_worker() -> None:
    """Retries go back to the workers, and a worker's program keeps what it noted before."""
    async with Orchestrator(Acts(), "sim:instant", build_in="process") as orch:
        assert (await orch.run(Order(6, "once"), retries=1)).output == 36
        with pytest.raises(BuildError, match="the first time"):
            await orch.run(Order(7, "once"))


async def test_after_a_loss_reopen_starts_new_workers() -> None:
    """The program that `reopen` sends is the one from before the first open."""
    async with Orchestrator(Loses(), "host", build_in="process") as orch:
        before = worker_pids()
        with pytest.raises(DeviceLost):
            await orch.run(-1)
        await orch.reopen()
        assert (await orch.run(4)).output == 16
        assert not worker_pids() & before


async def test_early_reuse_does_not_happen_with_worker_processes() -> None:
    """On a device that reads each image as late as it may, no worker writes to one too early."""
    backend = AdversaryBackend(SimProfile(name="late", copy_fixed_ns=2_000_000, kernel_ns=200_000, adversary=True))
    options: Any = {"slots": 3, "build_in": "process", "build_workers": 2}
    assert await wrong_steps(backend, 40, program=SumUp(), **options) == []
