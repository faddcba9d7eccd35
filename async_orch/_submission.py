"""From the arguments of `submit` to a step: everything is checked here, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from async_orch._config import check_seconds
from async_orch._handle import StepHandle
from async_orch._program import ProgramRuntime, sizes_of
from async_orch._step import Step
from async_orch.abc import Fence
from async_orch.exceptions import ConfigurationError

if TYPE_CHECKING:
    from async_orch._opening import Opened

__all__ = ["new_step"]


def new_step(
    opened: Opened,
    payload: Any,
    step_id: Any = None,
    program: str | None = None,
    after: StepHandle[Any] | None = None,
    wait_for: Sequence[Fence] = (),
    timeout_s: float | None = None,
    retries: int = 0,
    attrs: Mapping[str, Any] | None = None,
) -> Step:
    """A step that is not accepted yet. Raises `ValueError` or `TypeError` naming argument and value."""
    pipeline = opened.pipeline
    runtime = opened.plain if program is None and opened.plain is not None else _runtime(opened, program)
    step = Step(pipeline, runtime, payload, step_id, attrs, pipeline.now())
    if step_id is not None:
        _check_step_id(opened, step_id)
    if attrs is not None and not isinstance(attrs, Mapping):
        raise TypeError(f"attrs must be a mapping of names to values, got {type(attrs).__name__}")
    if after is None and not wait_for and timeout_s is None and not retries and not runtime.has_sizes:
        return step
    extras = step.ensure_extras()
    if after is not None:
        extras.after = _predecessor(opened, after)
    if wait_for:
        extras.wait_for = _fences(runtime, wait_for)
    if timeout_s is not None:
        check_seconds("timeout_s", timeout_s)
        extras.timeout_s = timeout_s
    if retries:
        extras.retries_left = _retries(runtime, retries)
    if runtime.has_sizes:
        _set_sizes(opened, runtime, step)
    return step


def _runtime(opened: Opened, program: str | None) -> ProgramRuntime:
    runtimes = opened.runtimes
    if program is None:
        if len(runtimes) > 1:
            raise ConfigurationError(f"name the program: program= one of {', '.join(runtimes)}")
        return next(iter(runtimes.values()))
    try:
        return runtimes[program]
    except KeyError:
        raise ConfigurationError(f"program={program!r} is not one of {', '.join(runtimes)}") from None


def _check_step_id(opened: Opened, step_id: Any) -> None:
    try:
        taken = step_id in opened.pipeline.admission.named
    except TypeError:
        raise TypeError(f"step_id={step_id!r} must be hashable") from None
    if taken:
        raise ConfigurationError(f"step_id={step_id!r} is in flight already; ids of unsettled steps must differ")


def _predecessor(opened: Opened, after: StepHandle[Any]) -> Step:
    if not isinstance(after, StepHandle):
        raise TypeError(f"after must be a StepHandle, got {type(after).__name__}")
    step = after._step
    if step.pipeline.counts is not opened.counts:
        raise ConfigurationError(f"after={after!r} is a step of another orchestrator")
    return step


def _fences(runtime: ProgramRuntime, wait_for: Sequence[Fence]) -> tuple[Fence, ...]:
    try:
        fences = tuple(wait_for)
    except TypeError:
        raise TypeError(f"wait_for must be a sequence of Fences, got {type(wait_for).__name__}") from None
    for fence in fences:
        if not isinstance(fence, Fence):
            raise TypeError(f"wait_for must hold Fences, got {type(fence).__name__}")
    if runtime.slot_at_build:
        raise ConfigurationError("wait_for needs a stream that waits; an EngineProgram's streams are its own")
    return fences


def _retries(runtime: ProgramRuntime, retries: int) -> int:
    if isinstance(retries, bool) or not isinstance(retries, int):
        raise TypeError(f"retries must be an int, got {retries!r}")
    if retries < 0:
        raise ConfigurationError(f"retries={retries} must be >= 0")
    if not runtime.program.repeatable:
        raise ConfigurationError(f"retries={retries}: program {runtime.name!r} says that it is not repeatable")
    return retries


def _set_sizes(opened: Opened, runtime: ProgramRuntime, step: Step) -> None:
    spec = runtime.step_sizes(step.payload)
    if spec is None:
        return
    wanted = sizes_of(spec)
    extras = step.ensure_extras()
    extras.sizes = wanted
    memory = opened.memory
    largest = memory.classes[-1].sizes
    if memory.grows or memory.naive or wanted.fits_in(largest):
        return
    raise ConfigurationError(
        f"the step needs {wanted}, the largest slot has {largest}; raise the program's slot, add a slot class, "
        "or use grow='high_water'"
    )
