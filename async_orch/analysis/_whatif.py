"""What another setting would bring: measured stage times, replayed by the model of the pipeline."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, get_args

import numpy as np

from async_orch.analysis._clock import host_clock
from async_orch.analysis._columns import Rows, StepRows, copied_ns, known_of
from async_orch.analysis._fields import MISSING, Column
from async_orch.analysis._frames import StepFrame
from async_orch.analysis._log_frames import LogFrames
from async_orch.analysis._model import Mode, Outcome, Setting, StepCost, simulate
from async_orch.analysis._overlap import workers_of
from async_orch.analysis._percentiles import exact_sum, rank_index
from async_orch.analysis._shown import shown

__all__ = ["Prediction", "WhatIf", "WhatIfError", "whatif"]

_MAX_STEPS: Final = 2000
_LEAST_STEPS: Final = 20
_FILL_FACTOR: Final = 2
_AS_GOOD: Final = 0.99


class WhatIfError(ValueError):
    """The log does not hold what a prediction needs; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the model says of a setting: the rate, accept to end at p50 and p99 in ns, the device's idle share, and the
    resource that is busiest with the part of the time that it is busy. Fill and drain are left out.
    """

    setting: Setting
    steps_per_s: float
    p50_ns: int
    p99_ns: int
    device_idle_share: float
    critical: str
    critical_busy_share: float


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Predictions for one run. ``as_run`` is the setting that the log was made with, to hold against what was measured:
    ``measured_steps_per_s``, and ``error`` = predicted / measured - 1. ``recommended`` is the least setting (slots,
    then queue depth, then workers) that comes within 1 % of the best rate.
    """

    run_id: str
    steps: int
    as_run: Prediction
    measured_steps_per_s: float
    error: float
    starved_share: float
    predictions: tuple[Prediction, ...]
    recommended: Prediction


def whatif(frames: LogFrames, settings: Iterable[dict[str, Any]], *, run_id: str | None = None) -> WhatIf:
    """Predict each of `settings`, fields of `Setting` to change from how the run was made.

    Uses up to 2000 warm steps of the run (default: the one with the most steps), in their order. Raises `WhatIfError`
    where the log lacks stage times, or a setting cannot be.
    """
    run, opened = _run_of(frames, run_id)
    costs, rows = _costs(run)
    base = _as_run(opened)
    handover = _percentile(rows.figure("launch_wait_ns"), 50)
    wake = _wake_ns(rows, inline=not base.build_workers)

    changed = [_changed(base, changes) for changes in settings]
    if not changed:
        raise WhatIfError("no setting to predict")
    fill = _fill((base, *changed), len(costs))

    def predict(setting: Setting) -> Prediction:
        return _prediction(setting, simulate(costs, setting, handover_ns=handover, wake_ns=wake), fill)

    as_run = predict(base)
    measured = _measured_rate(rows)
    predictions = tuple(map(predict, changed))
    best = max(item.steps_per_s for item in predictions)
    good = [item for item in predictions if item.steps_per_s >= _AS_GOOD * best]
    starved = rows.figure("starved_ns")
    ended = known_of(rows.figure("end_ns"))
    return WhatIf(
        run_id=run.kinds[run.kind[0]].run_id,
        steps=len(costs),
        as_run=as_run,
        measured_steps_per_s=measured,
        error=as_run.steps_per_s / measured - 1,
        starved_share=exact_sum(known_of(starved)) / max(int(ended.max() - ended.min()), 1),
        predictions=predictions,
        recommended=min(good, key=lambda item: _effort(item.setting)),
    )


