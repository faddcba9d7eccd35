"""An event loop whose clock jumps to the next timer, for tests that measure simulated time exactly.

Use it as a loop factory::

    run_virtual(main())                                          # a coroutine in a plain test
    asyncio.Runner(loop_factory=VirtualClockLoop)                # the same by hand

or, with pytest-asyncio 1.4 or later, for all tests of a folder from its ``conftest.py``::

    def pytest_asyncio_loop_factories(config, item):
        return {"virtual": VirtualClockLoop}

The loop knows of nothing that happens outside it: while a worker thread is busy it sees only that nothing is ready,
and jumps, or reports that it is stuck. Tests with threads belong on a normal loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

__all__ = ["LoopStuck", "VirtualClockLoop", "run_virtual"]

T = TypeVar("T")


class LoopStuck(RuntimeError):
    """Nothing is ready to run and no timer is set: the awaited thing can never happen."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """Runs what is ready, then jumps to the next timer; raises `LoopStuck` where a normal loop would wait for ever."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._virtual_s = start_s
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._virtual_s

    def jump(self, duration_s: float) -> None:
        """Let ``duration_s`` seconds pass at once."""
        self._virtual_s += duration_s

    def describe_tasks(self) -> str:
        """The tasks that wait, with the line that each waits at."""
        lines = []
        for task in asyncio.all_tasks(self):
            stack = task.get_stack(limit=1)
            place = f"{stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else "not started"
            lines.append(f"{task.get_name()} at {place}")
        return "; ".join(sorted(lines)) or "none"


class _JumpingSelector(selectors.BaseSelector):
    """Looks at real files without waiting; where a wait would be due, moves the loop's clock instead."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._real.select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise LoopStuck(
                f"stuck at {self._loop.time():.9f} s: nothing is ready and no timer is set; "
                f"waiting tasks: {self._loop.describe_tasks()}"
            )
        self._loop.jump(timeout)
        return []


def run_virtual(main: Coroutine[Any, Any, T], *, start_s: float = 0.0) -> T:
    """Run a coroutine to its end on a `VirtualClockLoop` of its own."""
    with asyncio.Runner(loop_factory=lambda: VirtualClockLoop(start_s)) as runner:
        return runner.run(main)
