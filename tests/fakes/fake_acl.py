"""A stand-in for the module ``acl`` of CANN that fails the test on any misuse.

What a driver would answer with a code, it answers with that code; what a driver would let pass and then corrupt,
stall or leak, raises `AclMisuse` and stays in `FakeAcl.misuses`: a call outside of a context, a copy from or to memory
that is not pinned or a stream destroyed with work on it (both would block, holding the GIL), a wait for an event made
without SYNC, a handle that does not exist, an event recorded again while a stream has yet to pass its wait, anything
left over at the end. As behind the GIL, no two calls that keep it run at once.
"""

from __future__ import annotations

import collections
import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from tests.fakes.acl_table import TABLE, Row
from tests.fakes.fake_acl_device import FakeEvent, FakeStream

__all__ = ["AclMisuse", "FakeAcl"]

SYNC, TIME_LINE = 1, 8
EVENT_LIMIT = 1023
MEMORY_NBYTES = 2**34
ALIGNMENT = 64


class AclMisuse(AssertionError):
    """The caller did what the documentation forbids."""


class FakeAcl:
    """Use `module` as ``sys.modules["acl"]``, and call `check_clean` when everything is closed."""

    def __init__(self, *, devices: int = 1, takes_time_line: bool = True, initialised: bool = False) -> None:
        self.misuses: list[str] = []
        self.calls: dict[str, int] = {}
        self.fail_next: dict[str, int] = {}
        self.devices = devices
        self.takes_time_line = takes_time_line
        self.initialised = initialised
        self.contexts: set[int] = set()
        self.streams: dict[int, FakeStream] = {}
        self.events: dict[int, FakeEvent] = {}
        self.most_events = 0
        self.memory: dict[int, tuple[ctypes.Array[ctypes.c_char], int, bool]] = {}
        self._copying: collections.Counter[int] = collections.Counter()
        self._kept: list[object] = []
        self._gil = threading.RLock()
        self._here = threading.local()
        self._handles = 1000
        runtime = SimpleNamespace()
        self.module = SimpleNamespace(rt=runtime)
        for row in TABLE:
            space, _, name = row.name.rpartition(".")
            setattr(runtime if space else self.module, name, self._function(row, name))

    # -- the table at work ---------------------------------------------------------------------------------

    def _function(self, row: Row, name: str) -> Callable[..., Any]:
        body: Callable[..., Any] = getattr(self, f"_{name}")

        def call(*args: Any) -> Any:
            if len(args) != len(row.parameters):
                self._misuse(f"acl.{row.name} takes {len(row.parameters)} arguments, got {len(args)}")
            for kind, arg in zip(row.parameters, args, strict=True):
                self._check(row, kind, arg)
            if not self.initialised and name != "init":
                return self._result(row, 100001)
            if row.in_context and getattr(self._here, "context", None) not in self.contexts:
                self._misuse(f"acl.{row.name} on thread {threading.current_thread().name} without a context")
            self.calls[name] = self.calls.get(name, 0) + 1
            code = self.fail_next.pop(name, 0)
            if code:
                return self._result(row, code)
            if row.releases_gil:
                return self._result(row, *body(*args))
            with self._gil:
                return self._result(row, *body(*args))

        return call

    @staticmethod
    def _result(row: Row, code: int, *values: Any) -> Any:
        """As pyACL gives it: the bare code, or the values and then the code."""
        if not row.values:
            return code
        return (*(values or (0,) * row.values), code)

    def _check(self, row: Row, kind: str, arg: Any) -> None:
        if type(arg) is not int:
            self._misuse(f"acl.{row.name} got {arg!r} for its {kind}, which must be an int")
        handles = {"stream": set(self.streams), "event": set(self.events), "context": self.contexts}
        if kind in handles and arg not in handles[kind]:
            self._misuse(f"acl.{row.name} got {arg}, which is no {kind} or no longer one")
        if kind == "size" and arg < 0:
            self._misuse(f"acl.{row.name} got the size {arg}")

    def _misuse(self, text: str) -> NoReturn:
        raise self._misused(text)

    def _misused(self, text: str) -> AclMisuse:
        self.misuses.append(text)
        return AclMisuse(text)

    def _handle(self) -> int:
        self._handles += 16
        return self._handles

    def check_clean(self) -> None:
        """Nothing was misused, and nothing is left."""
        left = {
            "streams": len(self.streams),
            "events": len(self.events),
            "contexts": len(self.contexts),
            "allocations": len(self.memory),
        }
        assert not self.misuses, self.misuses
        assert not any(left.values()), left

    # -- init, device, context -----------------------------------------------------------------------------

    def _init(self) -> tuple[int, ...]:
        repeated, self.initialised = self.initialised, True
        return (100002 if repeated else 0,)

    def _get_device_count(self) -> tuple[int, ...]:
        return 0, self.devices

    def _set_device(self, device: int) -> tuple[int, ...]:
        return (0 if device < self.devices else 107001,)

    def _create_context(self, device: int) -> tuple[int, ...]:
        if device >= self.devices:
            return (107001,)
        context = self._handle()
        self.contexts.add(context)
        self._here.context = context
        return 0, context

    def _destroy_context(self, context: int) -> tuple[int, ...]:
        if self.streams:
            self._misuse("a context was destroyed before its streams")
        self.contexts.discard(context)
        return (0,)

    def _set_context(self, context: int) -> tuple[int, ...]:
        self._here.context = context
        return (0,)

    def _get_context(self) -> tuple[int, ...]:
        return 0, self._here.context

    # -- memory --------------------------------------------------------------------------------------------

    def used_nbytes(self) -> int:
        return sum(nbytes for _, nbytes, is_host in self.memory.values() if not is_host)

    def _get_mem_info(self, kind: int) -> tuple[int, ...]:
        if kind != 1:
            return (107000,)
        return 0, MEMORY_NBYTES - self.used_nbytes(), MEMORY_NBYTES

    def _allocate(self, nbytes: int, *, is_host: bool) -> tuple[int, ...]:
        if nbytes == 0:
            return (107000,)
        if nbytes > MEMORY_NBYTES - (0 if is_host else self.used_nbytes()):
            return (207001,)
        memory = ctypes.create_string_buffer(b"\xdd" * min(nbytes, 4096), nbytes + ALIGNMENT)
        address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
        self.memory[address] = (memory, nbytes, is_host)
        return 0, address

    def _malloc(self, nbytes: int, policy: int) -> tuple[int, ...]:
        return self._allocate(nbytes, is_host=False) if policy in (0, 1, 2) else (107000,)

    def _malloc_host(self, nbytes: int) -> tuple[int, ...]:
        return self._allocate(nbytes, is_host=True)

    def _release(self, address: int, *, is_host: bool) -> tuple[int, ...]:
        found = self.memory.get(address)
        if found is None or found[2] != is_host:
            self._misuse(f"{address} is not an allocation of this kind, or was freed")
        if self._copying.get(address):
            self._misuse(f"memory at {address} was freed while an enqueued copy uses it")
        self._kept.append(self.memory.pop(address))  # kernels may still write: the misuse is theirs to show
        return (0,)

    def _free(self, address: int) -> tuple[int, ...]:
        return self._release(address, is_host=False)

    def _free_host(self, address: int) -> tuple[int, ...]:
        return self._release(address, is_host=True)

    def _inside(self, address: int, nbytes: int, *, is_host: bool, what: str) -> int:
        """The start of the allocation that the range lies in."""
        for start, (_, size, host) in self.memory.items():
            if start <= address and address + nbytes <= start + size:
                if host == is_host:
                    return start
                break
        raise self._misused(
            f"{what}: {nbytes} B at {address} do not lie in one {'pinned' if is_host else 'device'} allocation"
        )

    def _memset(self, address: int, limit: int, value: int, nbytes: int) -> tuple[int, ...]:
        if nbytes > limit:
            return (107000,)
        self._inside(address, limit, is_host=False, what="memset")
        ctypes.memset(address, value, nbytes)
        return (0,)

    def _memcpy_async(self, dst: int, limit: int, src: int, nbytes: int, kind: int, stream: int) -> tuple[int, ...]:
        if nbytes > limit or kind not in range(4):
            return (107000,)
        if kind == 0:
            return (207000,)
        if dst % ALIGNMENT or src % ALIGNMENT:
            return (107008,)
        target = self._inside(dst, limit, is_host=kind in (0, 2), what="destination of memcpy_async")
        source = self._inside(src, nbytes, is_host=kind in (0, 1), what="source of memcpy_async")
        self._copying.update((target, source))

        def over() -> None:
            with self._gil:
                self._copying.subtract((target, source))

        code = self.streams[stream].put(lambda: ctypes.memmove(dst, src, nbytes), over=over)
        if code:
            self._copying.subtract((target, source))
        return (code,)

    # -- streams and events --------------------------------------------------------------------------------

    def enqueue(self, stream: int, kernel: Callable[[], object], code: int = 0) -> int:
        """What an operator's launcher does; with ``code`` the kernel fails with that sticky error."""
        return self.streams[stream].put(kernel, code)

    def _create_stream(self) -> tuple[int, ...]:
        handle = self._handle()
        self.streams[handle] = FakeStream()
        return 0, handle

    def _destroy_stream(self, stream: int) -> tuple[int, ...]:
        if not self.streams[stream].idle:
            self._misuse("a stream was destroyed with work on it: the call would block, and keeps the GIL")
        self.streams.pop(stream).stop()
        return (0,)

    def _create_event_with_flag(self, flag: int) -> tuple[int, ...]:
        if flag & TIME_LINE and flag & SYNC and not self.takes_time_line:
            return (207000,)
        if len(self.events) >= EVENT_LIMIT:
            return (207007,)
        handle = self._handle()
        self.events[handle] = FakeEvent(flag)
        self.most_events = max(self.most_events, len(self.events))
        return 0, handle

    def _destroy_event(self, event: int) -> tuple[int, ...]:
        if self.events[event].waits:
            self._misuse("an event was destroyed while a stream has yet to pass a wait for it")
        del self.events[event]
        return (0,)

    def _record_event(self, event: int, stream: int) -> tuple[int, ...]:
        found = self.events[event]
        if found.recorded:
            self._misuse("an event was recorded again without reset_event")
        return (found.record_on(self.streams[stream]),)

    def _reset_event(self, event: int, stream: int) -> tuple[int, ...]:
        found = self.events[event]
        if not found.complete:
            self._misuse("an event was reset before it was complete")
        if found.waits:
            self._misuse("an event was reset while a stream has yet to pass a wait for it")
        found.recorded = False
        return (0 if stream in self.streams else 107003,)

    def _stream_wait_event(self, stream: int, event: int) -> tuple[int, ...]:
        found = self.events[event]
        if not found.flag & SYNC:
            self._misuse("a stream waits for an event that was made without ACL_EVENT_SYNC")
        return (found.hold(self.streams[stream]),)

    def _query_event_status(self, event: int) -> tuple[int, ...]:
        found = self.events[event]
        return found.error, int(found.complete)

    def _synchronize_event_with_timeout(self, event: int, milliseconds: int) -> tuple[int, ...]:
        found = self.events[event]
        if not found.wait(milliseconds / 1000):
            return (507047,)
        return (found.error,)

    def _event_elapsed_time(self, earlier: int, later: int) -> tuple[Any, ...]:
        first, second = self.events[earlier], self.events[later]
        if not (first.flag & second.flag & TIME_LINE):
            return (107006,)
        if not (first.complete and second.complete):
            return (507006,)
        return 0, ctypes.c_float((second.reached_ns - first.reached_ns) / 1e6).value
