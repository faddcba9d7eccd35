"""Whether times on the device can be compared with times on the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from async_orch.analysis._fields import MISSING, Kind
from async_orch.analysis._frames import StepFrame

__all__ = ["host_clock", "host_clock_kinds", "kinds_on_host_clock"]


def host_clock(frame: StepFrame) -> npt.NDArray[np.bool_]:
    """For each step, whether its device times are on the host's clock, see `kinds_on_host_clock`; shape (steps,)."""
    return kinds_on_host_clock(frame)[frame.kind]


def host_clock_kinds(frame: StepFrame) -> frozenset[Kind]:
    """The kinds for which `kinds_on_host_clock` holds: what all of a run shows, for frames of some of its steps."""
    return frozenset(kind for kind, held in zip(frame.kinds, kinds_on_host_clock(frame), strict=False) if held)


def kinds_on_host_clock(frame: StepFrame) -> npt.NDArray[np.bool_]:
    """For each of the frame's kinds, whether the device times of its steps are on the host's clock; shape (kinds,).

    They are where the record says ``host`` or ``anchored``. A clock of the device's own counts as the host's if
    every kernel of the run lies between its launch and the time the host saw its end, as it must on one clock.
    """
    stated = np.array([kind.device_clock in ("host", "anchored") for kind in frame.kinds], np.bool_)
    own = np.array([kind.device_clock == "device" for kind in frame.kinds], np.bool_)
    if not own.any():
        return stated
    runs: dict[str, int] = {}
    run_of_kind = np.array([runs.setdefault(kind.run_id, len(runs)) for kind in frame.kinds])
    run = run_of_kind[frame.kind]
    names = ("launch_start_ns", "device_start_ns", "device_ns", "retire_start_ns")
    launch, start, length, retire = (frame.column(name) for name in names)
    known = own[frame.kind]
    for values in (launch, start, length, retire):
        known &= values != MISSING
    lies_between = (launch <= start) & (start + length <= retire)
    timed = np.bincount(run[known], minlength=len(runs)) > 0
    strays = np.bincount(run[known & ~lies_between], minlength=len(runs)) > 0
    same_clock: npt.NDArray[np.bool_] = (timed & ~strays)[run_of_kind]
    return stated | (own & same_clock)
