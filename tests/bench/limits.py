"""How far each figure is from its limit, which is measured alone: the second table of ``docs/benchmarks.md``."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tests.bench._kit import Sample, number

__all__ = ["LIMITS", "Limit", "limits_table"]

Round = Mapping[str, Sample]
"""The samples of one round, by variant."""


class Limit(NamedTuple):
    """A line: what it is of, the limit in words, and both in one round. ``rate``: more is better."""

    bench: str
    title: str
    words: str
    unit: str
    limit: Callable[[Round], float]
    ours: Callable[[Round], float]
    rate: bool = False


LIMITS = (
    Limit(
        "structure", "a step on the loop, CPU time", "one synchronous pump without fences, records and handles", "us",
        lambda one: one["pump"]["cpu_us"], lambda one: one["engine"]["cpu_us"],
    ),
    Limit(
        "overhead_log", "a step with a log", "the step without, plus encoding and writing its record", "us",
        lambda one: one["unlogged"]["wall_us"] + one["writing"]["wall_us"], lambda one: one["logged"]["wall_us"],
    ),
    Limit(
        "threads", "a step on threads, `host`", "two threads and the loop, wake-ups only", "us",
        lambda one: one["limit"]["wall_us"], lambda one: one["host"]["wall_us"],
    ),
    Limit(
        "threads", "a step on threads, `sim`", "the same", "us",
        lambda one: one["limit"]["wall_us"], lambda one: one["sim"]["wall_us"],
    ),
    Limit(
        "feed", "late input", "a thread and the loop, there and back", "us",
        lambda one: one["bare"]["bubble_us"], lambda one: one["fed"]["bubble_us"],
    ),
    Limit(
        "real_memory", "real memory, `host`", "the kernel beside bare copies, one a kernel", "ms",
        lambda one: one["host"]["bound_ms"], lambda one: one["host"]["bound_ms"] / one["host"]["ratio"],
    ),
    Limit(
        "real_memory", "real memory, PoCL", "the same", "ms",
        lambda one: one["PoCL bound"]["step_ms"], lambda one: one["PoCL pipelined"]["step_ms"],
    ),
    Limit(
        "opencl_overlap", "a driver's streams, PoCL", "the kernel behind its copy, by the driver alone", "ms",
        lambda one: one["pipelined, 3 slots"]["bound_ms"],
        lambda one: one["pipelined, 3 slots"]["bound_ms"] / one["pipelined, 3 slots"]["ratio"],
    ),
    Limit(
        "opencl_overlap", "the same, image in shared memory", "the kernels alone, by the driver alone", "ms",
        lambda one: one["shared image"]["kernel_ms"],
        lambda one: one["shared image"]["kernel_ms"] / one["shared image"]["kernel_ratio"],
    ),
    Limit(
        "copies", "copies", "bare copies over the same buffers", "GB/s",
        lambda one: one["copies"]["bare_gb_per_s"], lambda one: one["copies"]["pipeline_gb_per_s"], rate=True,
    ),
    Limit(
        "copies", "copies, with the loop's own work", "the same beside a thread as busy as the loop", "GB/s",
        lambda one: one["copies"]["beside_gb_per_s"],
        lambda one: one["copies"]["beside_gb_per_s"] * one["copies"]["beside_ratio"], rate=True,
    ),
)  # fmt: skip


def limits_table(found: Sequence[Mapping[str, Any]]) -> str:
    """One Markdown table, from the samples of the benches that were found; 1 in its last column is the limit itself."""
    by_name = {document["bench"]: document for document in found}
    lines = [
        "| figure | limit, measured alone | it takes | we | we / limit, least to most |",
        "|---|---|---:|---:|---:|",
    ]
    for item in LIMITS:
        samples = by_name.get(item.bench, {"samples": {}})["samples"]
        rounds = _rounds(samples)
        if not rounds:
            continue
        limits, ours = [item.limit(one) for one in rounds], [item.ours(one) for one in rounds]
        times = [a / b if item.rate else b / a for a, b in zip(limits, ours, strict=True)]
        spread = f"{number(statistics.median(times))} ({number(min(times))} to {number(max(times))})"
        both = " | ".join(f"{number(statistics.median(values))} {item.unit}" for values in (limits, ours))
        lines.append(f"| {item.title} | {item.words} | {both} | {spread} |")
    return "\n".join(lines)


def _rounds(samples: Mapping[str, Sequence[Sample]]) -> list[Round]:
    """Round by round; none if a variant has no samples, since then a part of the figure was not measured."""
    names = list(samples)
    return (
        [dict(zip(names, one, strict=True)) for one in zip(*samples.values(), strict=True)]
        if all(samples.values())
        else []
    )
