"""The fake ``acl`` itself: it fails what a driver would let pass, and answers what a driver would answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.fakes.fake_acl import AclMisuse, FakeAcl


class TestTheFake:
    """The fake fails what a driver would let pass."""

    @pytest.fixture
    def runtime(self) -> Any:
        """The fake's ``acl.rt`` with a context on this thread."""
        self.acl = FakeAcl()
        self.acl.module.init()
        _, code = self.acl.module.rt.create_context(0)
        assert code == 0
        return self.acl.module.rt

    def test_unpinned_memory(self, runtime: Any) -> None:
        """A copy from memory that is not from malloc_host."""
        (stream, _), (memory, _) = runtime.create_stream(), runtime.malloc(64, 0)
        with pytest.raises(AclMisuse, match="source of memcpy_async"):
            runtime.memcpy_async(memory, 64, 64 * 193, 64, 1, stream)
        runtime.destroy_stream(stream)

    def test_addresses_that_are_not_aligned_and_copies_within_host_memory(self, runtime: Any) -> None:
        """Both are refused with the driver's codes, whichever of the two addresses it is."""
        (stream, _), (memory, _), (host, _) = runtime.create_stream(), runtime.malloc(256, 0), runtime.malloc_host(256)
        assert runtime.memcpy_async(memory + 32, 64, host, 64, 1, stream) == 107008
        assert runtime.memcpy_async(memory, 64, host + 1, 64, 1, stream) == 107008
        assert runtime.memcpy_async(memory + 64, 64, host + 128, 64, 1, stream) == 0
        assert runtime.memcpy_async(host, 64, host + 128, 64, 0, stream) == 207000

    def test_a_call_that_would_block_with_the_gil(self, runtime: Any) -> None:
        """A stream is destroyed with work on it; a wait that releases the GIL keeps no other call out."""
        (stream, _), (event, _) = runtime.create_stream(), runtime.create_event_with_flag(9)
        gate, context = threading.Event(), runtime.get_context()[0]
        self.acl.enqueue(stream, gate.wait)
        runtime.record_event(event, stream)
        codes: list[int] = []

        def wait() -> None:
            runtime.set_context(context)
            codes.append(runtime.synchronize_event_with_timeout(event, 20_000))

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert runtime.query_event_status(event) == (0, 0)
        with pytest.raises(AclMisuse, match="would block, and keeps the GIL"):
            runtime.destroy_stream(stream)
        gate.set()
        waiter.join()
        assert codes == [0]
        assert runtime.destroy_stream(stream) == 0

    def test_a_thread_without_context(self, runtime: Any) -> None:
        """A call on a thread that never set one."""
        thread = threading.Thread(target=_swallow, args=(runtime.create_stream,))
        thread.start()
        thread.join()
        with pytest.raises(AssertionError, match="without a context"):
            self.acl.check_clean()

    def test_an_event_without_sync(self, runtime: Any) -> None:
        """A stream waits for it."""
        (stream, _), (event, _) = runtime.create_stream(), runtime.create_event_with_flag(8)
        with pytest.raises(AclMisuse, match="without ACL_EVENT_SYNC"):
            runtime.stream_wait_event(stream, event)
        runtime.destroy_stream(stream)

    def test_a_leaked_handle_and_one_used_after_its_end(self, runtime: Any) -> None:
        """Both are found, and so is a wrong number of arguments."""
        stream, _ = runtime.create_stream()
        with pytest.raises(AssertionError, match="'streams': 1"):
            self.acl.check_clean()
        runtime.destroy_stream(stream)
        with pytest.raises(AclMisuse, match="no stream or no longer one"):
            runtime.destroy_stream(stream)
        with pytest.raises(AclMisuse, match="takes 1 arguments, got 0"):
            runtime.malloc_host()

    def test_an_event_recorded_twice(self, runtime: Any) -> None:
        """Recording again needs reset_event, and that needs all waits to be passed."""
        (stream, _), (other, _) = runtime.create_stream(), runtime.create_stream()
        event, _ = runtime.create_event_with_flag(9)
        gate = threading.Event()
        self.acl.enqueue(other, gate.wait)
        runtime.record_event(event, stream)
        with pytest.raises(AclMisuse, match="without reset_event"):
            runtime.record_event(event, stream)
        assert runtime.synchronize_event_with_timeout(event, 20_000) == 0
        runtime.stream_wait_event(other, event)
        with pytest.raises(AclMisuse, match="yet to pass a wait"):
            runtime.reset_event(event, stream)
        gate.set()
        last, _ = runtime.create_event_with_flag(9)
        runtime.record_event(last, other)
        assert runtime.synchronize_event_with_timeout(last, 20_000) == 0
        runtime.destroy_stream(stream)
        runtime.destroy_stream(other)

    def test_events_run_out(self, runtime: Any) -> None:
        """The 1,024th is refused with the driver's code."""
        codes = [runtime.create_event_with_flag(1)[1] for _ in range(1024)]
        assert codes[-2:] == [0, 207007]


def _swallow(call: Any) -> None:
    try:
        call()
    except AclMisuse:
        return  # as a backend's waiter thread might; the fake remembers it
