"""The lives of worker processes: started, heard, seen to their end, and replaced.

The loop reads what they say as soon as their sockets are readable. Starting and reaping block, so one thread does both,
the keeper. A worker dies with that thread, which lives as long as the group: nothing outlives this process.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio

from async_orch._build_job import BuildJob
from async_orch._events import emit
from async_orch._process_errors import revive
from async_orch._process_start import KILL_TIMEOUT_S, ends_within, how_it_ended, reap, start
from async_orch._process_wire import Answer, Build, Channel, Closed, Hello, Ready, Refused, Stop, ToLoop
from async_orch._shared_memory import SharedMemory
from async_orch._waker import Waker
from async_orch._workers import WorkerPool
from async_orch.exceptions import ConfigurationError

__all__ = ["Owner", "ProcessGroup", "Worker"]

HANG_UP_S = 1.0
"""How long a worker whose channel is closed may take to end by itself: one that is ending closes it first."""

START_TIMEOUT_S = 120.0
"""How long opening waits for the workers; importing a large framework for the first time takes a minute."""


class Worker:
    """One process, as the loop knows it.

    ``known`` is the shared memory that it has mapped, by staging index. ``unread`` means that it ended before it read
    its last message; ``fault`` says why it was ended, if not for its job's sake.
    """

    __slots__ = ("channel", "ended", "fault", "job", "known", "process", "ready", "unread", "warm")

    def __init__(self, channel: Channel[ToLoop]) -> None:
        self.channel = channel
        self.process: subprocess.Popen[bytes] | None = None
        self.job: BuildJob | None = None
        self.known: dict[int, SharedMemory] = {}
        self.ready = self.warm = self.ended = self.unread = False
        self.fault = ""

    @property
    def pid(self) -> int:
        """Its process id, 0 if it was never started."""
        return 0 if self.process is None else self.process.pid

    @property
    def exit_code(self) -> int | None:
        """As of `subprocess.Popen.returncode`."""
        return None if self.process is None else self.process.returncode

    def how_it_ended(self) -> str:
        """Its end in words; a kill by this process is told from one by the kernel or by others."""
        if self.fault and self.exit_code == -signal.SIGKILL:
            return f"was killed by this process{self.fault}"
        return how_it_ended(self.exit_code) + self.fault

    def tell(self, message: Hello | Build | Stop, *descriptors: int) -> bool:
        """Send a message; False if the process has gone. Raises `OSError` where this process cannot send."""
        try:
            self.channel.send(message, *descriptors)
        except Closed:
            return False
        return True


class Owner(Protocol):
    """Who a group belongs to; called on the loop."""

    def ready(self, worker: Worker) -> None:
        """A worker can take its first job."""

    def answered(self, worker: Worker, answer: Answer) -> None:
        """A worker says what became of its job."""

    def gone(self, worker: Worker) -> None:
        """A worker has ended and was reaped: nobody writes to the memory of its job any more."""

    def nobody_left(self, why: str) -> None:
        """The last worker has ended, and no other could be had in its place."""


class Chore:
    """Something for the keeper's thread, and what the loop does once that has been done."""

    __slots__ = ("error", "then", "work")

    def __init__(self, work: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        self.work = work
        self.then = then
        self.error: Exception | None = None

    def run(self) -> None:
        """On the keeper's thread."""
        try:
            self.work()
        except Exception as exc:  # noqa: BLE001 - handed to the loop, which says what follows from it
            self.error = exc


class ProcessGroup:
    """A number of workers with the same programs; one that ends after it was ready is replaced."""

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: Owner, programs: Hello) -> None:
        self.workers: list[Worker] = []
        self._loop = loop
        self._owner = owner
        self._programs = programs
        self._waker = Waker(loop, self._look_after)
        self._keeper: WorkerPool[Chore] = WorkerPool("processes", 1, Chore.run, self._waker.wake)
        self._opening: asyncio.Future[None] = loop.create_future()
        self._emptied: asyncio.Future[None] = loop.create_future()
        self._closing = False

    # -- opening and closing -------------------------------------------------------------------------------

    async def open(self, count: int) -> None:
        """Start the workers and wait until each has made its programs.

        Raises `ConfigurationError` with the reason if one cannot. After a failure or a cancel `close` ends them.
        """
        for _ in range(count):
            self._start()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._opening
        except TimeoutError:
            what = f"the worker processes did not import the program within {START_TIMEOUT_S:.0f} s"
            raise ConfigurationError(what) from None

    async def close(self, timeout_s: float) -> int:
        """End the workers: idle ones by themselves, within ``timeout_s``, all others by a kill.

        Gives how many processes and threads could not be ended. Idempotent.
        """
        if self._closing:
            return 0
        self._closing = True
        self._opening.cancel()
        deadline = time.monotonic() + timeout_s
        for worker in tuple(self.workers):
            polite = worker.ready and worker.job is None and not worker.ended and worker.tell(Stop())
            self.end(worker, deadline if polite else 0.0)
        if self.workers:
            with anyio.move_on_after(timeout_s + KILL_TIMEOUT_S):
                await self._emptied
        for worker in self.workers:
            emit("warning", "build.worker_not_reaped", pid=worker.pid)
        self._keeper.stop()
        stuck = len(self.workers) + self._keeper.join(timeout_s)
        self._waker.close()
        return stuck

    # -- beginning and end of one --------------------------------------------------------------------------

    def _start(self) -> None:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as exc:
            self._cannot_be_had(f"a worker process cannot be started: {exc}", exc)
            return
        ours.setblocking(False)
        worker = Worker(Channel(ours, ToLoop))
        self.workers.append(worker)

        def work() -> None:
            with theirs:
                worker.process = start(theirs.fileno())

        self._keeper.submit(Chore(work, partial(self._started, worker)))

    def _started(self, worker: Worker, error: Exception | None) -> None:
        if worker.ended:
            return
        try:
            if error is not None:
                raise error
            self._loop.add_reader(worker.channel.fileno(), self._readable, worker)
            if not worker.tell(self._programs):
                self.end(worker)
        except Exception as exc:  # noqa: BLE001 - a lack of processes, memory or descriptors
            self._cannot_be_had(f"a worker process cannot be started: {exc}", exc)
            self.end(worker)

    def end(self, worker: Worker, deadline: float = 0.0, *, hung_up: bool = False) -> None:
        """Hear no more of a worker and see it to its end; until ``deadline`` it may end by itself.

        ``hung_up`` if it has closed the channel, which is then what a kill is for.
        """
        if worker.ended:
            return
        worker.ended = True
        self._loop.remove_reader(worker.channel.fileno())
        worker.channel.close()
        if not deadline and worker.process is not None:
            worker.process.kill()  # at once, whatever the keeper is busy with
        reaped = True

        def work() -> None:
            nonlocal reaped
            if worker.process is None:
                return
            patience_s = deadline - time.monotonic()
            if hung_up and not ends_within(worker.process, patience_s):
                worker.fault, patience_s = " because its channel was closed", 0.0
            reaped = reap(worker.process, patience_s)

        def then(_: Exception | None) -> None:
            if reaped:
                self._ended(worker)

        self._keeper.submit(Chore(work, then))

    def _ended(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self._owner.gone(worker)
        if self._closing:
            if not self.workers and not self._emptied.done():
                self._emptied.set_result(None)
            return
        how = worker.how_it_ended()
        if worker.ready:
            emit("warning", "build.worker_replaced", pid=worker.pid, how=how)
            self._start()
        else:
            # It did not get as far as its first job, and neither would another.
            self._cannot_be_had(f"worker process {worker.pid} {how} before it was ready", None)

    def _cannot_be_had(self, why: str, cause: BaseException | None) -> None:
        """Opening fails; later it is one worker less."""
        if not self._opening.done():
            error = ConfigurationError(why)
            error.__cause__ = cause
            self._opening.set_exception(error)
            return
        emit("error", "build.worker_lost", error=why, left=len(self.workers))
        if not self.workers and not self._closing:
            self._owner.nobody_left(why)

    # -- what they say -------------------------------------------------------------------------------------

    def _readable(self, worker: Worker) -> None:
        try:
            message, _ = worker.channel.receive()
        except BlockingIOError:
            return
        except Closed as exc:
            worker.unread = exc.unread
            # Mostly it is ending. Only if it is not is it killed, which must not look like a kill by others.
            self.end(worker, time.monotonic() + HANG_UP_S, hung_up=True)
            return
        except Exception as exc:  # noqa: BLE001 - too many open files, or words that make no sense
            worker.fault = f" because its answer could not be read: {exc}"
            self.end(worker)
            return
        if isinstance(message, Answer):
            self._owner.answered(worker, message)
        elif isinstance(message, Ready):
            worker.ready = True
            self._owner.ready(worker)
            if not self._opening.done() and all(each.ready for each in self.workers):
                self._opening.set_result(None)
        else:
            self._refused(worker, message)

    def _refused(self, worker: Worker, message: Refused) -> None:
        cause = revive(message.failure, worker.pid)
        kind = self._programs.types[self._programs.names.index(message.program)]
        what = (
            f"program {message.program!r} ({kind}) cannot be made in a worker process: {type(cause).__name__}: {cause}"
        )
        worker.fault = " because it could not make its programs"
        self._cannot_be_had(what, cause)
        self.end(worker)

    def _look_after(self) -> None:
        while (chore := self._keeper.take()) is not None:
            chore.then(chore.error)
