"""The figures of each step as rows of 64-bit integers: 8 bytes a figure and step, whatever the log's size."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
import numpy.typing as npt

from async_orch.analysis._host_orch import estimate_allocation
from async_orch.logs import HostOrch, StepRecord, bandwidth_mb_per_s, host_orch

__all__ = ["COLUMNS", "MISSING", "StepRows"]

MISSING: Final = -(2**63)
"""Stands for a figure that a step does not have; no figure can have this value."""

COLUMNS: Final = (
    "orch_ns",
    "h2d_ns",
    "graph_ns",
    "sm_ns",
    "alloc_nbytes",
    "copy_nbytes",
    "bw",
    "sm_bw",
    "alloc_ns",
    "copy_ns",
    "graph_nbytes",
    "device_ns",
    "bubble_ns",
    "total_ns",
    "run",
    "end_ns",
    "device_start_ns",
)
_INDEX: Final = {name: index for index, name in enumerate(COLUMNS)}


class StepRows:
    """Rows of `COLUMNS`, one a step, that grow at their end.

    ``alloc_ns`` and ``copy_ns`` are measured in a step record and estimated for a ``host-orch:`` line;
    ``graph_nbytes`` are the copied bytes that are no task table's. ``run`` numbers the runs of a log from 0,
    ``end_ns`` is the end of retire.
    """

    def __init__(self) -> None:
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values) // len(COLUMNS)

    def add_step(self, record: StepRecord, run: int) -> None:
        """Append a step record's figures."""
        copy_nbytes, sm_nbytes = record.copy_nbytes, record.sm_nbytes
        accept_ns, total_ns = record.accept_ns, record.total_ns
        timed = record.device_clock is not None and record.device_clock != "none"
        self._append(
            *host_orch(record),
            record.alloc_ns,
            record.h2d_ns,
            None if copy_nbytes is None or sm_nbytes is None else copy_nbytes - sm_nbytes,
            record.device_ns if timed else None,
            record.bubble_ns,
            total_ns,
            run,
            None if accept_ns is None or total_ns is None else accept_ns + total_ns,
            record.device_start_ns if timed else None,
        )

    def add_host_orch(self, line: HostOrch) -> None:
        """Append a ``host-orch:`` line's figures, with `bw` computed anew from the others."""
        estimate = estimate_allocation(line)
        bw = bandwidth_mb_per_s(line.copy_nbytes, line.h2d_ns)
        self._append(
            *line._replace(bw=line.bw if bw is None else bw),
            None if estimate is None else estimate.alloc_ns,
            None if estimate is None or line.sm_ns is None else estimate.graph_copy_ns + line.sm_ns,
            None if estimate is None else estimate.graph_nbytes,
            *(None,) * 6,
        )

    def _append(self, *figures: int | None) -> None:
        self._values.extend([MISSING if figure is None else figure for figure in figures])

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """One column, a value a step, `MISSING` where a step does not have it."""
        # The copy ends the loan of the array's memory at once; an array that is lent out cannot grow.
        return np.frombuffer(self._values, dtype=np.int64)[_INDEX[name] :: len(COLUMNS)].copy()
