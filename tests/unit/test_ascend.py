"""The backend ``ascend`` on the fake ``acl``, beyond the conformance suite: tested against a fake."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from async_orch_backends.ascend_acl import open_backend as open_ascend
from async_orch_backends.host import open_backend as open_host

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    DeviceError,
    DeviceLost,
    LaunchError,
    OutOfDeviceMemory,
)
from tests.fakes import fake_acl
from tests.fakes.acl_codes import CODES, Code
from tests.fakes.fake_acl import FakeAcl
from tests.fakes.fake_acl_device import FakeStream

PATIENCE_S = 30.0


def _install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> FakeAcl:
    acl = FakeAcl(**options)
    monkeypatch.setitem(sys.modules, "acl", acl.module)
    return acl


@pytest.fixture
def acl(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAcl]:
    """A fake that must be clean in the end."""
    fake = _install(monkeypatch)
    yield fake
    fake.check_clean()


class Echo(StepProgram[int, int]):
    """Gives back what was built."""

    slot = SlotSpec(image_nbytes=64, workspace_nbytes=4096, output_nbytes=64)

    def build(self, step: int, image: Any) -> None:
        image[:] = step % 256

    def launch(self, step: int, slot: Any, stream: Stream) -> None:
        stream.copy(slot.output, slot.image, 64)

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output[63])


async def _echo(steps: int, launch_in: Literal["inline", "thread"] = "inline") -> list[int | None]:
    async with Orchestrator(Echo(), "ascend", slots=3, launch_in=launch_in) as orch:
        results = [result async for result in orch.map(range(steps))]
    assert [result.output for result in results] == [step % 256 for step in range(steps)]
    return [result.timings.device_ns for result in results]


def test_few_events_serve_many_steps(acl: FakeAcl) -> None:
    """A thousand steps use as many events as are in flight at once, and give device times."""
    times = asyncio.run(_echo(1000))
    assert acl.most_events < 64
    assert acl.calls["record_event"] > 4000
    assert all(time_ns is not None and time_ns >= 0 for time_ns in times)


def test_every_thread_works_in_the_context(acl: FakeAcl) -> None:
    """Launching on a thread of its own needs no call of the user's: the fake refuses calls without a context."""
    asyncio.run(_echo(20, "thread"))
    assert acl.misuses == []


def test_streams_that_wait_in_turn_use_few_events(acl: FakeAcl) -> None:
    """Two thousand waits back and forth without an isolation hold no chain of events."""
    backend = open_ascend()
    first, second = backend.create_stream("copy"), backend.create_stream("compute")
    for _ in range(1000):
        second.wait(first.record())
        fence = second.record()
        first.wait(fence)
        fence.synchronize(PATIENCE_S)
    backend.close()
    assert acl.most_events < 64


def test_a_device_without_both_event_flags_gives_no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is kept with SYNC events alone; the record says null, not 0."""
    acl = _install(monkeypatch, takes_time_line=False)
    backend = open_ascend()
    assert backend.info.device_clock == "none"
    backend.close()
    assert asyncio.run(_echo(5)) == [None] * 5
    acl.check_clean()


def test_an_initialised_process_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library may have called acl.init before."""
    acl = _install(monkeypatch, initialised=True)
    open_ascend().close()
    acl.check_clean()


@pytest.mark.parametrize(
    ("target", "message"),
    [("7", "'ascend:7' is out of range: this machine has 1 Ascend devices"), ("npu", "'ascend:npu' names no device")],
)
def test_a_name_without_a_device_is_refused(acl: FakeAcl, target: str, message: str) -> None:
    """The error says how many devices there are."""
    with pytest.raises(BackendUnavailable, match=message):
        open_backend(f"ascend:{target}")


def test_an_unknown_option_and_a_stream_that_is_none_are_refused(acl: FakeAcl) -> None:
    """Both are named."""
    with pytest.raises(ConfigurationError, match="got priority"):
        open_backend("ascend", priority=1)
    with pytest.raises(ConfigurationError, match="compute_stream must be an ACL stream"):
        open_backend("ascend", compute_stream="0")


def test_the_default_stream_is_a_stream_too(acl: FakeAcl) -> None:
    """Its handle is 0, which is not "none was given"."""
    acl.module.init()
    context, _ = acl.module.rt.create_context(0)
    acl.streams[0] = FakeStream()
    backend = open_ascend(compute_stream=0)
    stream = backend.create_stream("compute")
    assert stream.native == 0
    stream.synchronize(PATIENCE_S)
    backend.close()
    acl.streams.pop(0).stop()
    acl.module.rt.destroy_context(context)


