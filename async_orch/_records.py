"""From settled steps to records: made and written on one thread, off the event loop.

The loop's part is one append. The writer thread makes the record, encodes it in C and writes whole lines; it offers
the GIL by time, so that rendering never holds up the loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from async_orch import logs
from async_orch._events import emit
from async_orch._record import RecordMaker
from async_orch._step import Step

__all__ = ["RecordTarget", "RecordWriter", "RecordsLost", "Turns"]

BUFFER_RECORDS = 16_384
"""Records that may wait for the writer (about 25 MB); further ones are dropped and counted."""

ANCHOR_PERIOD_S = 60.0
"""How often the two clocks are paired anew."""

CHUNK_RECORDS = 32
"""Records encoded and written together. Encoding is one call, without an offer of the GIL: 2 to 3 us a record."""

HOLD_NS = 160_000
"""For how much CPU time the writer keeps the GIL before it offers it to others; with what is under way then, below the
promised 200 us. Not more often: an offer is a sleep of 0, which takes 50 to 100 us under CPython 3.11."""

LOOK_RECORDS = 4
"""Records made between two looks at the clock: at 4 to 8 us each 32 us at most; a look at CPU time costs 0.7 us."""

GUESS_NS = 4_000
"""What a target is expected to take for a record until it has been measured."""

BEHIND_RECORDS = 1_024
"""More than that waiting: `RecordWriter.behind`. At 2,000 steps/s there are never more than about 40."""

CATCH_UP_S, REST_S = 0.1, 1.0
"""A caller gives the writer at most this long to catch up; if that was not enough, not again for `REST_S`."""

LAST_RESORT_S, LONG_REST_S = 1.0, 10.0
"""The same once half of the buffer is full and records would soon be lost: a disk may well pause for a second."""

EXIT_S = 5.0
"""How long the end of the interpreter waits for what is left in the buffer."""

LINGER_S = 0.02
"""How long the writer lets records gather before it writes them, when nobody flushes."""


class RecordTarget(Protocol):
    """Where records go; called on the writer's thread only. ``name`` says in a warning which one failed.

    ``lets_go``: whether `write` ends with a system call, which lets go of the GIL.
    """

    name: str
    lets_go: bool

    def write(self, records: Sequence[logs.StepRecord]) -> None:
        """Take some records; `RecordsLost` or another exception for what it could not take."""

    def write_event(self, event: dict[str, Any]) -> None:
        """Take an event of the orchestrator's own."""

    def close(self) -> None:
        """Flush what is buffered."""