def _fill(settings: Sequence[Setting], steps: int) -> int:
    """How many first steps no prediction counts: the same for all, or the rates would differ as the steps do."""
    return min(_FILL_FACTOR * max(setting.slots + setting.queue_depth for setting in settings), steps // 3)


def _effort(setting: Setting) -> tuple[float, int, int, int]:
    """What a setting asks for: first that stages take other times than they did, then memory and threads."""
    factors = sum(abs(factor - 1) for factor in (setting.build_x, setting.copy_x, setting.device_x))
    return factors, setting.slots, setting.queue_depth, setting.build_workers


def _run_of(frames: LogFrames, run_id: str | None) -> tuple[StepFrame, dict[str, Any]]:
    counts: dict[str, int] = {}
    for kind, count in zip(
        frames.steps.kinds, np.bincount(frames.steps.kind, minlength=len(frames.steps.kinds)), strict=True
    ):
        counts[kind.run_id] = counts.get(kind.run_id, 0) + int(count)
    if not counts:
        raise WhatIfError("the log has no step records; a prediction needs the stage times in them")
    chosen = max(counts, key=lambda name: counts[name]) if run_id is None else run_id
    if chosen not in counts:
        raise WhatIfError(f"no run {chosen!r} in the log; it has {', '.join(map(shown, list(counts)[:10]))}")
    run = frames.steps.where(lambda kind: kind.run_id == chosen and kind.event == "step.completed")
    if not len(run):
        raise WhatIfError(f"no step of run {shown(chosen)} was completed")
    return run, frames.opened.get(chosen, {})


def _costs(run: StepFrame) -> tuple[list[StepCost], Rows]:
    run = run.take(np.argsort(run.column("seq"), kind="stable"))
    cold = np.array([kind.cold_reason not in (None, "each_step") for kind in run.kinds])[run.kind]
    run = run.take(~cold)
    rows = StepRows(run)
    needed = {name: run.column(name) for name in ("build_ns", "launch_ns", "device_ns", "retire_ns")}
    needed["h2d_ns"] = copied_ns(run)
    whole = np.logical_and.reduce([values != MISSING for values in needed.values()])
    if int(np.count_nonzero(whole)) < _LEAST_STEPS:
        counts = {name: int(np.count_nonzero(values != MISSING)) for name, values in needed.items()}
        raise WhatIfError(
            f"{int(np.count_nonzero(whole))} warm steps have all stage times, at least {_LEAST_STEPS} are needed; "
            "known: " + ", ".join(f"{name} of {count}" for name, count in counts.items())
        )
    kept = run.take(np.flatnonzero(whole)[:_MAX_STEPS])
    names = ("build_ns", "alloc_ns", "h2d_ns", "launch_ns", "device_ns", "d2h_ns", "retire_ns")
    columns = [np.where((values := kept.column(name)) == MISSING, 0, values).tolist() for name in names]
    columns += [_copy_delay(kept).tolist(), _start_delay(kept).tolist()]
    return [StepCost(*step) for step in zip(*columns, strict=True)], rows


def _copy_delay(run: StepFrame) -> Column:
    """How long the copy of each step began after it had its slot and the copy before was over; see `_start_delay`."""
    names = ("acquire_start_ns", "acquire_wait_ns", "h2d_start_ns", "h2d_ns")
    acquire, wait, start, length = (run.column(name) for name in names)
    known = host_clock(run)
    for values in (acquire, wait, start, length):
        known = known & (values != MISSING)
    end = np.maximum.accumulate(np.where(known, start + length, 0))
    held_until = np.maximum(acquire + wait, np.concatenate([[0], end[:-1]]))
    return np.where(known, np.maximum(start - held_until, 0), 0)


def _start_delay(run: StepFrame) -> Column:
    """How long the kernels of each step began after nothing held them any more: the stream's own time to notice.

    They are held by their launch, their image's copy, and the step before with its output copy. 0 where the device's
    times are not on the host's clock.
    """
    names = ("device_start_ns", "launch_start_ns", "h2d_start_ns", "h2d_ns", "bubble_ns")
    start, launch, copy_start, copy, bubble = (run.column(name) for name in names)
    known = host_clock(run) & ((copy != MISSING) | (copied_ns(run) == 0))
    for values in (start, launch, bubble):
        known = known & (values != MISSING)
    copied = np.where((copy == MISSING) | (copy_start == MISSING), launch, copy_start + copy)
    held_until = np.maximum(np.maximum(launch, copied), start - bubble)
    return np.where(known, np.maximum(start - held_until, 0), 0)


def _as_run(opened: dict[str, Any]) -> Setting:
    config = opened.get("config")
    if not isinstance(config, dict):
        raise WhatIfError(
            "the log lacks the run's orchestrator.opened, which says what it was set to; give a whole log"
        )
    limit = config.get("max_inflight")
    mode = config.get("mode")
    return _checked(
        Setting(
            slots=config.get("slots", 3),
            queue_depth=config.get("queue_depth", 2),
            max_inflight=limit if isinstance(limit, int) else None,
            build_workers=workers_of(opened),
            mode=cast(Mode, mode if mode in get_args(Mode) else "pipelined"),
        )
    )


def _changed(base: Setting, changes: dict[str, Any]) -> Setting:
    known = {item.name for item in dataclasses.fields(Setting)}
    for name in changes:
        if name not in known:
            raise WhatIfError(f"no setting {name!r}; settings are {', '.join(sorted(known))}")
    return _checked(dataclasses.replace(base, **changes))


def _checked(setting: Setting) -> Setting:
    for name in ("slots", "queue_depth", "build_workers", "max_inflight"):
        value = getattr(setting, name)
        if name == "max_inflight" and value is None:
            continue
        least = 0 if name == "build_workers" else 1
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 4096:
            raise WhatIfError(f"{name}={value!r} must be a whole number from {least} to 4096")
    for name in ("build_x", "copy_x", "device_x"):
        if not 0 <= getattr(setting, name) <= 1000:
            raise WhatIfError(f"{name}={getattr(setting, name)!r} must be a factor from 0 to 1000")
    return setting


def _percentile(values: Column, percent: int) -> int:
    known = np.sort(values[values != MISSING])
    return int(known[rank_index(percent, len(known))]) if len(known) else 0


def _wake_ns(rows: Rows, *, inline: bool) -> int:
    """How long after an output's arrival, or the end of what kept the loop busy then, its retirement begins."""
    wait = rows.figure("retire_wait_ns")
    retire = rows.figure("retire_start_ns")
    known = wait != MISSING
    if not bool(known.any()):
        return 0
    starts, ends = [], []
    for name in ("build", "launch", "retire") if inline else ("launch", "retire"):
        start = rows.figure(f"{name}_start_ns")
        length = rows.figure("orch_ns" if name == "build" else f"{name}_ns")
        there = (start != MISSING) & (length != MISSING)
        starts.append(start[there])
        ends.append((start + length)[there])
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    arrival = (retire - wait)[known]
    place = np.searchsorted(start, arrival, side="right") - 1
    busy_until = np.where(place >= 0, end[np.maximum(place, 0)], arrival)
    since = retire[known] - np.maximum(arrival, busy_until)
    return _percentile(since[since >= 0], 50)


def _measured_rate(rows: Rows) -> float:
    """Steps a second from the first end to the last, without the fill of the pipeline."""
    end = rows.figure("end_ns")
    end = np.sort(end[end != MISSING])
    if len(end) < 2 or end[-1] == end[0]:
        raise WhatIfError("the log does not say when its steps ended")
    return float((len(end) - 1) * 1e9 / (end[-1] - end[0]))


def _prediction(setting: Setting, outcome: Outcome, fill: int) -> Prediction:
    """What an outcome says of the steps behind the first `fill` ones."""
    ended, accepted = np.array(outcome.ended), np.array(outcome.accepted)
    start, end = np.array(outcome.device_start), np.array(outcome.device_end)
    # The loop sees ends late, not equally late at both ends of the window; the device cannot be faster than it is.
    window = max(int(ended[-1] - ended[fill]), int(end[-1] - end[fill]), 1)
    ways = np.sort((ended - accepted)[fill:])
    device_window = max(int(end[-1] - start[fill]), 1)
    whole = max(int(ended[-1]), 1)
    busy = {
        "loop": outcome.loop_busy / whole,
        "copy stream": outcome.copy_busy / whole,
        "compute stream": outcome.compute_busy / whole,
    }
    if setting.build_workers:
        busy["builders"] = outcome.build_busy / setting.build_workers / whole
    critical = max(busy, key=lambda name: busy[name])
    return Prediction(
        setting=setting,
        steps_per_s=(len(ended) - 1 - fill) * 1e9 / window,
        p50_ns=int(ways[rank_index(50, len(ways))]),
        p99_ns=int(ways[rank_index(99, len(ways))]),
        device_idle_share=1 - float((end - start)[fill:].sum()) / device_window,
        critical=critical,
        critical_busy_share=busy[critical],
    )
