"""A serving loop with two steps in flight over a worker with blocking `submit` and `wait`.

    python -m examples.engines.serving_loop

A step is submitted before the token that it starts from exists: it carries a placeholder, which the worker replaces
just before the launch. When a step fails, it and every later one are dropped, and the loop goes on from the last token
that it knows. The worker ends the dropped runs too, but nobody sees their results.
"""

import asyncio
from collections import deque

from async_orch import EngineProgram, Orchestrator, StepHandle
from async_orch.exceptions import StepError
from examples.engines.fake_worker import PLACEHOLDER, FakeWorker, Run

IN_FLIGHT = 2


class Serving(EngineProgram[int, int]):
    """One decode step: from a token, or the placeholder for the one that the step before gives, to the next."""

    def __init__(self, worker: FakeWorker) -> None:
        self.worker = worker

    def prepare(self, step: int, slot_index: int) -> tuple[Run, int]:
        return self.worker.begin(slot_index), step

    def dispatch(self, prepared: tuple[Run, int]) -> Run:
        self.worker.submit(*prepared)
        return prepared[0]

    def reclaim(self, pending: Run, timeout_s: float) -> int:
        return self.worker.wait(pending, timeout_s)

    def close(self) -> None:
        self.worker.stop()


def abort(window: deque[StepHandle[int]]) -> None:
    """Drop every step of the window, the last first, so that none is launched meanwhile."""
    while window:
        if not (step := window.pop()).cancel():
            step.exception()  # settled: it failed with the one that it was built on, and that is no news


async def generate(
    orch: Orchestrator[int, int], token: int, count: int, *, restarts: int = 3, timeout_s: float | None = None
) -> list[int]:
    """The ``count`` tokens after ``token``; goes on after up to ``restarts`` failed steps, then raises the failure."""
    tokens: list[int] = []
    window: deque[StepHandle[int]] = deque()
    try:
        while len(tokens) < count:
            while len(window) < IN_FLIGHT and (position := len(tokens) + len(window)) < count:
                after = window[-1] if window else None
                start = [token, *tokens][-1] if after is None else PLACEHOLDER
                window.append(await orch.submit(start, step_id=position, after=after, timeout_s=timeout_s))
            try:
                tokens.append((await window[0]).output)
                window.popleft()
            except StepError:
                abort(window)
                if (restarts := restarts - 1) < 0:
                    raise
    finally:
        abort(window)  # nobody waits for them: the caller was cancelled, or the failure is final
    return tokens


async def main() -> None:
    worker = FakeWorker(IN_FLIGHT, fail={121})  # the step that starts from token 121 fails, once
    async with Orchestrator(Serving(worker), slots=IN_FLIGHT, policy="discard_dependents") as orch:
        print("tokens:", *await generate(orch, 100, 8))
    counts = orch.statistics()
    print(f"{counts.completed} steps completed; {counts.failed} failed: one at the worker, and the one built on it")


if __name__ == "__main__":
    asyncio.run(main())
