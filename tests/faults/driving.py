"""Cancelling a task at its n-th suspension, or at the engine's n-th pump, for every n."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from async_orch._pipeline import Pipeline

__all__ = ["Moment", "Suspensions", "at_pump"]

Moment = Literal["now", "next tick", "as it completes"]
"""When a cancel strikes a suspended task: before the loop turns, one tick later, or when what it awaits is done
already but the task has not been resumed."""


class Suspensions(Awaitable[Any]):
    """Awaits a coroutine, counts how often it suspends, and calls ``strike`` at the n-th time."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], nth: int = 0, strike: Callable[[], object] | None = None,
        moment: Moment = "now",
    ) -> None:  # fmt: skip
        self._work, self._nth, self._strike, self._moment = work, nth, strike, moment
        self.count = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        work = self._work.__await__()
        send: Callable[[], Any] = lambda: next(work)  # noqa: E731 - replaced at each turn
        while True:
            try:
                awaited = send()
            except StopIteration as end:
                return end.value
            self.count += 1
            if self.count == self._nth and self._strike is not None:
                self._arrange(awaited, self._strike)
            try:
                got = yield awaited
            except BaseException as exc:  # noqa: BLE001 - handed on to the coroutine
                error = exc
                send = lambda: work.throw(error)  # noqa: E731, B023 - called before the next turn
            else:
                send = lambda: work.send(got)  # noqa: E731, B023 - called before the next turn

    def _arrange(self, awaited: Any, strike: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        if self._moment == "as it completes" and asyncio.isfuture(awaited):
            # Added before the task adds its own wake-up, so it runs first.
            awaited.add_done_callback(lambda _: strike())
        elif self._moment == "now":
            strike()
        else:
            loop.call_soon(strike)


@contextmanager
def at_pump(nth: int, strike: Callable[[], object]) -> Iterator[list[int]]:
    """Call ``strike`` after the n-th pump of any pipeline; gives a list whose length is the number of pumps."""
    pumps: list[int] = []
    original = Pipeline.pump

    def pump(self: Pipeline) -> None:
        original(self)
        pumps.append(1)
        if len(pumps) == nth:
            strike()

    Pipeline.pump = pump  # type: ignore[method-assign] # the test stands between
    try:
        yield pumps
    finally:
        Pipeline.pump = original  # type: ignore[method-assign] # put back
