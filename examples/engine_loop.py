"""A serving engine's loop: sequences join and leave between steps, and two steps are in flight."""

import asyncio
from collections import deque
from dataclasses import dataclass

from async_orch import Orchestrator, StepHandle
from async_orch.exceptions import StepError
from examples.toy_decoder import ON_DEVICE, ROWS, Pairs, ToyDecoder

IN_FLIGHT, STOP = 2, 0


@dataclass(eq=False)
class Sequence:
    tokens: list[int]  # the prompt, then what was generated
    most: int
    planned: int = 0  # tokens that the steps in flight will give
    row: int = -1
    error: str = ""


class Engine:
    def __init__(self, orch: Orchestrator[Pairs, list[int]], waiting: list[Sequence]) -> None:
        self.orch, self.waiting, self.running = orch, deque(waiting), list[Sequence]()
        self.window: deque[tuple[list[Sequence], StepHandle[list[int]]]] = deque()

    def schedule(self) -> list[Sequence]:
        free = set(range(ROWS)) - {s.row for s in self.running} - {s.row for batch, _ in self.window for s in batch}
        while self.waiting and free:
            self.running.append(self.waiting.popleft())
            self.running[-1].row = free.pop()
        return [s for s in self.running if len(s.tokens) + s.planned < s.most]

    async def run(self) -> None:
        while self.waiting or self.running:
            while len(self.window) < IN_FLIGHT and (batch := self.schedule()):
                step = [(s.row, ON_DEVICE if s.planned else s.tokens[-1]) for s in batch]
                after = self.window[-1][1] if self.window else None
                self.window.append((batch, await self.orch.submit(step, after=after)))
                for sequence in batch:
                    sequence.planned += 1
            await self.take_oldest()

    async def take_oldest(self) -> None:
        batch, handle = self.window[0]
        try:
            tokens = (await handle).output
        except StepError as failure:
            self.abort(batch, failure)
            return
        self.window.popleft()
        for sequence, token in zip(batch, tokens, strict=True):
            sequence.planned -= 1
            if sequence in self.running:  # else it ended while this step was in flight
                sequence.tokens.append(token)
                if token == STOP or len(sequence.tokens) == sequence.most:
                    self.running.remove(sequence)

    def abort(self, failed: list[Sequence], failure: StepError) -> None:
        while self.window:  # the failed step and all that was built on it, the last first
            batch, handle = self.window.pop()
            if not handle.cancel():
                handle.exception()  # settled: it failed with the one that it was built on
            for sequence in batch:
                sequence.planned = 0
        for sequence in set(failed) & set(self.running):  # the others go on, from the last token that is known
            sequence.error = f" {type(failure).__name__}"
            self.running.remove(sequence)


async def main() -> None:
    sequences = [Sequence([first], most=6) for first in (100, 7, 64, 5, 3000, 106, 9, 40, 48)]
    async with Orchestrator(ToyDecoder(), slots=3, max_inflight=IN_FLIGHT, policy="discard_dependents") as orch:
        await Engine(orch, sequences).run()
    print(*(" ".join(map(str, s.tokens)) + s.error for s in sequences), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
