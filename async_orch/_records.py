"""From settled steps to records: made and written on one thread, off the event loop.

The loop's part is one append. The writer thread makes the record, encodes it in C and writes whole lines; every
few records it lets go of the GIL, so that rendering never holds up the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from async_orch import logs
from async_orch._events import emit
from async_orch._step import UNKNOWN, Step
from async_orch._timings import timings_of
from async_orch.exceptions import StepTimeout

__all__ = ["RecordMaker", "RecordTarget", "RecordWriter"]

BUFFER_RECORDS = 16_384
"""Records that may wait for the writer (about 25 MB); further ones are dropped and counted."""

CHUNK_RECORDS = 16
"""Records rendered between two offers of the GIL: at about 5 us each well under 200 us."""

LINGER_S = 0.02
"""How long the writer lets records gather before it writes them, when nobody flushes."""

_LEVELS = {"step.failed": "error", "step.cancelled": "warning", "step.detached": "warning"}


class RecordMaker:
    """Turns a settled step into its `StepRecord`. Immutable but for the clock anchor."""

    def __init__(self, run_id: str, device: str, device_clock: str, clock_ns: Callable[[], int]) -> None:
        self.run_id = run_id
        self.pid = os.getpid()
        self.host = socket.gethostname()
        self.device = device
        self.device_clock: Any = device_clock
        self.anchor_mono_ns = clock_ns()
        self.anchor_wall_ns = time.time_ns()
        self.sees_allocations = True

    def __call__(self, step: Step) -> logs.StepRecord:
        """The record; callable once the step has settled and its fences were read."""
        timings = timings_of(step)
        event: Any = f"step.{step.outcome}"
        h2d_ns, sm_nbytes, copy_nbytes = timings.h2d_ns, timings.sm_nbytes, timings.copy_nbytes
        graph_ns, sm_ns, split = h2d_ns, None if h2d_ns is None else 0, None
        if h2d_ns is not None and sm_nbytes is not None and copy_nbytes:
            # One copy, divided by its bytes: a share, not a measurement, and marked as such.
            sm_ns = h2d_ns * sm_nbytes // copy_nbytes
            graph_ns, split = h2d_ns - sm_ns, "bytes"
        error, extras = step.error, step.extras
        if step.outcome != "failed" and not isinstance(error, StepTimeout):
            error = None  # a cancel is what the caller wanted
        wall_ns = self.anchor_wall_ns + step.settled_ns - self.anchor_mono_ns
        fields: Any = (
            event,
            logs.SCHEMA,
            _LEVELS.get(event, "info"),
            logs.format_timestamp(wall_ns),
            self.run_id,
            self.pid,
            self.host,
            self.device,
            step.program.name,
            step.step_id,
            step.seq,
            step.attrs,
            None if step.after_seq == UNKNOWN else step.after_seq,
            None if step.slot_index == UNKNOWN else step.slot_index,
            None if step.generation == UNKNOWN else step.generation,
            step.cold_reason,
            timings.submit_ns,
            timings.accept_ns,
            timings.build_start_ns,
            timings.build_ns,
            timings.acquire_start_ns,
            timings.acquire_wait_ns,
            timings.h2d_start_ns,
            h2d_ns,
            graph_ns,
            sm_ns,
            split,
            None if step.d2d_ns == UNKNOWN else step.d2d_ns,
            timings.alloc_count if self.sees_allocations else None,
            timings.alloc_nbytes if self.sees_allocations else None,
            timings.alloc_ns if self.sees_allocations else None,
            copy_nbytes,
            sm_nbytes,
            None if extras is None or extras.feed_wait_ns == UNKNOWN else extras.feed_wait_ns,
            None if extras is None or extras.feed_ns == UNKNOWN else extras.feed_ns,
            timings.launch_start_ns,
            timings.launch_ns,
            timings.device_start_ns,
            timings.device_ns,
            self.device_clock,
            timings.d2h_ns,
            timings.d2h_nbytes,
            timings.retire_start_ns,
            timings.retire_ns,
            timings.total_ns,
            timings.bubble_ns,
            timings.starved_ns,
            step.in_flight,
            step.on_device or None,
            None if error is None else " ".join(str(error).split()),
            None if error is None else getattr(error, "stage", step.failed_in),
            None if step.staging_copy_ns == UNKNOWN else step.staging_copy_ns,
            None if step.delta_ns == UNKNOWN else step.delta_ns,
        )
        return logs.StepRecord(*fields)


class RecordTarget(Protocol):
    """Where records go; called on the writer's thread only."""

    def write(self, records: Sequence[logs.StepRecord]) -> None:
        """Take some records."""

    def write_event(self, event: dict[str, Any]) -> None:
        """Take an event of the orchestrator's own."""

    def close(self) -> None:
        """Flush what is buffered."""


