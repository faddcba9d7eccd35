"""Profilers' marks: one range a stage with the step's id, each ended, and nothing at all unless asked for."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from async_orch import Orchestrator, OrchestratorConfig, SlotSpec, StepProgram
from async_orch.exceptions import ConfigurationError, StepError

STAGES = ["build", "acquire", "h2d", "launch", "retire"]


class Profiler:
    """Records ranges as ``nvtx`` and ``mstx`` take them."""

    def __init__(self) -> None:
        self.started: list[tuple[str, Any]] = []
        self.ended: list[int] = []

    def begin(self, name: str, number: Any) -> int:
        self.started.append((name, number))
        return len(self.started)

    def stages_of(self, number: Any) -> list[str]:
        """Stages with a range for this step, in order."""
        return [name for name, of in self.started if of == number]

    def check_ended(self) -> None:
        """Every range that began has ended once."""
        assert sorted(self.ended) == list(range(1, len(self.started) + 1))


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    """Fakes of both packages that report to one profiler; their calls take what the real ones take, and no more."""
    found = Profiler()

    class Domain:
        def __init__(self, name: str) -> None:
            assert name == "async_orch"

        def get_event_attributes(
            self, message: str | None = None, color: str | None = None, category: str | None = None, payload: Any = None
        ) -> Any:
            assert type(payload) is int
            assert -(2**63) <= payload < 2**63
            return (message, payload)

        def start_range(self, attributes: Any) -> int:
            return found.begin(*attributes)

        def end_range(self, range_id: int) -> None:
            found.ended.append(range_id)

    def range_start(message: str, stream: object = None) -> int:
        assert len(message.encode()) <= 156
        assert stream is None
        return found.begin(*message.split(" ", 1))

    nvtx, mstx = ModuleType("nvtx"), ModuleType("mstx")
    monkeypatch.setattr(nvtx, "get_domain", Domain, raising=False)
    monkeypatch.setattr(mstx, "range_start", range_start, raising=False)
    monkeypatch.setattr(mstx, "range_end", found.ended.append, raising=False)
    monkeypatch.setitem(sys.modules, "nvtx", nvtx)
    monkeypatch.setitem(sys.modules, "mstx", mstx)
    return found


class Echo(StepProgram[int, int]):
    """Gives back the step; fails where it is told to."""

    slot = SlotSpec(image_nbytes=16, output_nbytes=16)

    def __init__(self, fail_in: str = "") -> None:
        self.fail_in = fail_in

    def _maybe_fail(self, hook: str, step: int) -> None:
        if hook == self.fail_in and step == 1:
            raise ValueError(f"{hook} of step {step}")

    def build(self, step: int, image: Any) -> None:
        self._maybe_fail("build", step)
        image[:] = step

    def launch(self, step: int, slot: Any, stream: Any) -> None:
        self._maybe_fail("launch", step)
        stream.copy(slot.output, slot.image, 16)

    def collect(self, step: int, output: Any) -> int:
        self._maybe_fail("collect", step)
        return int(output[0])


@pytest.mark.parametrize("mode", ["pipelined", "naive"])
async def test_each_stage_of_each_step_is_a_range(profiler: Profiler, mode: Any) -> None:
    """nvtx: a range named after the stage with the step's id as payload, five a step, on the loop."""
    async with Orchestrator(Echo(), "sim:instant", annotate="nvtx", mode=mode) as orch:
        for step in range(5):
            assert (await orch.run(step, step_id=100 + step)).output == step
    for step in range(5):
        assert profiler.stages_of(100 + step) == STAGES
    profiler.check_ended()


@pytest.mark.parametrize("build_in", ["thread", "process"])
async def test_ranges_reach_across_threads(profiler: Profiler, build_in: str) -> None:
    """With every hook off the loop the same five ranges begin and end."""
    options: dict[str, Any] = {"build_in": build_in, "launch_in": "thread", "collect_in": "thread"}
    async with Orchestrator(Echo(), "host", annotate="nvtx", **options) as orch:
        assert [result.output async for result in orch.map(range(20))] == list(range(20))
    for step in range(20):
        assert profiler.stages_of(step) == STAGES
    profiler.check_ended()