class RecordsLost(Exception):
    """A target could not take ``count`` of the records; the cause is the last error. Ends at the writer."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} records lost")
        self.count = count


class Turns:
    """Offers the GIL to other threads; for the writer's thread.

    Goes by CPU time: what the thread spends waiting, for the GIL or in a system call, holds nobody up.
    """

    __slots__ = ("_let_go_ns", "offers")

    def __init__(self) -> None:
        self.offers = 0
        self.let_go()

    def let_go(self) -> None:
        """The thread has just let go of the GIL, here or elsewhere."""
        self._let_go_ns = time.thread_time_ns()

    def look(self, ahead_ns: int = 0) -> None:
        """Offer the GIL if it will have been kept for `HOLD_NS` after ``ahead_ns`` more."""
        if time.thread_time_ns() - self._let_go_ns + ahead_ns >= HOLD_NS:
            self.offer()

    def offer(self) -> None:
        """Let another thread have the GIL that waits for it."""
        time.sleep(0)
        self.offers += 1
        self.let_go()


class RecordWriter:
    """The writer thread and its bounded buffer.

    A loop that never waits for anything starves the thread: the GIL changes hands every 5 ms, and by then some hundred
    steps have ended for the few records made. So whoever gives the loop a turn looks at `behind` first, and
    waits with `catch_up` instead: nothing is lost then. A disk that hangs holds nobody up for long; the buffer fills,
    and what does not fit is dropped and counted.
    """

    def __init__(
        self,
        maker: RecordMaker,
        targets: Sequence[RecordTarget],
        loop: asyncio.AbstractEventLoop,
        anchor: Callable[[], dict[str, Any]],
    ) -> None:
        self._overflowed = 0  # by the loop's thread
        self._lost = 0  # by the writer's
        self._in_hand = 0
        self._maker = maker
        self._targets = list(targets)
        self._cost_ns = dict.fromkeys(self._targets, GUESS_NS)  # CPU time of a record
        self._warned: set[RecordTarget] = set()
        self._loop = loop
        self._anchor = anchor
        self._patient_from_s = self._last_resort_from_s = 0.0
        self._catching_up: deque[asyncio.Future[None]] = deque()
        self._buffer: deque[Step] = deque()
        self._flushes: deque[asyncio.Future[None]] = deque()
        self._ready = threading.Event()
        self._idle = True
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="async_orch-log", daemon=True)
        self._thread.start()
        # Daemon threads end with the interpreter, but only after this: also a run that nobody left has its records.
        atexit.register(self.close, EXIT_S)

    @property
    def dropped(self) -> int:
        """Records that did not fit into the buffer, or that a target could not take."""
        return self._overflowed + self._lost

    @property
    def behind(self) -> bool:
        """Whether a caller that has the choice should `catch_up` before it submits more."""
        waiting = len(self._buffer)
        if waiting <= BEHIND_RECORDS:
            return False
        now_s = self._loop.time()
        return now_s >= self._patient_from_s or (waiting > BUFFER_RECORDS // 2 and now_s >= self._last_resort_from_s)

    async def catch_up(self) -> None:
        """Wait until nothing is left to write, at most `CATCH_UP_S`, or `LAST_RESORT_S` with half of the buffer full.

        Nothing, so that the thread then lets records gather while the loop runs, instead of fighting it for the GIL.
        """
        future = self._loop.create_future()
        self._catching_up.append(future)
        self._ready.set()
        pressing = len(self._buffer) > BUFFER_RECORDS // 2
        timer = self._loop.call_later(LAST_RESORT_S if pressing else CATCH_UP_S, self._give_up, future, pressing)
        try:
            await future
        finally:
            timer.cancel()

    def _give_up(self, future: asyncio.Future[None], pressing: bool) -> None:
        now_s = self._loop.time()
        self._patient_from_s = now_s + REST_S
        if pressing:
            self._last_resort_from_s = now_s + LONG_REST_S
        if not future.done():
            future.set_result(None)

    def put(self, step: Step) -> None:
        """Take a settled step; on the loop's thread. Never waits: drops and counts when the buffer is full."""
        buffer = self._buffer
        if len(buffer) >= BUFFER_RECORDS:
            self._overflowed += 1
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
        atexit.unregister(self.close)
        self._closing = True
        self._ready.set()
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        # Stuck, or too slow: what it has not taken is lost, and what it has in hand for all that we know.
        self._overflowed += self._in_hand + len(self._buffer)
        self._buffer.clear()
        return False

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
            self._guard(target, target.close)
        self._settle([self._flushes.popleft() for _ in range(len(self._flushes))])

    def _write_buffer(self) -> None:
        buffer, maker, turns = self._buffer, self._maker, Turns()
        while buffer:
            steps = [buffer.popleft() for _ in range(min(CHUNK_RECORDS, len(buffer)))]
            self._in_hand = len(steps)
            offers = turns.offers
            records: list[logs.StepRecord] = []
            for step in steps:
                records.append(maker(step))
                if len(records) % LOOK_RECORDS == 0:
                    turns.look()
            for target in self._targets:
                # Encoding is one call: what it will take is what it took for the chunk before.
                turns.look(self._cost_ns[target] * len(records))
                start_ns = time.thread_time_ns()
                self._lost += self._guard(target, target.write, records, lost=len(records))
                self._cost_ns[target] = (time.thread_time_ns() - start_ns) // len(records)
                if target.lets_go:
                    turns.let_go()
            if turns.offers == offers:
                turns.offer()  # also where chunks take no time: a system call is too short for a thread to wake up in
            self._in_hand = 0
        self._settle([self._catching_up.popleft() for _ in range(len(self._catching_up))])

    def _write_event(self, event: dict[str, Any]) -> None:
        for target in self._targets:
            self._guard(target, target.write_event, event)

    def _guard(self, target: RecordTarget, call: Callable[..., None], *args: Any, lost: int = 0) -> int:
        """Call into a target, whose exception must not end the writer; how many records it could not take.

        One warning for each target and spell of failing: a full disk fails at every write.
        """
        try:
            call(*args)
        except BaseException as exc:  # noqa: BLE001 - a target is the caller's code, which may raise SystemExit too
            if target not in self._warned:
                self._warned.add(target)
                cause = exc.__cause__ if isinstance(exc, RecordsLost) else exc
                emit("warning", "step_log.failed", target=target.name, error=repr(cause))
            return exc.count if isinstance(exc, RecordsLost) else lost
        if lost:
            self._warned.discard(target)
        return 0

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