class RecordWriter:
    """The writer thread and its bounded buffer."""

    def __init__(
        self,
        maker: RecordMaker,
        targets: Sequence[RecordTarget],
        loop: asyncio.AbstractEventLoop,
        anchor: Callable[[], dict[str, Any]],
    ) -> None:
        self.dropped = 0
        self._maker = maker
        self._targets = list(targets)
        self._loop = loop
        self._anchor = anchor
        self._buffer: deque[Step] = deque()
        self._flushes: deque[asyncio.Future[None]] = deque()
        self._ready = threading.Event()
        self._idle = True
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="async_orch-log", daemon=True)
        self._thread.start()

    def put(self, step: Step) -> None:
        """Take a settled step; on the loop's thread. Never waits: drops and counts when the buffer is full."""
        buffer = self._buffer
        if len(buffer) >= BUFFER_RECORDS:
            self.dropped += 1
            return
        buffer.append(step)
        if self._idle:
            self._idle = False
            self._ready.set()

    async def flush(self) -> None:
        """Wait until everything put before is written."""
        if not self._thread.is_alive():
            return
        future = self._loop.create_future()
        self._flushes.append(future)
        self._ready.set()
        await future

    def close(self, timeout_s: float) -> bool:
        """Write what is left and end the thread; False if it is stuck in a target of the caller."""
        self._closing = True
        self._ready.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- on the writer's thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        self._write_event(self._anchor())
        anchored = time.monotonic()
        while True:
            self._ready.wait()
            self._ready.clear()
            closing = self._closing
            flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
            self._write_buffer()
            self._settle(flushes)
            if closing:
                break
            if time.monotonic() - anchored > ANCHOR_PERIOD_S:
                self._write_event(self._anchor())
                anchored = time.monotonic()
            if not self._ready.wait(LINGER_S) and self._buffer:
                self._ready.set()
            elif not self._buffer:
                self._idle = True
                if self._buffer:
                    # Put between the look and the flag: it saw no idle writer and did not wake us.
                    self._ready.set()
        for target in self._targets:
            self._guard(target.close)
        self._settle([self._flushes.popleft() for _ in range(len(self._flushes))])

    def _write_buffer(self) -> None:
        buffer = self._buffer
        while buffer:
            records = [self._maker(buffer.popleft()) for _ in range(min(CHUNK_RECORDS, len(buffer)))]
            for target in self._targets:
                if not self._guard(target.write, records):
                    self.dropped += len(records)
            time.sleep(0)

    def _write_event(self, event: dict[str, Any]) -> None:
        for target in self._targets:
            self._guard(target.write_event, event)

    def _guard(self, call: Callable[..., None], *args: Any) -> bool:
        """Call into a target; its exception must not end the writer."""
        try:
            call(*args)
        except Exception as exc:  # noqa: BLE001 - a target is the caller's code or a full disk
            emit("warning", "step_log.failed", error=repr(exc))
            return False
        return True

    def _settle(self, flushes: Sequence[asyncio.Future[None]]) -> None:
        if not flushes:
            return

        def tell() -> None:
            for future in flushes:
                if not future.done():
                    future.set_result(None)

        # A loop that is closed has nobody who could be waiting.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(tell)


ANCHOR_PERIOD_S = 60.0
