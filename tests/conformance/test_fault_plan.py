"""A plan's faults strike where and when it says, on the simulated device in real and in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from async_orch_backends.sim import SimBackend

from async_orch import open_backend
from async_orch.exceptions import ConfigurationError, DeviceError, DeviceLost, OutOfDeviceMemory
from async_orch.testing import Fault, FaultPlan, VirtualClockLoop, conformance_suite, run_virtual
from tests.conformance.kit import PATIENCE_S, TIMED, add_one, reached

MS = 1_000_000

TestUnstruck = conformance_suite(lambda: open_backend("sim:instant", faults=FaultPlan()))

Open = Callable[[FaultPlan], SimBackend]


@pytest.fixture(params=["instant", "timed", "virtual", "adversary"])
def open_with(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens each kind of simulated device with a plan."""
    loop = VirtualClockLoop()
    opened: list[SimBackend] = []

    def open_it(plan: FaultPlan) -> SimBackend:
        if request.param == "timed":
            backend = SimBackend(TIMED, faults=plan)
        elif request.param == "virtual":
            backend = SimBackend(TIMED, clock="virtual", loop=loop, faults=plan)
        elif request.param == "adversary":
            found = open_backend("sim:adversary", clock="virtual", loop=loop, faults=plan)
            assert isinstance(found, SimBackend)
            backend = found
        else:
            found = open_backend("sim:instant", faults=plan)
            assert isinstance(found, SimBackend)
            backend = found
        opened.append(backend)
        return backend

    yield open_it
    for backend in opened:
        backend.close()
    loop.close()


@pytest.mark.parametrize("operation", ["copy", "launch"])
def test_work_that_fails_on_the_device_fails_its_fence(open_with: Open, operation: Any) -> None:
    """The call returns, the fence carries the planned error, and after isolation the stream works."""
    backend = open_with(FaultPlan(Fault(action="raise", operation=operation, nth=2)))
    stream, device, host = backend.create_stream("compute"), backend.alloc(1), backend.alloc_host(1)
    for _ in range(2):
        stream.copy(device, host, 1)
        stream.launch(add_one, device)
    with pytest.raises(DeviceError, match=rf"planned fault 'raise' at {operation} on stream 'compute'"):
        stream.synchronize(PATIENCE_S)
    stream.isolate()
    stream.copy(device, host, 1)
    stream.launch(add_one, device)
    stream.synchronize(PATIENCE_S)
    assert device.array.tolist() == [1]


@pytest.mark.parametrize("operation", ["copy", "launch", "record", "wait", "alloc", "alloc_host"])
@pytest.mark.parametrize("action", ["raise", "lose_device", "out_of_memory"])
def test_a_call_that_fails_raises_and_enqueues_nothing(open_with: Open, operation: Any, action: Any) -> None:
    """The n-th call raises the planned kind of error; a lost device then fails everything until reset."""
    where: Any = "call" if action != "out_of_memory" and operation in ("copy", "launch") else None
    plan = FaultPlan(Fault(action=action, operation=operation, nth=2, where=where))
    backend = open_with(plan)
    device, host, stream = backend.alloc(1), backend.alloc_host(1), backend.create_stream("compute")
    done = stream.record()
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: stream.copy(device, host, 1),
        "launch": lambda: stream.launch(add_one, device),
        "record": stream.record,
        "wait": lambda: stream.wait(done),
        "alloc": lambda: backend.alloc(1),
        "alloc_host": lambda: backend.alloc_host(1),
    }
    before = 1 if operation in ("record", "alloc", "alloc_host") else 0  # the first was for the set-up
    for _ in range(1 - before):
        calls[operation]()
    kinds = {"raise": DeviceError, "lose_device": DeviceLost, "out_of_memory": OutOfDeviceMemory}
    with pytest.raises(kinds[action], match="planned fault"):
        calls[operation]()
    assert plan.struck == {(operation, action): 1}
    if action == "lose_device":
        with pytest.raises(DeviceLost):
            backend.create_stream("copy").synchronize(PATIENCE_S)
        assert backend.reset()
    stream.synchronize(PATIENCE_S)


def test_a_short_copy_copies_that_much_and_fails(open_with: Open) -> None:
    """What came before the fault has arrived, the rest has not, and the fence says so."""
    backend = open_with(FaultPlan(Fault(action="short_copy", operation="copy", copied_nbytes=3)))
    device, host, stream = backend.alloc(5), backend.alloc_host(5), backend.create_stream("copy")
    device.array[:] = 7
    host.array[:] = 1
    stream.copy(device, host, 5)
    with pytest.raises(DeviceError, match="only 3 B were copied"):
        stream.synchronize(PATIENCE_S)
    assert device.array.tolist() == [1, 1, 1, 7, 7]
    with pytest.raises(DeviceError, match="copy of 6 B does not fit"):
        stream.copy(device, host, 6)


