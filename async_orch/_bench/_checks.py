"""That the work was done: a run that fails one of these gives no figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from async_orch import Statistics, StepResult

__all__ = ["CheckFailed", "SlotsSeen", "check_intervals", "check_order", "check_slots", "check_statistics"]


class CheckFailed(Exception):
    """A run did not do the work that its figure is for."""


def check_order(numbers: Sequence[int], steps: int) -> None:
    """Every step came out once, in order."""
    if len(numbers) != steps or any(number != i for i, number in enumerate(numbers)):
        raise CheckFailed(f"of {steps} steps {len(numbers)} came out, or not in order")


def check_statistics(statistics: Statistics, steps: int) -> None:
    """All steps completed, without allocations on the way, and every buffer is back."""
    found = (statistics.submitted, statistics.completed, statistics.step_path_allocs, statistics.slots_leased)
    if found != (steps, steps, 0, 0):
        raise CheckFailed(f"submitted, completed, allocated, still leased: {found}, should be {(steps, steps, 0, 0)}")


class SlotsSeen:
    """The same as `check_slots`, result by result, where a run is too long to keep them all."""

    def __init__(self) -> None:
        self._next_generation: Counter[int] = Counter()

    def see(self, result: StepResult[Any]) -> None:
        """Raises `CheckFailed` where the result's slot does not have its next generation."""
        due = self._next_generation[result.slot]
        if result.generation != due:
            raise CheckFailed(f"slot {result.slot} was leased with generation {result.generation}, should be {due}")
        self._next_generation[result.slot] = due + 1

    def end(self, slots: int) -> None:
        """Raises `CheckFailed` unless all of so many slots took part."""
        if len(self._next_generation) != slots:
            raise CheckFailed(f"{len(self._next_generation)} of {slots} slots took part")


def check_slots(results: Iterable[StepResult[Any]], slots: int) -> None:
    """All slots took part, and each lease of one had the next generation."""
    seen = SlotsSeen()
    for result in results:
        seen.see(result)
    seen.end(slots)


def check_intervals(
    name: str, spans: Iterable[tuple[int | None, int | None]], *, least_ns: int, slack_ns: int = 0
) -> None:
    """Operations of one stream, (start, duration) in ns, do not overlap, and none is shorter than its device takes."""
    end = None
    for start, duration in spans:
        if start is None or duration is None:
            raise CheckFailed(f"the {name} stream has an operation without times")
        if duration < least_ns - slack_ns:
            raise CheckFailed(f"an operation of the {name} stream took {duration} ns, its device takes {least_ns} ns")
        if end is not None and start < end - slack_ns:
            raise CheckFailed(f"operations of the {name} stream overlap by {end - start} ns")
        end = start + duration
