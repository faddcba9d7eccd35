"""An estimate in words, and as JSON."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, replace

import msgspec

from async_orch.analysis._estimate import Estimate, estimate
from async_orch.analysis._text_table import aligned
from async_orch.analysis._units import duration, size

__all__ = ["as_json", "as_text", "percent"]

_NOTHING_SHARE = 0.005
_LITTLE_SHARE = 0.1
_WIDTH = 100
_CAVEAT = (
    "By a model, not measured: steps that are all alike, a caller that always has the next step, copies that do not "
    "slow the kernels down, and an engine that costs nothing (`async-orch bench` measures what it costs here)."
)


def percent(share: float) -> str:
    """``3 %`` for 0.03, ``3.4 %`` for 0.034, ``48 %`` for 0.483: never more digits than an estimate has."""
    value = 100 * share
    if value >= 99.5 and share < 1:
        return f"{min(value, 99.9):.1f} %"
    text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return f"{text.removesuffix('.0')} %"


def as_json(found: Estimate) -> str:
    """One JSON object on one line: the attributes of `Estimate`, the times of a step by name."""
    cost = {f"{name}_ns": value for name, value in found.cost._asdict().items()}
    return msgspec.json.encode(asdict(found) | {"cost": cost}).decode() + "\n"


def as_text(found: Estimate) -> str:
    """Text for a terminal."""
    rows = [
        _row("serial, memory allocated each step", found.naive_ns),
        _row("serial, memory allocated once", found.serial_ns),
        _row(f"overlapped: {_words(found)}", found.overlapped_ns),
    ]
    paragraphs = [[_allocation(found)] if found.cost.alloc else [], _overlap(found), _memory(found), [_CAVEAT]]
    prose = "\n\n".join(
        "\n".join(textwrap.fill(line, _WIDTH, break_on_hyphens=False) for line in lines)
        for lines in paragraphs
        if lines
    )
    return "\n".join(aligned(rows if found.cost.alloc else rows[1:])) + f"\n\n{prose}\n"


def _row(name: str, nanoseconds: float) -> list[str]:
    return [name, f"{duration(round(nanoseconds))} a step", f"{1e9 / nanoseconds:.1f} steps/s"]


def _words(found: Estimate) -> str:
    setting = found.setting
    workers = setting.build_workers
    where = f"{workers} build worker{'s' if workers > 1 else ''}" if workers else "inline builds"
    return f"{setting.slots} slot{'s' if setting.slots > 1 else ''}, {where}"


def _allocation(found: Estimate) -> str:
    return (
        f"Allocating once takes {duration(found.cost.alloc)} ({percent(found.alloc_share)}) out of each step that "
        "allocates. A program that keeps its memory allocates on its first step only: for it this is a gain at the "
        "start, and none later."
    )


def _overlap(found: Estimate) -> list[str]:
    saved_ns = found.serial_ns - round(found.overlapped_ns)
    share = percent(found.saved_share)
    if found.saved_share < _NOTHING_SHARE:
        first = f"Overlap gains next to nothing here: {share} of a serial step ({duration(saved_ns)})."
    elif found.saved_share < _LITTLE_SHARE:
        first = f"Overlap gains little: {share} of a serial step ({duration(saved_ns)})."
    else:
        more = found.serial_ns / found.overlapped_ns
        first = f"Overlap takes away {share} of a serial step ({duration(saved_ns)}): {more:.2f} times the steps."
    return [first, *_bound(found)]


def _bound(found: Estimate) -> list[str]:
    lines = []
    if found.overlapped_ns > found.bound_ns * 1.01:
        lines.append(
            f"What is left is {percent(found.overlapped_ns / found.bound_ns - 1)} above the bound, "
            f"{duration(round(found.bound_ns))} on the {found.bound}: too few slots or places in flight."
        )
        wider = estimate(found.cost, replace(found.setting, slots=max(found.setting.slots, 3)), found.sizes)
        if wider.overlapped_ns < found.overlapped_ns * 0.99:
            lines.append(f"With {wider.setting.slots} slots: {duration(round(wider.overlapped_ns))} a step.")
    else:
        lines.append(
            f"The bound is the {found.bound}, {duration(round(found.bound_ns))} a step; more slots do not help."
        )
    if not found.setting.build_workers:
        moved = estimate(found.cost, replace(found.setting, build_workers=1), found.sizes)
        if moved.overlapped_ns < found.overlapped_ns * 0.99:
            lines.append(
                "With the build off the event loop (--build-workers 1): "
                f"{duration(round(moved.overlapped_ns))} a step, {percent(moved.saved_share)} saved, if it does not "
                'hold the GIL; a build that is Python code does, and needs build_in="process" for it.'
            )
    return lines


def _memory(found: Estimate) -> list[str]:
    if not found.slot_nbytes:
        return ["Give --image-nbytes and --workspace-nbytes to see what the ring costs in memory."]
    slots = found.setting.slots
    more = found.device_nbytes - found.slot_nbytes
    line = f"Memory: {slots} x {size(found.slot_nbytes)} = {size(found.device_nbytes)} on the device"
    if slots > 1:
        line += f", {size(more)} more than a single slot"
    line += f"; {size(found.pinned_nbytes)} pinned on the host"
    if found.staging:
        line += f" ({found.staging} staging buffers of {size(found.sizes.image_nbytes)})"
    lines = [line + "."]
    if found.least_slots < slots:
        lines.append(
            f"{found.least_slots} slot{'s' if found.least_slots > 1 else ''} would do by this model; a real slot is "
            "held until the host has noticed its end, so keep one to spare."
        )
    return lines
