"""Figures that belong together, of the one step at a p50."""

from __future__ import annotations

import numpy as np

from async_orch.analysis._columns import Rows, known_of
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._percentiles import rank_index

__all__ = ["h2d_at_p50", "sm_nbytes_range"]


def _step_at_p50(values: Column) -> int | None:
    """The row at the p50 of `values`; of several with its value, the one that a stable sort puts there."""
    known = known_of(values)
    if not len(known):
        return None
    rank = rank_index(50, len(known))
    p50 = np.partition(known, rank)[rank]
    less = np.count_nonzero(known < p50)
    return int(np.flatnonzero(values == p50)[rank - less])


def h2d_at_p50(rows: Rows) -> tuple[int, int, int] | None:
    """(H2D, graph, sm) in ns of the step whose H2D is the p50; None if it lacks one of them."""
    h2d = rows.figure("h2d_ns")
    step = _step_at_p50(h2d)
    if step is None:
        return None
    graph, sm = int(rows.figure("graph_ns")[step]), int(rows.figure("sm_ns")[step])
    return None if MISSING in (graph, sm) else (int(h2d[step]), graph, sm)


def sm_nbytes_range(rows: Rows) -> tuple[int, int] | None:
    """Bounds of the task table's bytes on the line whose ``sm_bw`` is the p50; None if they are not known."""
    step = _step_at_p50(rows.figure("sm_bw"))
    if step is None:
        return None
    least, most = int(rows.figure("sm_least_nbytes")[step]), int(rows.figure("sm_most_nbytes")[step])
    return None if MISSING in (least, most) or most < least else (least, most)
