"""What ``async-orch bench`` measures, each figure with a check that the work was done.

Uses the public names only, as a user's program does. The benches of the repository add the comparison with other
libraries and run the same functions for longer.
"""

from __future__ import annotations

from async_orch._bench._checks import CheckFailed
from async_orch._bench._copies import Bandwidth, measure_copies
from async_orch._bench._figures import FIGURES, Measured, measure_all
from async_orch._bench._overhead import Cost, engine_cost, queue_cost
from async_orch._bench._overlap import Overlapped, Shape, measure_feed, measure_overlap
from async_orch._bench._wakeups import threaded_cost, wakeup_cost

__all__ = [
    "FIGURES",
    "Bandwidth",
    "CheckFailed",
    "Cost",
    "Measured",
    "Overlapped",
    "Shape",
    "engine_cost",
    "measure_all",
    "measure_copies",
    "measure_feed",
    "measure_overlap",
    "queue_cost",
    "threaded_cost",
    "wakeup_cost",
]
