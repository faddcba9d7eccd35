"""Backends that are wrong in one way each; the suite must say so. Run by ``test_suite_catches.py``, not collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from async_orch_backends._software_stream import SoftwareStream
from async_orch_backends.host import HostBackend

from async_orch.abc import Buffer, Fence
from async_orch.testing import conformance_suite


def broken(**methods: Callable[..., Any]) -> Any:
    """The suite for a host backend whose streams or whole have other methods (``stream_x`` or ``backend_x``)."""
    on_streams = {name.removeprefix("stream_"): m for name, m in methods.items() if name.startswith("stream_")}
    on_backend = {name.removeprefix("backend_"): m for name, m in methods.items() if name.startswith("backend_")}

    def make_stream(self: HostBackend, name: str) -> SoftwareStream:
        stream = HostBackend._make_stream(self, name)
        stream.__class__ = type("BrokenStream", (SoftwareStream,), on_streams)
        return stream

    return conformance_suite(type("BrokenBackend", (HostBackend,), {"_make_stream": make_stream, **on_backend}))


class EarlyFence(Fence):
    """Done at once, whatever the work."""

    notifies = True

    @property
    def error(self) -> BaseException | None:
        return None

    def query(self) -> bool:
        return True

    def synchronize(self, timeout_s: float | None = None) -> None:
        """Nothing to wait for."""

    def notify(self, callback: Callable[[], None]) -> None:
        callback()

    def time_ns(self) -> int | None:
        return None


class NotifiesTwice(EarlyFence):
    """Calls back once too often."""

    def notify(self, callback: Callable[[], None]) -> None:
        callback()
        callback()


def _copy_without_offsets(
    self: SoftwareStream, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0
) -> None:
    SoftwareStream.copy(self, dst, src, nbytes)


def _copy_unchecked(
    self: SoftwareStream, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0
) -> None:
    nbytes = max(0, min(nbytes, dst.nbytes - dst_offset, src.nbytes - src_offset))
    SoftwareStream.copy(self, dst, src, nbytes, dst_offset=max(dst_offset, 0), src_offset=max(src_offset, 0))


def _begin_without_isolation(self: SoftwareStream, after: Fence | None = None) -> Fence:
    if after is not None:
        self.wait(after)
    return self.record()


def _begin_without_waiting(self: SoftwareStream, after: Fence | None = None) -> Fence:
    return SoftwareStream.begin(self)


def _copy_behind_the_fences(self: SoftwareStream, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
    fences = self.record(), EarlyFence()
    self.copy(dst, src, nbytes)
    return fences


def _fresh_streams_only(self: HostBackend, stream: Any) -> None:
    """Closes nothing."""


def _keep(self: Any, *args: Any, **options: Any) -> None:
    """Does nothing."""


def _isolate_everything(self: SoftwareStream) -> Fence:
    SoftwareStream.isolate(self)
    return SoftwareStream.record(self)


def _free_uncounted(self: HostBackend, buffer: Any) -> None:
    self._buffers.discard(buffer)


def _alloc_anything(self: HostBackend, nbytes: int, *, name: str = "") -> Buffer:
    return HostBackend.alloc(self, max(0, min(nbytes, 4096)), name=name)


TestWaitsForNothing = broken(stream_wait=_keep)
TestFencesAreEarly = broken(stream_record=lambda self: EarlyFence())
TestNotifiesTwice = broken(stream_record=lambda self: NotifiesTwice())
TestOffsetsAreLost = broken(stream_copy=_copy_without_offsets)
TestBoundsAreLost = broken(stream_copy=_copy_unchecked)
TestIsolationDoesNothing = broken(stream_isolate=_keep)
TestFailuresAreLost = broken(stream_record=_isolate_everything)
TestStreamsStayOpen = broken(backend_close_stream=_fresh_streams_only)
TestFreeIsNotCounted = broken(backend__freed=_free_uncounted)
TestMemoryIsCutShort = broken(backend_alloc=_alloc_anything)
TestCloseFreesNothing = broken(backend_close=_keep)
TestBeginsWithoutIsolation = broken(stream_begin=_begin_without_isolation)
TestBeginsWithoutWaiting = broken(stream_begin=_begin_without_waiting)
TestOutputIsLate = broken(stream_record_copy=_copy_behind_the_fences)
