"""Marks for profilers: a range for each stage of each step, on the timelines of Nsight Systems or MindStudio.

Nothing of this exists unless ``annotate=`` asks for it: then the stages' functions are wrapped when the pipeline is
opened, and steps take the queues, as the express way has no stages to wrap.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from async_orch._step import BUILT, SETTLED, Step
from async_orch.exceptions import ConfigurationError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["Marker", "annotate", "load_marker"]

_DOMAIN = "async_orch"
_MSTX_MESSAGE_NBYTES = 156  # MindStudio, mstxRangeStartA: longest message outside MSPTI


class Marker(Protocol):
    """Ranges of a profiler that may overlap, and begin and end on different threads."""

    def start(self, stage: str, step: Step) -> Any:
        """Begin a range; what it returns ends it."""

    def end(self, mark: Any) -> None:
        """End a range."""


class _Nvtx:
    """Ranges named after the stage, in the domain ``async_orch``; the payload is the step's id.

    The package keeps every message that it was ever given, so the ids, which have no end, must not be in them. Where an
    id is no 64-bit integer the payload is the seq.
    """

    def __init__(self, nvtx: Any) -> None:
        self._domain = nvtx.get_domain(_DOMAIN)

    def start(self, stage: str, step: Step) -> Any:
        number = step.step_id
        if type(number) is not int or not -(2**63) <= number < 2**63:
            number = step.seq
        domain = self._domain
        return domain.start_range(domain.get_event_attributes(message=stage, payload=number))

    def end(self, mark: Any) -> None:
        self._domain.end_range(mark)


class _Mstx:
    """Ranges named after the stage and the step's id, on the host's timeline."""

    def __init__(self, mstx: Any) -> None:
        self._mstx = mstx

    def start(self, stage: str, step: Step) -> Any:
        message = f"{stage} {step.step_id}".encode(errors="replace")[:_MSTX_MESSAGE_NBYTES].decode(errors="ignore")
        return self._mstx.range_start(message, None)

    def end(self, mark: Any) -> None:
        if mark:  # 0: it did not begin
            self._mstx.range_end(mark)


def load_marker(name: str | None) -> Marker | None:
    """The profiler's marks called ``name``; `ConfigurationError` says what to install where its package is missing."""
    if name is None:
        return None
    if name == "nvtx":
        return _Nvtx(_imported("nvtx", "annotate='nvtx' needs the package nvtx: pip install nvtx"))
    try:
        return _Mstx(importlib.import_module("mstx"))
    except ImportError:
        torch_npu = _imported(
            "torch_npu",
            "annotate='mstx' needs the module mstx, which comes with Ascend CANN (put its mstx on PYTHONPATH), or "
            "torch_npu: pip install torch-npu",
        )
        return _Mstx(torch_npu.npu.mstx)


def _imported(module: str, otherwise: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as exc:
        raise ConfigurationError(otherwise if exc.name == module else f"{otherwise} ({exc})") from exc


class _Ranges:
    """Each live step's open range: at most one, as a step is in one stage at a time."""

    def __init__(self, marker: Marker) -> None:
        self._marker = marker
        self._open: dict[Step, tuple[str, Any]] = {}

    def enter(self, stage: str, step: Step) -> None:
        """The step is in this stage now."""
        if step.state != SETTLED and self.stage_of(step) != stage:
            self.leave(step)
            self._open[step] = (stage, self._marker.start(stage, step))

    def leave(self, step: Step) -> None:
        """The step is between stages, or over."""
        found = self._open.pop(step, None)
        if found is not None:
            self._marker.end(found[1])

    def stage_of(self, step: Step) -> str | None:
        """The stage whose range is open."""
        found = self._open.get(step)
        return None if found is None else found[0]


def annotate(pipeline: Pipeline, marker: Marker) -> None:
    """Wrap what the stages do for each step.

    build: from its start, or from when it was given to a worker, to its end. acquire: from there until the step has a
    slot. h2d and launch: the enqueueing. retire: from when the last fence was seen to the settling.
    """
    ranges = _Ranges(marker)
    build, acquire, h2d, launch, retire = (
        pipeline.build,
        pipeline.acquire,
        pipeline.h2d,
        pipeline.launch,
        pipeline.retire,
    )

    def built(step: Step) -> None:
        if step.state == BUILT:
            ranges.enter("acquire", step)
        else:
            ranges.leave(step)

    def began_on_workers() -> None:
        for step in build.working:
            ranges.enter("build", step)

    def acquired() -> None:
        for step in h2d.queue:
            if ranges.stage_of(step) == "acquire":
                ranges.leave(step)

    def launched(step: Step) -> None:
        if launch.busy is not step:
            ranges.leave(step)

    _around(build, "build_inline", before=lambda step: ranges.enter("build", step), after=built)
    _around(build, "built", after=built)
    _around(build, "advance", after=began_on_workers)
    _around(acquire, "advance", after=acquired)
    _around(h2d, "copy", before=lambda step: ranges.enter("h2d", step), after=ranges.leave)
    _around(launch, "launch", before=lambda step: ranges.enter("launch", step), after=launched)
    _around(launch, "_launched", after=ranges.leave)
    _around(launch, "_launch_failed", after=ranges.leave)
    _around(retire, "_fence_reached", before=lambda step: ranges.enter("retire", step))
    _around(pipeline.settling, "settle", before=ranges.leave)


def _around(
    owner: object,
    method: str,
    *,
    before: Callable[..., None] | None = None,
    after: Callable[..., None] | None = None,
) -> None:
    """Replace a method of one object by one that also calls these, with its first argument, the step, if it has one."""
    original = getattr(owner, method)

    def call(*args: Any, **options: Any) -> Any:
        if before is not None:
            before(*args[:1])
        try:
            return original(*args, **options)
        finally:
            if after is not None:
                after(*args[:1])

    setattr(owner, method, call)
