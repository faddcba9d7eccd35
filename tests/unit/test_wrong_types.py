"""Arguments and results of a wrong type: one line that names them, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from async_orch import Orchestrator, Slot, SlotSpec
from async_orch.abc import Stream
from async_orch.exceptions import BuildError, ConfigurationError, LaunchError
from tests.programs import Square
from tests.sums import Sums


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": 5}, "config must be an OrchestratorConfig, got int"),
        ({"slot_classes": 5}, r"slot_classes must be a sequence of \(SlotSpec, slots\) pairs, got 5"),
        ({"slot_classes": "abc"}, "slot_classes must be a sequence"),
        ({"slot_classes": [(SlotSpec(image_nbytes=64), 2)], "slots": 4}, "slots=4 beside slot_classes"),
    ],
)
def test_options_of_a_wrong_type_are_named(options: dict[str, Any], message: str) -> None:
    """Also slots= beside slot_classes=, which would have no effect."""
    with pytest.raises((TypeError, ConfigurationError), match=message):
        Orchestrator(Square(), **options)


async def test_arguments_of_a_wrong_type_are_named() -> None:
    """submit() and barrier() say what they take; nothing is accepted, and the orchestrator goes on."""
    async with Orchestrator(Square(), "sim:instant") as orch:
        bad: Any = 5
        with pytest.raises(TypeError, match="wait_for must be a sequence of Fences, got int"):
            await orch.submit(1, wait_for=bad)
        with pytest.raises(TypeError, match="attrs must be a mapping of names to values, got int"):
            await orch.submit(1, attrs=bad)
        with pytest.raises(TypeError, match=r"barrier\(\) takes a function, got int"):
            await orch.barrier(bad)
        assert orch.statistics().submitted == 0
        assert (await orch.run(3)).output == 9


@pytest.mark.parametrize("build_in", ["inline", "thread"])
async def test_a_truth_value_is_no_number_of_bytes(build_in: Any) -> None:
    """A hook that returns True, meaning "went well", fails its step instead of using one byte."""

    class Builds(Square):
        def build(self, step: int, image: Any) -> Any:
            return bool(step)

    class Launches(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> Any:
            return bool(step)

    class Feeds(Sums):
        def feed(self, step: int, previous: Any, feed: Any) -> Any:
            return True

    async with Orchestrator(Builds(), "sim:instant", build_in=build_in) as orch:
        for step in (0, 1):
            with pytest.raises(BuildError, match=f"returned {bool(step)}: return the bytes used, or None for all"):
                await orch.run(step)
    async with Orchestrator(Launches(), "sim:instant", build_in=build_in) as orch:
        with pytest.raises(LaunchError, match="returned True: return the bytes used"):
            await orch.run(1)
    async with Orchestrator(Feeds(), "sim:instant", build_in=build_in) as orch:
        first = await orch.submit(1)
        with pytest.raises(LaunchError, match="returned True: return the bytes used"):
            await (await orch.submit(2, after=first))


async def test_an_observer_that_raises_is_counted() -> None:
    """Without a step log too: what it did not take shows in records_dropped."""

    def observer(record: Any) -> None:
        raise ArithmeticError("observer")

    async with Orchestrator(Square(), "sim:instant", observers=[observer]) as orch:
        await orch.run(1)
        await orch.drain()
        assert orch.statistics().records_dropped == 1