@pytest.mark.parametrize("operation", ["copy", "launch", "record", "wait"])
def test_a_hang_lasts_until_the_plan_is_released(open_with: Open, operation: Any) -> None:
    """Nothing behind it happens, other streams go on, and releasing it loses nothing."""
    plan = FaultPlan(Fault(action="hang", operation=operation, stream="compute", nth=1))
    backend = open_with(plan)
    device, host = backend.alloc(1), backend.alloc_host(1)
    device.array[:] = 0
    compute, copy = backend.create_stream("compute"), backend.create_stream("copy")
    compute.wait(copy.record())
    compute.copy(device, host, 1)
    compute.launch(add_one, device)
    fence = compute.record()
    with pytest.raises((TimeoutError, DeviceError), match=r"not reached within|blocked for ever"):
        fence.synchronize(0.02)
    copy.launch(lambda: None)
    copy.synchronize(PATIENCE_S)
    assert not fence.query()
    assert plan.hanging == 1
    plan.release()
    assert plan.hanging == 0
    fence.synchronize(PATIENCE_S)
    assert device.array.tolist() == [1]


def test_closing_does_not_wait_for_a_hang(open_with: Open) -> None:
    """A stream that hangs is closed like any other; a release that comes too late finds nobody."""
    plan = FaultPlan(Fault(action="hang", operation="launch"))
    backend = open_with(plan)
    stream = backend.create_stream("compute")
    stream.launch(lambda: None)
    fence = stream.record()
    backend.close()
    assert fence.query()
    assert backend.threads_abandoned() == 0
    plan.release()


def test_a_delay_moves_what_follows_by_exactly_its_time() -> None:
    """Copy, kernel, marker and wait start the planned time later; an allocation keeps the host busy that long."""

    async def main(operation: Any) -> int | None:
        plan = FaultPlan(Fault(action="delay", operation=operation, nth=1, delay_ns=7 * MS))
        backend = SimBackend(TIMED, clock="virtual", faults=plan)
        device, host, stream = backend.alloc(1), backend.alloc_host(1), backend.create_stream("compute")
        stream.copy(device, host, 1)
        stream.launch(add_one, device)
        other = backend.create_stream("copy")
        stream.wait(other.record())
        end = await reached(stream.record())
        backend.close()
        return end

    usual = TIMED.copy_ns(1) + TIMED.launch_ns + TIMED.kernel_ns
    for operation in ("copy", "launch", "wait", "alloc", "alloc_host"):
        assert run_virtual(main(operation)) == usual + 7 * MS, operation


def test_the_nth_operation_is_counted_for_each_fault_apart() -> None:
    """A fault counts the operations that it could strike: of its kind, on its stream; the first in the plan wins."""
    plan = FaultPlan(
        Fault(action="raise", operation="copy", stream="copy", nth=2),
        Fault(action="delay", operation="copy", nth=3),
        Fault(action="hang", operation="copy", nth=3),
    )
    strikes = [plan.strike("copy", name) for name in ("copy", "compute", "copy", "copy")]
    assert [None if s is None else s.action for s in strikes] == [None, None, "raise", None]
    assert plan.strike("launch", "copy") is None
    plan = FaultPlan(*plan.faults)
    assert [s and s.action for s in (plan.strike("copy", "compute") for _ in range(4))] == [None, None, "delay", None]
    assert plan.struck == {("copy", "delay"): 1}


def test_probability_is_seeded() -> None:
    """The same seed gives the same strikes whatever other faults there are; the rate is near what was asked for."""
    fault = Fault(action="raise", operation="launch", probability=0.2)

    def strikes(plan: FaultPlan) -> list[bool]:
        return [plan.strike("launch", "compute") is not None for _ in range(2000)]

    first = strikes(FaultPlan(fault, seed=5))
    assert strikes(FaultPlan(fault, Fault(action="raise", operation="copy", probability=0.5), seed=5)) == first
    assert strikes(FaultPlan(fault, seed=6)) != first
    assert 300 < sum(first) < 500
    assert all(strikes(FaultPlan(Fault(action="raise", operation="launch"))))
    assert not any(strikes(FaultPlan(Fault(action="raise", operation="launch", probability=0))))


