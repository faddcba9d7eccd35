"""Whether times on the device can be compared with times on the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from async_orch.analysis._frames import StepFrame
from async_orch.analysis._table import MISSING

__all__ = ["host_clock"]


def host_clock(frame: StepFrame) -> npt.NDArray[np.bool_]:
    """For each step, whether its device times are on the host's clock; shape (steps,).

    They are where the record says ``host`` or ``anchored``. A clock of the device's own counts as the host's if
    every kernel of the run lies between its launch and the time the host saw its end, as it must on one clock.
    """
    stated = np.array([kind.device_clock in ("host", "anchored") for kind in frame.kinds] or [False])
    held = stated[frame.kind]
    own_runs = {kind.run_id for kind in frame.kinds if kind.device_clock == "device"}
    for run_id in sorted(own_runs):
        own = np.array([kind.run_id == run_id and kind.device_clock == "device" for kind in frame.kinds])[frame.kind]
        steps = frame.take(own)
        names = ("launch_start_ns", "device_start_ns", "device_ns", "retire_start_ns")
        launch, start, length, retire = (steps.column(name) for name in names)
        known = np.logical_and.reduce([values != MISSING for values in (launch, start, length, retire)])
        if bool(known.any()) and bool(np.all((launch <= start) & (start + length <= retire) | ~known)):
            held |= own
    return held
