"""Predictions as a table and as JSON."""

from __future__ import annotations

from async_orch.analysis._model import Setting
from async_orch.analysis._shown import shown, shown_json
from async_orch.analysis._text_table import aligned
from async_orch.analysis._units import duration, share
from async_orch.analysis._whatif import Prediction, WhatIf

__all__ = ["as_json", "as_table"]

_STARVED_SHARE = 0.1
_NOTEWORTHY = 1.01


def as_json(found: WhatIf) -> str:
    """One JSON object on one line: the attributes of `WhatIf`."""
    return shown_json(found) + "\n"


def as_table(found: WhatIf, name: str) -> str:
    """Text for a terminal; `name` says where the log came from."""
    lines = [
        f"{name}: run {shown(found.run_id)}, {found.steps} warm steps replayed",
        (
            f"as run ({_words(found.as_run.setting)}): predicted {found.as_run.steps_per_s:.1f} steps/s, "
            f"measured {found.measured_steps_per_s:.1f} ({100 * found.error:+.1f} %)"
        ),
    ]
    if found.starved_share >= _STARVED_SHARE:
        lines.append(
            f"note: the device waited for the caller in {share(found.starved_share)} of the run; the predictions are "
            "for a caller who always has a next step"
        )
    table = [["", "steps/s", "p50", "p99", "device idle", "busiest", ""]]
    table += [_row(item, "<- recommended" if item is found.recommended else "") for item in found.predictions]
    lines += ["", *aligned(table, left=(0, 5, 6))]
    best = found.recommended
    gain = best.steps_per_s / found.as_run.steps_per_s - 1
    lines += [
        "",
        (
            f"recommended: {_words(best.setting)}: the least that comes within 1 % of the best rate; "
            f"{100 * gain:+.1f} % steps/s against the prediction as run, bounded by the {best.critical} "
            f"({share(best.critical_busy_share)} busy)"
        ),
    ]
    if all(item.steps_per_s <= found.as_run.steps_per_s * _NOTEWORTHY for item in found.predictions):
        lines.append("none of these settings is 1 % faster than the run as it was")
    return "\n".join(lines) + "\n"


def _words(setting: Setting) -> str:
    words = [f"slots {setting.slots}", f"queue-depth {setting.queue_depth}"]
    if setting.max_inflight is not None:
        words.append(f"max-inflight {setting.max_inflight}")
    words.append(f"build-workers {setting.build_workers}" if setting.build_workers else "inline builds")
    if setting.mode != "pipelined":
        words.append(setting.mode)
    for name, factor in (("build", setting.build_x), ("copy", setting.copy_x), ("device", setting.device_x)):
        if factor != 1:
            words.append(f"{name} x {factor:g}")
    return ", ".join(words)


def _row(item: Prediction, mark: str) -> list[str]:
    return [
        _words(item.setting),
        f"{item.steps_per_s:.1f}",
        duration(item.p50_ns),
        duration(item.p99_ns),
        share(item.device_idle_share),
        f"{item.critical} {share(item.critical_busy_share)}",
        mark,
    ]
