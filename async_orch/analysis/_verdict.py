"""What bounds a step: the largest of the parts that its time goes to, with the figures that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from async_orch.analysis._columns import Rows, chosen, known_of
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._percentiles import exact_sum
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
    seen = {part: name for part, name in (_PARTS | _HOOKS).items() if _occurs(rows, name)}
    undivided = "copy" not in seen
    if undivided:
        seen = _UNDIVIDED
    work = _work_of(rows, seen)
    steps, sums = work.steps, work.sums
    if "build" not in seen or steps == 0:
        return None
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
    starved = None if intervals is None else _starved(work, intervals)
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
        text += " " + _estimate_text(rows, _complete(rows, seen))
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


def _occurs(rows: Rows, name: str) -> bool:
    return any(bool(np.any(part.figure(name) != MISSING)) for part in rows.parts())


@dataclass(slots=True)
class _Work:
    """Sums over the ``steps`` that have all parts but those of hooks: in ``sums`` of each part, in ns.

    ``starved_ns`` and ``device_ns`` are sums over those of them, ``timed_steps``, that have both.
    """

    sums: dict[str, int]
    steps: int = 0
    starved_ns: int = 0
    device_ns: int = 0
    timed_steps: int = 0


def _work_of(rows: Rows, names: dict[str, str]) -> _Work:
    """Sum up the figures that `names` gives for each part."""
    work = _Work(dict.fromkeys(names, 0))
    for some in rows.parts():
        complete = _complete(some, names)
        work.steps += int(np.count_nonzero(complete))
        for part, name in names.items():
            # A step that was fed or launched by nobody, so to speak, spent no time on it.
            work.sums[part] += exact_sum(known_of(chosen(some.figure(name), complete)))
        starved, device = (chosen(some.figure(name), complete) for name in ("starved_ns", "device_ns"))
        timed = (starved != MISSING) & (device != MISSING)
        work.starved_ns += exact_sum(chosen(starved, timed))
        work.device_ns += exact_sum(chosen(device, timed))
        work.timed_steps += int(np.count_nonzero(timed))
    return work


def _starved(work: _Work, intervals: Column) -> tuple[int, int] | None:
    """Mean starved time and mean time from step to step, if the device starved."""
    if not work.timed_steps or not len(intervals):
        return None
    starved_ns, device_ns = work.starved_ns // work.timed_steps, work.device_ns // work.timed_steps
    interval_ns = exact_sum(intervals) // len(intervals)
    idle_ns = interval_ns - device_ns
    if starved_ns >= _STARVED_SHARE * interval_ns and 2 * starved_ns >= idle_ns > 0:
        return starved_ns, interval_ns
    return None


def _complete(rows: Rows, names: dict[str, str]) -> npt.NDArray[np.bool_]:
    """The steps that have all parts but those of hooks; shape (steps,)."""
    complete: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
    for part, name in names.items():
        if part not in _HOOKS:
            complete &= rows.figure(name) != MISSING
    return complete


def _estimate_text(rows: Rows, complete: npt.NDArray[np.bool_]) -> str:
    steps = int(np.count_nonzero(complete))
    graph_ns, alloc_ns, graph_nbytes = (
        exact_sum(chosen(rows.figure(name), complete)) // steps for name in ("graph_ns", "alloc_ns", "graph_nbytes")
    )
    rates = known_of(chosen(rows.figure("sm_bw"), complete))
    rate = f"the {rates[0]} MB/s of sm_bw" if len(rates) and np.all(rates == rates[0]) else "each step's sm_bw"
    return (
        f"Estimated: copying the graph's {size(graph_nbytes)} at {rate} would take {duration(graph_ns - alloc_ns)}; "
        f"the other {duration(alloc_ns)} of graph's {duration(graph_ns)} is allocation and memset."
    )
