"""What threads cost: a device whose streams are threads, beside the least that such threads can cost."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque

from async_orch import Orchestrator, Slot, StepResult
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from async_orch._bench._overhead import WARM_UP, Cost, NoOp, timed, verify
from async_orch.abc import ByteArray, Stream

__all__ = ["threaded_cost", "wakeup_cost"]

SLOTS = 3


class _Kernel(NoOp):
    """A kernel that does nothing, but on the stream's thread."""

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        stream.launch(_nothing, slot.output)


def _nothing(output: ByteArray) -> None:
    """The kernel."""


async def threaded_cost(steps: int, backend: str = "host") -> Cost:
    """The cost of a step whose copies and kernel run on stream threads.

    The timed kernels do nothing; that data goes through such a device is seen in a run before, which is not timed.
    """
    await verify(backend, SLOTS)
    async with Orchestrator(_Kernel(), backend, slots=SLOTS) as orch:
        results: list[StepResult[int]] = [result async for result in orch.map(range(WARM_UP))]

        async def run(steps: int) -> list[int]:
            timed_results = [result async for result in orch.map(range(steps))]
            results.extend(timed_results)
            return [result.output for result in timed_results]

        cost = await timed(steps, run)
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), steps + WARM_UP)
    timings = [result.timings for result in results]
    check_intervals("copy", [(t.h2d_start_ns, t.h2d_ns) for t in timings], least_ns=0)
    check_intervals("compute", [(t.device_start_ns, t.device_ns) for t in timings], least_ns=0)
    return cost


class _Link(ABC):
    """A thread that takes items in order and hands each on; a wake-up only when it sleeps."""

    def __init__(self, name: str) -> None:
        self.items: deque[int] = deque()
        self._idle = threading.Lock()
        self._ready = threading.Lock()
        self._ready.acquire()
        self._sleeping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, item: int) -> None:
        with self._idle:
            self.items.append(item)
            if not self._sleeping:
                return
            self._sleeping = False
        self._ready.release()

    @abstractmethod
    def hand_on(self, item: int) -> None: ...

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while True:
            while not self.items:
                with self._idle:
                    if self.items:
                        break
                    self._sleeping = True
                self._ready.acquire()
            item = self.items.popleft()
            self.hand_on(item)
            if item < 0:
                return


class _ToThread(_Link):
    def __init__(self, name: str, to: _Link) -> None:
        super().__init__(name)
        self._to = to

    def hand_on(self, item: int) -> None:
        self._to.put(item)


class _ToLoop(_Link):
    """Wake-ups of the loop that come before it looks are merged, as the engine merges them."""

    def __init__(self, name: str, window: _Window) -> None:
        super().__init__(name)
        self._window = window

    def hand_on(self, item: int) -> None:
        self._window.done(item)


class _Window:
    """The loop's side: keeps a number of items under way, and takes them back in order."""

    def __init__(self, steps: int, under_way: int) -> None:
        self.steps = steps
        self.under_way = under_way
        self.out: list[int] = []
        self._arrived: deque[int] = deque()
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._asked = False
        self._next = 0
        self._second = _ToLoop("second", self)
        self._first = _ToThread("first", self._second)

    def done(self, item: int) -> None:
        self._arrived.append(item)
        if not self._asked and item >= 0:
            self._asked = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._asked = False
        while self._arrived:
            self.out.append(self._arrived.popleft())
        if len(self.out) == self.steps:
            if not self._finished.done():
                self._finished.set_result(None)
            return
        while self._next < self.steps and self._next - len(self.out) < self.under_way:
            self._first.put(self._next)
            self._next += 1

    async def run(self) -> list[int]:
        self._second.start()
        self._first.start()
        self._look()
        await self._finished
        self._first.put(-1)
        self._first.join()
        self._second.join()
        return self.out


async def wakeup_cost(steps: int, under_way: int = SLOTS) -> Cost:
    """The least that two stream threads can cost: the loop gives an item to one, that to the other, that to the loop.

    As many items are under way as the orchestrator has slots, and wake-ups are merged where they can be. There are no
    fences, leases, time stamps or handles: what is left are the wake-ups that a device made of threads needs.
    """

    async def run(steps: int) -> list[int]:
        out = await _Window(steps, under_way).run()
        check_order(out, steps)
        return out

    return await timed(steps, run)
