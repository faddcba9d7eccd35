"""A build on its way through a worker, thread or process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from async_orch._step import UNKNOWN, Step

if TYPE_CHECKING:
    from async_orch._staging import Staging

__all__ = ["BuildJob"]


class BuildJob:
    """What a worker needs to build one step, and what came of it.

    ``lease`` and ``slot`` are the step's own; the job gives them back if the step has settled by the time that the
    worker is done with them. ``began_s`` is the loop's time at which a worker took it, None before. ``staging`` is set
    where the image must be copied from shared memory once it is built.
    """

    __slots__ = (
        "abandoned",
        "began_s",
        "cold",
        "copy_ns",
        "end_ns",
        "error",
        "lease",
        "payload",
        "result",
        "slot",
        "staging",
        "start_ns",
        "step",
        "view",
    )

    def __init__(self, step: Step, view: Any) -> None:
        self.step = step
        self.payload = step.payload
        self.view = view
        self.lease = step.staging
        self.slot = step.slot
        self.result: Any = None
        self.error: BaseException | None = None
        self.staging: Staging | None = None
        self.cold = False
        self.abandoned = False
        self.began_s: float | None = None
        self.start_ns = self.end_ns = self.copy_ns = UNKNOWN