def test_a_hang_in_real_time_holds_no_thread_of_the_caller() -> None:
    """The stream's thread waits; whoever enqueues and whoever releases does not."""
    plan = FaultPlan(Fault(action="hang", operation="launch"))
    backend = open_backend("sim:instant", faults=plan)
    stream, ran = backend.create_stream("compute"), threading.Event()
    stream.launch(ran.set)
    assert not ran.is_set()
    plan.release()
    assert ran.wait(PATIENCE_S)
    backend.close()


async def test_an_adopted_stream_is_not_struck() -> None:
    """It belongs to the caller, who has not asked for faults on it."""
    owner = open_backend("sim:instant")
    plan = FaultPlan(Fault(action="raise", operation="record"))
    stream = owner.create_stream("compute")
    backend = open_backend("sim:instant", faults=plan, compute_stream=stream)
    assert backend.create_stream("compute") is stream
    stream.record().synchronize(PATIENCE_S)
    await asyncio.sleep(0)
    backend.close()
    owner.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "explode"}, "action='explode' must be one of raise, delay, hang, lose_device, short_copy, out_of"),
        ({"action": ["raise"]}, "action=['raise'] must be one of raise, delay"),
        ({"operation": "free"}, "operation='free' must be one of alloc, alloc_host, copy, launch, record, wait"),
        ({"operation": None}, "operation=None must be one of"),
        ({"operation": ["copy"]}, "operation=['copy'] must be one of"),
        ({"stream": "copying"}, "stream='copying' must be one of copy, compute; None is for both"),
        ({"stream": 1}, "stream=1 must be one of copy, compute"),
        ({"where": "host"}, "where='host' must be one of call, device; None is for 'device'"),
        ({"nth": "2"}, "nth='2' must be an int, not str"),
        ({"nth": 2.0}, "nth=2.0 must be an int, not float"),
        ({"nth": True}, "nth=True must be an int, not bool"),
        ({"probability": "often"}, "probability='often' must be a number from 0 to 1"),
        ({"probability": True}, "probability=True must be a number from 0 to 1"),
        ({"probability": float("nan")}, "probability=nan must be from 0 to 1"),
        ({"delay_ns": 1e6}, "delay_ns=1000000.0 must be an int, not float"),
        ({"copied_nbytes": None}, "copied_nbytes=None must be an int, not NoneType"),
        ({"error": "boom"}, "error='boom' must be a class of exceptions, such as RuntimeError"),
        ({"error": KeyboardInterrupt}, "must be a class of exceptions, such as RuntimeError"),
        ({"error": UnicodeDecodeError}, "error=UnicodeDecodeError must take a message as its only argument: TypeError"),
        ({"action": "short_copy", "operation": "launch"}, "'short_copy' is not possible at 'launch'"),
        ({"action": "hang", "operation": "alloc"}, "'hang' is not possible at 'alloc'; possible are raise, delay"),
        ({"operation": "alloc", "stream": "copy"}, "stream='copy' makes no sense for 'alloc'"),
        ({"nth": 0}, "nth=0 must be >= 1"),
        ({"nth": 1, "probability": 0.5}, "give nth=1 or probability=0.5, not both"),
        ({"probability": 1.5}, "probability=1.5 must be from 0 to 1"),
        ({"delay_ns": -1}, "delay_ns=-1 must be >= 0"),
        ({"copied_nbytes": -1}, "copied_nbytes=-1 must be >= 0"),
        ({"action": "delay", "where": "call"}, "where='call' is for 'raise' and 'lose_device'"),
        ({"operation": "record", "where": "call"}, "where='call' is for"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    """The error names argument and value."""
    arguments: dict[str, Any] = {"action": "raise", "operation": "copy", **options}
    with pytest.raises(ConfigurationError) as caught:
        Fault(**arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("faults", "seed", "message"),
    [
        ([{"action": "raise"}], 0, r"\{'action': 'raise'\} is a dict, not a Fault"),
        ([[]], 0, r"\[\] is a list, not a Fault; give FaultPlan\(\*faults\)"),
        ([], "a", "seed='a' must be an int, not str"),
        ([], None, "seed=None must be an int, not NoneType"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(faults: list[Any], seed: Any, message: str) -> None:
    """What is no Fault, and a seed that is no int, are named when the plan is made."""
    with pytest.raises(ConfigurationError, match=message):
        FaultPlan(*faults, seed=seed)


def test_what_is_no_plan_is_refused() -> None:
    """A list of faults is not a plan."""
    with pytest.raises(ConfigurationError, match=r"must be an async_orch\.testing\.FaultPlan, not list"):
        open_backend("sim:instant", faults=[])
    with pytest.raises(ConfigurationError, match="takes the options"):
        open_backend("host", faults=FaultPlan())
