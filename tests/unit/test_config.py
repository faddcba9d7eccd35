"""Options, specs, layouts and backend names: wrong ones are refused before anything is opened."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_orch import (
    Layout,
    Orchestrator,
    OrchestratorConfig,
    Slot,
    SlotSpec,
    StepProgram,
    available_backends,
    open_backend,
)
from async_orch._config import OrchestratorOptions
from async_orch.abc import Stream
from async_orch.exceptions import BackendUnavailable, ConfigurationError, OrchError
from tests.programs import Square


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots=0 must be >= 1"),
        ({"slots": True}, "slots must be an int"),
        ({"queue_depth": 0}, "queue_depth=0 must be >= 1"),
        ({"queue_depth": 1.5}, "queue_depth must be an int"),
        ({"max_inflight": 0}, "max_inflight=0 must be >= 1"),
        ({"mode": "fast"}, "mode='fast' must be one of pipelined, ring, naive"),
        ({"build_in": "gpu"}, "build_in='gpu' must be one of inline, thread"),
        ({"drain_timeout_s": -1}, "drain_timeout_s=-1 must be finite and > 0"),
        ({"drain_timeout_s": float("nan")}, "drain_timeout_s=nan must be finite"),
        ({"fence_timeout_s": float("inf")}, "fence_timeout_s=inf must be finite"),
        ({"fence_timeout_s": "1"}, "fence_timeout_s must be a number"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_value(options: dict[str, Any], message: str) -> None:
    """The message names option, value and what is allowed; it is a ValueError."""
    with pytest.raises(ConfigurationError) as caught:
        Orchestrator(Square(), "sim:instant", **options)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_a_misspelt_option_gets_its_nearest_match() -> None:
    """`slotz` is answered with `slots`."""
    with pytest.raises(TypeError, match="no option 'slotz'; did you mean 'slots'"):
        Orchestrator(Square(), "sim:instant", slotz=2)  # type: ignore[call-overload]


def test_options_and_config_have_the_same_names() -> None:
    """The typed keyword options are exactly the config's fields."""
    assert set(OrchestratorOptions.__annotations__) == set(OrchestratorConfig.__dataclass_fields__)


def test_keyword_options_override_a_config() -> None:
    """A shared config can be varied for one orchestrator."""
    orch = Orchestrator(Square(), "sim:instant", config=OrchestratorConfig(slots=5), queue_depth=4)
    assert (orch.config.slots, orch.config.queue_depth, orch.config.inflight_limit) == (5, 4, 9)


def test_a_wrong_mode_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """ASYNC_ORCH_MODE with an unknown mode is not ignored."""
    monkeypatch.setenv("ASYNC_ORCH_MODE", "turbo")
    with pytest.raises(ConfigurationError, match="ASYNC_ORCH_MODE='turbo' in the environment"):
        Orchestrator(Square(), "sim:instant")


def test_layout_fields_are_aligned_and_share_memory() -> None:
    """Fields start on 64-byte boundaries and write through to the image."""
    layout = Layout(tokens=("i4", (3,)), scale=("f4", ()), tables=("i2", (2, 5)))
    assert layout.nbytes == 128 + 20
    image = np.zeros(layout.nbytes, np.uint8)
    view = layout.view(image)
    view.tokens[:] = [1, 2, 3]
    view.tables[1, 4] = 7
    assert image[:12].view(np.int32).tolist() == [1, 2, 3]
    assert image[128:].view(np.int16)[9] == 7
    assert view.scale.shape == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "at least one field"),
        ({"a": ("O", (1,))}, "not a fixed-size type"),
        ({"a": ("i4", (-1,))}, "negative dimension"),
    ],
)
def test_a_layout_that_is_none_is_refused(fields: dict[str, Any], message: str) -> None:
    """Objects, negative dimensions and empty layouts are errors."""
    with pytest.raises(ConfigurationError, match=message):
        Layout(**fields)


def test_a_layout_view_refuses_what_would_not_reach_the_image() -> None:
    """Assigning to a field's name, or misspelling it, says what to write instead."""
    layout = Layout(tokens=("i4", (3,)))
    view = layout.view(np.zeros(64, np.uint8))
    with pytest.raises(AttributeError, match=r"image\.tokens\[:\] = "):
        view.tokens = 3
    with pytest.raises(AttributeError, match="no field 'token'; it has tokens"):
        _ = view.token
    with pytest.raises(ConfigurationError, match="needs 12 B, the buffer has 4 B"):
        layout.view(np.zeros(4, np.uint8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give image=Layout"),
        ({"image_nbytes": -2}, "image_nbytes must be >= 0, got -2"),
        ({"image_nbytes": 64, "workspace_nbytes": 1.5}, "workspace_nbytes must be an int, got 1.5"),
        ({"image": Layout(a=("i4", (4,))), "image_nbytes": 8}, "image_nbytes=8 is less than the layout's 16 B"),
    ],
)
def test_a_wrong_slot_spec_is_refused(options: dict[str, Any], message: str) -> None:
    """Sizes are checked where they are written."""
    with pytest.raises(ConfigurationError, match=message):
        SlotSpec(**options)


def test_a_program_must_define_the_hooks_its_slot_needs() -> None:
    """An image without build, an output without collect, no slot at all: refused before opening."""

    class NoHooks(StepProgram[int, int]):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            return None

    program = NoHooks()
    with pytest.raises(ConfigurationError, match=r"NoHooks\.slot must be a SlotSpec"):
        Orchestrator(program, "sim:instant")
    program.slot = SlotSpec(image_nbytes=8)
    with pytest.raises(ConfigurationError, match=r"NoHooks defines no build\(\)"):
        Orchestrator(program, "sim:instant")
    program.slot = SlotSpec(image_nbytes=0, output_nbytes=8)
    with pytest.raises(ConfigurationError, match=r"NoHooks defines no collect\(\)"):
        Orchestrator(program, "sim:instant")
    with pytest.raises(TypeError, match="must be a StepProgram or an EngineProgram, got object"):
        Orchestrator(object(), "sim:instant")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="backend must be a name or an opened Backend, got int"):
        Orchestrator(Square(), 3)  # type: ignore[call-overload]


def test_backends_are_found_by_name() -> None:
    """host and sim are installed, and open by name with a target."""
    assert {"host", "sim"} <= set(available_backends())
    backend = open_backend("sim:instant")
    assert backend.info.backend == "sim"
    backend.close()


@pytest.mark.parametrize("name", ["tpu", "", "sim:no-such-profile", "host:1"])
def test_an_unknown_backend_says_what_there_is(name: str) -> None:
    """One line that lists the installed backends, or says what is wrong with the target."""
    with pytest.raises(OrchError) as caught:
        open_backend(name)
    assert "\n" not in str(caught.value)
    if name == "tpu":
        assert isinstance(caught.value, BackendUnavailable)
        assert "installed: ascend" in str(caught.value)


async def test_an_opened_backend_stays_open() -> None:
    """Who opened a backend closes it; two orchestrators can share one."""
    backend = open_backend("sim:instant")
    for _ in range(2):
        async with Orchestrator(Square(), backend) as orch:
            assert (await orch.run(4)).output == 16
    assert backend.alloc(64).nbytes == 64
    backend.close()
