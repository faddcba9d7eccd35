"""What is in a log, in columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from async_orch.analysis._columns import LineRows
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._markers import ClockAnchor
from async_orch.analysis._reading import Reading
from async_orch.analysis._spans import PhaseFrame, SpanFrame

__all__ = ["LogFrames"]


@dataclass(frozen=True, slots=True)
class LogFrames:
    """Everything of use in one or more logs.

    ``steps``: step records. ``host_orch``: ``host-orch:`` lines. ``spans``: ``[STRACE]`` spans. ``phases``: ``bind
    phase=`` lines. ``anchors``: clock anchors, those in ``orchestrator.opened`` too. ``opened``: that event, by run.
    ``reading``: what was read and skipped.
    """

    steps: StepFrame
    host_orch: LineRows
    spans: SpanFrame
    phases: PhaseFrame
    anchors: tuple[ClockAnchor, ...]
    opened: dict[str, dict[str, Any]]
    reading: Reading
