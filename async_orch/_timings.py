"""When a step did what: the view of a `Step` that users get."""

from __future__ import annotations

from typing import NamedTuple

from async_orch._step import UNKNOWN, Step

__all__ = ["StepTimings", "copied_nbytes", "timings_of"]


class StepTimings(NamedTuple):
    """When a step did what, and for how long.

    Starts are CLOCK_MONOTONIC nanoseconds, durations nanoseconds, sizes bytes; None where the step did not get
    there or the device cannot tell. The step log has the same fields.

    ``h2d_*`` is the copy of the image, ``device_*`` the time between the compute stream reaching the step's
    kernels and leaving them, ``d2h_ns`` the copy of the output. ``bubble_ns`` is the idle time of the device before
    the step (None for the first), ``starved_ns`` the part of it before the step was accepted: the caller's share.
    """

    submit_ns: int
    accept_ns: int
    build_start_ns: int | None
    build_ns: int | None
    acquire_start_ns: int | None
    acquire_wait_ns: int | None
    h2d_start_ns: int | None
    h2d_ns: int | None
    alloc_count: int | None
    alloc_nbytes: int | None
    alloc_ns: int | None
    copy_nbytes: int | None
    sm_nbytes: int | None
    launch_start_ns: int | None
    launch_ns: int | None
    device_start_ns: int | None
    device_ns: int | None
    d2h_ns: int | None
    d2h_nbytes: int | None
    retire_start_ns: int | None
    retire_ns: int | None
    total_ns: int | None
    bubble_ns: int | None
    starved_ns: int | None


def copied_nbytes(step: Step) -> tuple[int, int]:
    """Bytes of the image that were really copied, and how many of them belong to the task table; or `UNKNOWN`."""
    delta = step.delta
    if delta is None:
        return step.copy_nbytes, step.sm_nbytes
    return delta.nbytes, UNKNOWN if step.sm_nbytes == UNKNOWN else delta.nbytes_below(step.sm_nbytes)


def timings_of(step: Step) -> StepTimings:
    """The step's timings with None for what is unknown."""
    copy_nbytes, sm_nbytes = copied_nbytes(step)
    return StepTimings(
        submit_ns=step.submit_ns,
        accept_ns=step.accept_ns,
        build_start_ns=_known(step.build_start_ns),
        build_ns=_between(step.build_start_ns, step.build_end_ns),
        acquire_start_ns=_known(step.acquire_start_ns),
        acquire_wait_ns=_between(step.acquire_start_ns, step.acquire_ns),
        h2d_start_ns=_known(step.h2d_start_ns),
        h2d_ns=_known(step.h2d_ns),
        alloc_count=_known(step.alloc_count),
        alloc_nbytes=_known(step.alloc_nbytes),
        alloc_ns=_known(step.alloc_ns),
        copy_nbytes=_known(copy_nbytes),
        sm_nbytes=_known(sm_nbytes),
        launch_start_ns=_known(step.launch_start_ns),
        launch_ns=_between(step.launch_start_ns, step.launch_end_ns),
        device_start_ns=_known(step.device_start_ns),
        device_ns=_known(step.device_ns),
        d2h_ns=_known(step.d2h_ns),
        d2h_nbytes=_known(step.d2h_nbytes),
        retire_start_ns=_known(step.retire_start_ns),
        retire_ns=_between(step.retire_start_ns, step.retire_end_ns),
        total_ns=_between(step.accept_ns, step.retire_end_ns),
        bubble_ns=_known(step.bubble_ns),
        starved_ns=_known(step.starved_ns),
    )


def _known(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _between(start: int, end: int) -> int | None:
    return None if start == UNKNOWN or end == UNKNOWN else end - start