def test_without_cann_the_error_says_where_acl_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, with the script to source; and another for a driver that does not start."""
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(BackendUnavailable, match=r"comes with Ascend CANN and not from PyPI.*set_env") as caught:
        open_backend("ascend")
    assert "\n" not in str(caught.value)
    acl = _install(monkeypatch)
    acl.fail_next["init"] = 507899
    with pytest.raises(BackendUnavailable, match=r"no Ascend driver works here.*ACL_ERROR_RT_DRV_INTERNAL_ERROR"):
        open_backend("ascend")


KINDS = {"error": DeviceError, "memory": OutOfDeviceMemory, "lost": DeviceLost}


@pytest.mark.parametrize("entry", CODES, ids=lambda entry: str(entry.code))
def test_error_codes_become_exceptions_with_their_names(acl: FakeAcl, entry: Code) -> None:
    """Of each documented code, name and number are in the message, and the exception is the one that fits it."""
    backend = open_ascend()
    acl.fail_next["malloc"] = entry.code
    with pytest.raises(KINDS[entry.kind], match=rf"{entry.name} \({entry.code}\)") as caught:
        backend.alloc(64, name="kv")
    assert type(caught.value) is KINDS[entry.kind]
    assert backend.allocated_nbytes == 0
    backend.close()


def test_a_code_that_is_not_known_is_given_as_it_is(acl: FakeAcl) -> None:
    """A newer CANN may have more of them: the number is in the message."""
    backend = open_ascend()
    acl.fail_next["malloc"] = 999999
    with pytest.raises(DeviceError, match=r"an error that this version does not know \(999999\)"):
        backend.alloc(64)
    backend.close()


def test_the_fake_gives_no_code_that_is_not_documented() -> None:
    """What the fake answers is in the table that the backend is held against, so that the backend knows it."""
    source = inspect.getsource(fake_acl)
    given = {int(code) for code in re.findall(r"\b[1257]0\d{4}\b", source)}
    assert {107000, 207007, 507006} <= given <= {entry.code for entry in CODES}


def test_a_launcher_that_returns_a_code_fails_its_step(acl: FakeAcl) -> None:
    """The step's error names the code; the device goes on, as nothing ran."""

    def refuse(stream: int) -> int:
        return 107000

    class Refused(Echo):
        def launch(self, step: int, slot: Any, stream: Stream) -> None:
            if step == 1:
                stream.launch(refuse)
            super().launch(step, slot, stream)

    async def main() -> None:
        async with Orchestrator(Refused(), "ascend") as orch:
            handles = [await orch.submit(step) for step in range(3)]
            with pytest.raises(LaunchError, match="refuse' on stream 'compute' failed: ACL_ERROR_RT_PARAM_INVALID"):
                await handles[1]
            assert [(await handles[step]).output for step in (0, 2)] == [0, 2]

    asyncio.run(main())


def test_what_is_not_pinned_by_the_driver_is_not_copied(acl: FakeAcl) -> None:
    """Such a copy would block while holding the GIL; so is what cannot be launched refused."""
    backend, other = open_ascend(), open_host()
    stream, memory = backend.create_stream("copy"), backend.alloc(64)
    with pytest.raises(DeviceError, match="not pinned by this driver"):
        stream.copy(memory, other.alloc_host(64), 64)
    with pytest.raises(DeviceError, match=r"kernel\(stream, \*args\), not int"):
        stream.launch(3)
    other.close()
    backend.close()


def test_what_cann_does_not_copy_is_refused_before_it_is_asked(acl: FakeAcl) -> None:
    """Within host memory, and between addresses that are not multiples of 64: the error has both places."""
    backend = open_ascend()
    stream, memory, host = backend.create_stream("copy"), backend.alloc(256, name="kv"), backend.alloc_host(256)
    with pytest.raises(DeviceError, match="does not copy from host to host"):
        stream.copy(host, host, 64, dst_offset=128)
    with pytest.raises(DeviceError, match=r"multiples of 64 B only, not from offset 0 of .* to offset 32 of .*kv"):
        stream.copy(memory, host, 64, dst_offset=32)
    assert "memcpy_async" not in acl.calls
    backend.close()


def test_a_hung_device_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close returns in time, fences fail, and neither memory nor context is taken from under the kernel."""
    acl = _install(monkeypatch)
    backend = open_ascend()
    backend.close_timeout_s = 0.05
    stream, memory, gate = backend.create_stream("compute"), backend.alloc(64), threading.Event()
    stream.launch(lambda handle, address: acl.enqueue(handle, lambda: gate.wait(PATIENCE_S)), memory)
    fence = stream.record()
    backend.close()
    assert backend.threads_abandoned() == 1
    with pytest.raises(DeviceError, match="not over in time"):
        fence.synchronize(PATIENCE_S)
    assert len(acl.memory) == 1
    assert len(acl.contexts) == 1
    assert acl.misuses == []
    gate.set()
    for handle in list(acl.streams):
        acl.streams.pop(handle).stop()


@pytest.mark.parametrize("call", ["get_mem_info", "create_stream", "record_event", "reset_event"])
def test_a_failed_opening_leaves_nothing_behind(acl: FakeAcl, call: str) -> None:
    """Whichever call fails, context, stream and events go back, and opening again succeeds."""
    acl.fail_next[call] = 507899
    with pytest.raises(DeviceError, match="ACL_ERROR_RT_DRV_INTERNAL_ERROR"):
        open_ascend()
    acl.check_clean()
    open_ascend().close()


def test_a_malformed_name_is_told_without_pyacl(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the name does not depend on what is installed."""
    monkeypatch.setitem(sys.modules, "acl", None)
    with pytest.raises(BackendUnavailable, match="'ascend:x' names no device: give its id"):
        open_backend("ascend:x")


@pytest.mark.parametrize("call", ["free", "free_host"])
@pytest.mark.parametrize("code", [507015, 107000])
def test_closing_goes_on_behind_a_call_that_fails(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    """All else goes back to the driver, nothing counts as allocated, and only a lost device's error is kept quiet."""
    acl = _install(monkeypatch)
    backend = open_ascend()
    stream = backend.create_stream("copy")
    for _ in range(2):
        stream.copy(backend.alloc(64), backend.alloc_host(64), 64)
    stream.synchronize(PATIENCE_S)
    acl.fail_next[call] = code
    if code == 507015:
        backend.close()
    else:
        with pytest.raises(DeviceError, match=f"acl.rt.{call} failed"):
            backend.close()
    backend.close()
    assert backend.allocated_nbytes == 0
    left = {"streams": acl.streams, "events": acl.events, "contexts": acl.contexts}
    assert not any(left.values()), left
    assert len(acl.memory) == 1
    assert acl.misuses == []