@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
async def test_a_failed_step_leaves_no_open_range(profiler: Profiler, hook: str) -> None:
    """The ranges up to the failure are there and end; the steps around it have all of theirs."""
    async with Orchestrator(Echo(fail_in=hook), "host", annotate="nvtx") as orch:
        handles = [await orch.submit(step) for step in range(3)]
        with pytest.raises(StepError):
            await handles[1]
    reached = {"build": 1, "launch": 4, "collect": 5}[hook]
    assert profiler.stages_of(1) == STAGES[:reached]
    assert profiler.stages_of(0) == profiler.stages_of(2) == STAGES
    profiler.check_ended()


async def test_a_cancelled_step_leaves_no_open_range(profiler: Profiler) -> None:
    """Wherever the steps were when they were cancelled."""
    async with Orchestrator(Echo(), "sim:a5-report", annotate="nvtx") as orch:
        handles = [await orch.submit(step) for step in range(4)]
        for handle in handles:
            handle.cancel()
    profiler.check_ended()


async def test_an_id_that_is_no_number_is_shown_by_its_seq(profiler: Profiler) -> None:
    """nvtx keeps every message for ever, so only the payload differs from step to step; mstx takes text."""
    async with Orchestrator(Echo(), "sim:instant", annotate="nvtx") as orch:
        await orch.run(7, step_id="a request")
        await orch.run(8, step_id=2**70)
    assert profiler.stages_of(0) == profiler.stages_of(1) == STAGES
    assert {name for name, _ in profiler.started} == set(STAGES)


async def test_mstx_messages_name_stage_and_step(profiler: Profiler) -> None:
    """Text of any kind, cut to the length that the profiler takes."""
    async with Orchestrator(Echo(), "sim:instant", annotate="mstx") as orch:
        await orch.run(1, step_id="request 7")
        await orch.run(2, step_id="ö" * 200)
    assert profiler.stages_of("request 7") == STAGES
    assert len(profiler.started) == 10
    profiler.check_ended()


async def test_mstx_of_torch_npu_serves_too(profiler: Profiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only torch_npu is installed its mstx is taken; a range that could not begin (0) is not ended."""
    monkeypatch.setitem(sys.modules, "mstx", None)
    torch_npu: Any = ModuleType("torch_npu")
    torch_npu.npu = SimpleNamespace(
        mstx=SimpleNamespace(range_start=lambda msg, stream: 0, range_end=profiler.ended.append)
    )
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    async with Orchestrator(Echo(), "sim:instant", annotate="mstx") as orch:
        assert (await orch.run(1)).output == 1
    assert profiler.ended == []


@pytest.mark.parametrize(
    ("name", "message"), [("nvtx", "pip install nvtx"), ("mstx", "Ascend CANN .*pip install torch-npu")]
)
async def test_a_missing_package_is_refused_at_open(monkeypatch: pytest.MonkeyPatch, name: Any, message: str) -> None:
    """One line with what to install, before a device is opened."""
    for module in ("nvtx", "mstx", "torch_npu"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=message) as caught:
        async with Orchestrator(Echo(), "no-such-backend", annotate=name):
            pass
    assert "\n" not in str(caught.value)


def test_an_unknown_profiler_is_refused() -> None:
    """The error lists those that there are."""
    with pytest.raises(ConfigurationError, match="annotate='perf' must be None or one of nvtx, mstx"):
        OrchestratorConfig(annotate="perf")  # type: ignore[arg-type]


async def test_without_it_no_stage_is_wrapped(profiler: Profiler) -> None:
    """The stages' functions are those of their classes, and steps take the express way."""
    async with Orchestrator(Echo(), "sim:instant") as orch:
        await orch.run(1)
        opened: Any = orch._opened
        pipeline = opened.pipeline
        stages = (pipeline.build, pipeline.acquire, pipeline.h2d, pipeline.launch, pipeline.retire, pipeline.settling)
        wrapped = {"advance", "build_inline", "built", "copy", "launch", "settle"}
        assert not any(name in wrapped for stage in stages for name in vars(stage))
    assert profiler.started == []


async def test_the_real_nvtx_takes_what_we_give_it() -> None:
    """Where the package is installed, without a profiler attached: nothing is recorded, and nothing raises."""
    pytest.importorskip("nvtx", reason="nvtx is not installed: pip install nvtx")
    async with Orchestrator(Echo(), "sim:instant", annotate="nvtx") as orch:
        assert [result.output async for result in orch.map(range(3))] == [0, 1, 2]
