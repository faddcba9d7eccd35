"""The runner's figures, from step timings that can be checked by hand."""

from async_orch import StepTimings
from examples.qwen3.figures import ModeRun, StepFacts

MS = 1_000_000
UNKNOWN = StepTimings._make(0 if name in ("submit_ns", "accept_ns") else None for name in StepTimings._fields)


def step(
    accept_ms: int, total_ms: int, cold_reason: str | None = None, generated: int = 2, known: StepTimings = UNKNOWN
) -> StepFacts:
    timings = known._replace(accept_ns=accept_ms * MS, total_ns=total_ms * MS)
    return StepFacts(timings, cold_reason, generated)


def test_cold_and_warm_steps_are_apart() -> None:
    """The first launch counts as cold alone; a step's time is from the end of the step before."""
    run = ModeRun("pipelined", [], steps=[step(0, 50, "first_launch", 0), step(10, 46), step(20, 40), step(30, 40)])
    assert run.cold is not None
    assert run.steady is not None
    assert (run.cold.steps, run.cold.ms_per_step_p50, run.cold.tokens_per_s) == (1, 50.0, None)
    assert (run.steady.steps, run.steady.ms_per_step_p50) == (3, 6.0)  # ends at 50, 56, 60, 70
    assert run.steady.tokens_per_s == 6 / 0.020


def test_steps_of_mode_naive_count_as_its_steady_ones() -> None:
    """What every step pays is no one-time cost; without one the cold figures are missing."""
    run = ModeRun("naive", [], steps=[step(0, 5, "each_step"), step(5, 5, "each_step")])
    assert run.cold is None
    assert run.steady is not None
    assert run.steady.steps == 2


def test_allocation_copy_and_idle_share() -> None:
    """Allocation is a mean a step, bandwidth is bytes over copy time, idle is bubbles over bubbles and busy time."""
    known = UNKNOWN._replace(
        alloc_nbytes=100, alloc_ns=2 * MS, copy_nbytes=3_000, h2d_ns=1_000, build_ns=MS, device_ns=6 * MS
    )
    steps = [step(0, 10, known=known), step(10, 10, known=known._replace(bubble_ns=2 * MS))]
    run = ModeRun("ring", [], steps=steps)
    figures = run.steady
    assert figures is not None
    assert figures.alloc_nbytes_per_step == 100
    assert figures.alloc_ms_per_step == 2
    assert figures.copy_mb_per_s == 3_000
    assert figures.build_ms_p50 == 1
    assert figures.device_ms_p50 == 6
    assert figures.device_idle_share == 0.25  # the first step has no bubble, so its busy time does not count


def test_what_the_device_cannot_tell_is_missing() -> None:
    """Unknown times give None, never 0."""
    figures = ModeRun("ring", [], steps=[step(0, 10)]).steady
    assert figures is not None
    assert figures.copy_mb_per_s is None
    assert figures.device_idle_share is None
    assert figures.alloc_nbytes_per_step is None
