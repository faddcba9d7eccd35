"""What a reader has seen: counts of what it read and of what it skipped."""

from __future__ import annotations

from dataclasses import dataclass

from async_orch.analysis._consistency import NO_CONTRADICTIONS, StepContradictions

__all__ = ["Contradiction", "Reading"]


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A ``host-orch:`` line that was read although its figures disagree: where (from 1) and how."""

    line_number: int
    text: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a reader has seen so far.

    ``lines`` counts physical lines. ``steps``, ``host_orch_lines``, ``spans``, ``bind_phases``, ``clock_anchors``:
    records read. ``other_events``: our own events that are no step's end, such as ``orchestrator.opened``.
    ``skipped``: pieces by kind, most frequent first. ``contradictions``: how many ``host-orch:`` lines disagree
    with themselves, the first few of them in ``first_contradictions``. ``modes``: the mode of each run whose
    ``orchestrator.opened`` was read. ``damaged``: compressed files that break off or are corrupt, in words.
    ``hint``: what to do if nothing could be read, where the first bytes tell. ``step_contradictions``: step records
    that disagree with themselves (`read_frames` only). ``unread``: inputs that could not be opened or read and were
    left out, in words (the ``async-orch`` command only; the functions raise).
    """

    lines: int
    steps: int
    host_orch_lines: int
    spans: int
    bind_phases: int
    clock_anchors: int
    other_events: int
    skipped: dict[str, int]
    contradictions: int
    first_contradictions: tuple[Contradiction, ...]
    modes: dict[str, str]
    damaged: tuple[str, ...]
    hint: str | None
    step_contradictions: StepContradictions = NO_CONTRADICTIONS
    unread: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Records with figures in them: steps, lines, spans and phases; an anchor alone says nothing."""
        return self.steps + self.host_orch_lines + self.spans + self.bind_phases
