"""The runner's closing table and its JSON object."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from async_orch.abc import DeviceInfo
from examples.qwen3.figures import EVERY_STEP, Figures, ModeRun
from examples.qwen3.wording import counted

__all__ = ["IDLE_SHARE", "assumptions", "json_object", "support", "table"]

IDLE_SHARE = "device idle share: over the steps of each part, but not a run's first, which has no step before it"
"""What the table's last figure of each part is taken over."""

_JSON_KEYS = (
    "ms_per_step_p50",
    "tokens_per_s",
    "alloc_nbytes_per_step",
    "alloc_ms_per_step",
    "copy_mb_per_s",
    "device_idle_share",
    "build_ms_p50",
    "copy_nbytes_per_step",
    "device_ms_p50",
)

_ROWS: tuple[tuple[str, Callable[[Figures], float | None], str], ...] = (
    ("steps", lambda f: f.steps, "{:,.0f}"),
    ("ms a step (p50)", lambda f: f.ms_per_step_p50, "{:.3f}"),
    ("tokens/s", lambda f: f.tokens_per_s, "{:,.0f}"),
    ("alloc B a step", lambda f: f.alloc_nbytes_per_step, "{:,.0f}"),
    ("alloc ms a step", lambda f: f.alloc_ms_per_step, "{:.3f}"),
    ("build ms (p50)", lambda f: f.build_ms_p50, "{:.3f}"),
    ("copy B a step", lambda f: f.copy_nbytes_per_step, "{:,.0f}"),
    ("copy MB/s", lambda f: f.copy_mb_per_s, "{:,.0f}"),
    ("device ms (p50)", lambda f: f.device_ms_p50, "{:.3f}"),
    (
        "device idle share",
        lambda f: None if f.device_idle_share is None else 100 * f.device_idle_share,
        "{:.1f} %",
    ),
)


def support(info: DeviceInfo) -> str:
    """How far figures can be trusted, in the backend's words, and the processor's name where that is the device."""
    if info.device != "cpu":
        return info.support
    cores = os.cpu_count()
    return f"{info.support} ({_processor()}, {'cores unknown' if cores is None else counted(cores, 'core')})"


def assumptions(info: DeviceInfo) -> str:
    """Which of a simulated device's figures nobody has published, with their values; empty if there are none."""
    if not info.assumed:
        return ""
    line = f"assumed, not published for this device: {', '.join(info.assumed)}"
    step = any(words.startswith("kernel_ns ") for words in info.assumed)
    return f"{line}; kernel_ns is the device time of a step" if step else line


def _processor() -> str:
    """The processor's name as Linux gives it, else as Python does."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def json_object(runs: Sequence[ModeRun], words: str) -> dict[str, Any]:
    """One entry a mode: the figures of its steady steps, its tokens, and under ``cold`` those of its one-time costs.

    Steady steps are warm, but in mode naive cold as well, each of them: ``cold_reasons`` counts. ``words`` are
    those of `support`.
    """
    return {run.mode: _mode_object(run, words) for run in runs}


def _mode_object(run: ModeRun, words: str) -> dict[str, Any]:
    steady, cold = run.steady or run.cold, run.cold
    return {
        **{key: None if steady is None else getattr(steady, key) for key in _JSON_KEYS},
        "tokens": run.tokens,
        "support": words,
        "steps": len(run.steps),
        "cold_reasons": run.cold_reasons,
        "cold": None if cold is None else cold.as_json(),
        "open_ms": run.open_ns / 1e6,
    }


def table(runs: Sequence[ModeRun]) -> Table:
    """The modes side by side; steps that paid a one-time cost apart from all others.

    A figure that the device cannot tell, or that makes no sense, shows as "-"; a part without any step is left out.
    """
    result = Table(box=box.SIMPLE_HEAD)
    result.add_column("")
    for run in runs:
        result.add_column(run.mode, justify="right")
    _add_part(result, _steady_heading(runs), [run.steady for run in runs])
    result.add_section()
    _add_part(result, _one_time_heading(runs), [run.cold for run in runs])
    result.add_row("  opening ms (rings, weights)", *[f"{run.open_ns / 1e6:.1f}" for run in runs])
    return result


def _steady_heading(runs: Sequence[ModeRun]) -> str:
    """The analyser's words: a step of mode naive is cold, since it allocates, whichever step it is."""
    naive = [run.mode for run in runs if EVERY_STEP in run.cold_reasons]
    if len(naive) == len(runs):
        return f"cold ({EVERY_STEP})"
    return f"warm; {', '.join(naive)}: cold ({EVERY_STEP})" if naive else "warm"


def _one_time_heading(runs: Sequence[ModeRun]) -> str:
    reasons = dict.fromkeys(reason for run in runs for reason in run.cold_reasons if reason != EVERY_STEP)
    return f"cold ({', '.join(reasons) or 'one-time costs'})"


def _add_part(result: Table, heading: str, parts: Sequence[Figures | None]) -> None:
    if not any(parts):
        return
    result.add_row(heading, *[""] * len(parts))
    for label, value_of, form in _ROWS:
        cells = []
        for part in parts:
            value = None if part is None else value_of(part)
            cells.append("-" if value is None else form.format(value))
        result.add_row(f"  {label}", *cells)
