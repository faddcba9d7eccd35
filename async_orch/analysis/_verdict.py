"""What bounds a step: the largest of the parts that its time goes to, with the figures that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from async_orch.analysis._columns import Rows
from async_orch.analysis._percentiles import exact_sum
from async_orch.analysis._table import MISSING, Column
from async_orch.analysis._units import duration, share, size

__all__ = ["Verdict", "verdict_of"]

_PARTS: Final = {"build": "orch_ns", "allocation": "alloc_ns", "copy": "copy_ns", "device": "device_ns"}
_HOOKS: Final = {"feed": "feed_ns", "launch": "launch_ns"}
_UNDIVIDED: Final = {"build": "orch_ns", "allocation or copy": "h2d_ns"}
_STARVED_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds a group of steps.

    ``bound`` is the largest of ``parts``: ``build``, ``allocation``, ``copy``, ``feed``, ``launch``, ``device``, or
    ``allocation or copy`` where the log does not tell these two apart; or it is ``starved``, where the device waited
    for the caller: for a tenth of the time from step to step or more, and for half of its idle time or more. ``parts``
    gives each part's mean in nanoseconds, floored, over the ``steps`` that have all of them; ``share`` is the largest
    one's part of their sum, or starved time's part of the time from step to step. ``estimated`` is true if allocation
    was not measured but inferred from the rate of the task table's copy. ``text`` says all of it in words.
    """

    bound: str
    share: float
    parts: dict[str, int]
    steps: int
    estimated: bool
    text: str


def verdict_of(rows: Rows, *, estimated: bool, intervals: Column | None = None) -> Verdict | None:
    """Judge a group of steps by the means of its parts; None if no step has the figures for it.

    In a serial run the largest part is where a step's time goes; in a pipelined run, where parts of different
    steps overlap, it is what the rate of steps cannot exceed. `estimated` says that the rows' allocation time is
    an estimate. `intervals` are the times from step to step in ns, without which nothing is said of starving.
    """
    columns = {part: rows.figure(name) for part, name in (_PARTS | _HOOKS).items()}
    seen = {part: values for part, values in columns.items() if np.any(values != MISSING)}
    undivided = "copy" not in seen
    if undivided:
        seen = {part: rows.figure(name) for part, name in _UNDIVIDED.items()}
    complete = _complete({part: values for part, values in seen.items() if part not in _HOOKS})
    steps = int(np.count_nonzero(complete))
    if "build" not in seen or steps == 0:
        return None
    # A step that was fed or launched by nobody, so to speak, spent no time on it.
    sums = {part: exact_sum(np.where(values == MISSING, 0, values)[complete]) for part, values in seen.items()}
    total = sum(sums.values())
    if total == 0:
        return None
    bound = max(sums, key=lambda part: sums[part])
    parts = {part: value // steps for part, value in sums.items()}
    part_share = sums[bound] / total
    text = (
        f"{bound} bound: {bound} takes {duration(parts[bound])} of the {duration(total // steps)} "
        f"of work in a step ({share(part_share)}){_others(parts, bound, total // steps)}."
    )
    starved = _starved(rows, complete, intervals)
    if starved is not None:
        starved_ns, interval_ns = starved
        text = (
            f"starved: of the {duration(interval_ns)} from step to step the device waited {duration(starved_ns)} for "
            f"the caller to submit ({share(starved_ns / interval_ns)}). Of the work in a step {bound} is the largest "
            f"part, {duration(parts[bound])}{_others(parts, bound, total // steps)}."
        )
        bound, part_share = "starved", starved_ns / interval_ns
    if undivided:
        text += " The log does not tell allocation from copy: there is no sm_bw to compare with."
    elif "allocation" not in seen:
        text += " What allocation took is not known to the backend."
    elif estimated and sums["allocation"]:
        text += " " + _estimate_text(rows, complete)
    if steps < len(rows):
        text += f" From the {steps} of {len(rows)} steps that have these figures."
    return Verdict(bound, part_share, parts, steps, estimated and "allocation" in seen, text)


def _others(parts: dict[str, int], bound: str, total_ns: int) -> str:
    """The parts that are not the largest; hooks only where they are a hundredth of the whole."""
    shown = [
        f"{part} {duration(value)}"
        for part, value in parts.items()
        if part != bound and (part not in _HOOKS or value * 100 >= total_ns)
    ]
    return "".join(f", {part}" for part in shown)


def _starved(rows: Rows, complete: npt.NDArray[np.bool_], intervals: Column | None) -> tuple[int, int] | None:
    """Mean starved time and mean time from step to step, if the device starved."""
    if intervals is None or len(intervals) == 0:
        return None
    starved, device = rows.figure("starved_ns")[complete], rows.figure("device_ns")[complete]
    known = (starved != MISSING) & (device != MISSING)
    if not np.any(known):
        return None
    count = int(np.count_nonzero(known))
    starved_ns, device_ns = exact_sum(starved[known]) // count, exact_sum(device[known]) // count
    interval_ns = exact_sum(intervals) // len(intervals)
    idle_ns = interval_ns - device_ns
    if starved_ns >= _STARVED_SHARE * interval_ns and 2 * starved_ns >= idle_ns > 0:
        return starved_ns, interval_ns
    return None


def _complete(columns: dict[str, Column]) -> npt.NDArray[np.bool_]:
    complete: npt.NDArray[np.bool_] = np.ones(len(next(iter(columns.values()))), np.bool_)
    for values in columns.values():
        complete &= values != MISSING
    return complete


def _estimate_text(rows: Rows, complete: npt.NDArray[np.bool_]) -> str:
    steps = int(np.count_nonzero(complete))
    graph_ns, alloc_ns, graph_nbytes = (
        exact_sum(rows.figure(name)[complete]) // steps for name in ("graph_ns", "alloc_ns", "graph_nbytes")
    )
    rates = rows.figure("sm_bw")[complete]
    rates = rates[rates != MISSING]
    rate = f"the {rates[0]} MB/s of sm_bw" if len(rates) and np.all(rates == rates[0]) else "each step's sm_bw"
    return (
        f"Estimated: copying the graph's {size(graph_nbytes)} at {rate} would take {duration(graph_ns - alloc_ns)}; "
        f"the other {duration(alloc_ns)} of graph's {duration(graph_ns)} is allocation and memset."
    )
