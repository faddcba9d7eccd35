"""One ``collect`` on the collect thread, and what it may return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from async_orch._escape import escapes
from async_orch._step import Step
from async_orch.abc import ByteArray
from async_orch.exceptions import OutputEscaped

if TYPE_CHECKING:
    from async_orch._program import ProgramRuntime

__all__ = ["NO_OUTPUT", "CollectJob", "collect", "escaped"]

NO_OUTPUT: ByteArray = np.empty(0, np.uint8)
NO_OUTPUT.flags.writeable = False
"""What ``collect`` of a program without output sees."""


class CollectJob:
    """One ``collect`` on the collect thread."""

    __slots__ = ("abandoned", "error", "output", "payload", "step", "view")

    def __init__(self, step: Step, view: ByteArray) -> None:
        self.step = step
        self.payload = step.payload
        self.view = view
        self.output: Any = None
        self.error: BaseException | None = None
        self.abandoned = False


def escaped(program: ProgramRuntime) -> OutputEscaped:
    """The error for a collect that kept memory of its view."""
    return OutputEscaped(
        f"collect of {type(program.program).__name__} returned memory of the output view, "
        "which a later step overwrites; return a copy, e.g. output.copy()"
    )


def collect(job: CollectJob) -> None:
    """Run the hook; its outcome, an exception too, stays in the job."""
    program, view = job.step.program, job.view
    try:
        output = program.collect(job.payload, view)
        if output is not None and escapes(output, view):
            raise escaped(program)
        job.output = output
    except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
        job.error = exc
