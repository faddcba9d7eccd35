"""What overlap would bring, before anything is written: from the times of a step, by the model of the pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from async_orch.analysis._model import Setting, StepCost, simulate

__all__ = ["Estimate", "EstimateError", "StepSizes", "estimate"]

MAX_STAGE_NS: Final = 3_600_000_000_000
_MAX_COUNT: Final = 4096
_MAX_NBYTES: Final = 2**53


class EstimateError(ValueError):
    """A time, size or setting that cannot be; the message says which and what would be right."""


@dataclass(frozen=True, slots=True)
class StepSizes:
    """Bytes of one step's buffers, as in `async_orch.SlotSpec`."""

    image_nbytes: int = 0
    workspace_nbytes: int = 0
    output_nbytes: int = 0
    feed_nbytes: int = 0

    @property
    def slot_nbytes(self) -> int:
        """Device memory of one slot: all four."""
        return self.image_nbytes + self.workspace_nbytes + self.output_nbytes + self.feed_nbytes


@dataclass(frozen=True, slots=True)
class Estimate:
    """What to expect of steps that all cost the same, in the steady state; times in ns a step, sizes in bytes.

    Attributes
    ----------
    naive_ns, serial_ns:
        One step after the other, with memory allocated on each and with memory allocated once: sums of the parts.
    overlapped_ns:
        The pipeline with `setting`, by the model that `whatif` uses.
    bound_ns, bound:
        The work of a step on the busiest of device, copy stream, event loop and build workers, and which that is. No
        setting that builds in the same place is faster.
    saved_share:
        The part of a serial step that overlap takes away: ``1 - overlapped_ns / serial_ns``.
    alloc_share:
        The part of a naive step that allocating once takes away.
    least_slots:
        The fewest slots with which the model comes within 1 % of what ``setting.slots`` (or more) reach.
    slot_nbytes, device_nbytes, pinned_nbytes, staging:
        Device memory of a slot, and of all; pinned host memory of the staging buffers, the outputs and the feeds; how
        many staging buffers there are.
    """

    cost: StepCost
    setting: Setting
    sizes: StepSizes
    naive_ns: int
    serial_ns: int
    overlapped_ns: float
    bound_ns: float
    bound: str
    saved_share: float
    alloc_share: float
    least_slots: int
    slot_nbytes: int
    device_nbytes: int
    pinned_nbytes: int
    staging: int


def estimate(cost: StepCost, setting: Setting | None = None, sizes: StepSizes | None = None) -> Estimate:
    """Estimate from the times of one warm step, in ns, by rules and without measuring anything.

    The caller always has a next step, copies and kernels do not slow each other down, and the engine itself costs
    nothing: what is measured on a device will be somewhat less. Raises `EstimateError` for times that are negative,
    longer than an hour, or all zero, and for settings out of range.
    """
    setting, sizes = setting or Setting(), sizes or StepSizes()
    _check(cost, setting, sizes)
    serial = cost.build + cost.copy + cost.launch + cost.device + cost.d2h + cost.retire
    busy = _busy(cost, setting)
    bound = max(busy, key=lambda name: busy[name])
    overlapped = _period_ns(cost, setting)
    workers = max(setting.build_workers, 1)
    staging = workers + setting.queue_depth + 1 if sizes.image_nbytes else 0
    return Estimate(
        cost=cost,
        setting=setting,
        sizes=sizes,
        naive_ns=serial + cost.alloc,
        serial_ns=serial,
        overlapped_ns=overlapped,
        bound_ns=busy[bound],
        bound=bound,
        saved_share=1 - overlapped / serial,
        alloc_share=cost.alloc / (serial + cost.alloc),
        least_slots=_least_slots(cost, setting, overlapped),
        slot_nbytes=sizes.slot_nbytes,
        device_nbytes=setting.slots * sizes.slot_nbytes,
        pinned_nbytes=staging * sizes.image_nbytes + setting.slots * (sizes.output_nbytes + sizes.feed_nbytes),
        staging=staging,
    )


def _check(cost: StepCost, setting: Setting, sizes: StepSizes) -> None:
    for name, value in zip(StepCost._fields, cost, strict=True):
        if not 0 <= value <= MAX_STAGE_NS:
            raise EstimateError(f"{name}={value} ns must be from 0 to {MAX_STAGE_NS} ns (an hour)")
    if sum(cost) == cost.alloc:
        raise EstimateError("build, copy, launch and device are all 0; at least one must take time")
    for name in ("slots", "queue_depth", "build_workers", "max_inflight"):
        value = getattr(setting, name)
        least = 0 if name == "build_workers" else 1
        if value is not None and not least <= value <= _MAX_COUNT:
            raise EstimateError(f"{name}={value} must be from {least} to {_MAX_COUNT}")
    for name in ("image_nbytes", "workspace_nbytes", "output_nbytes", "feed_nbytes"):
        value = getattr(sizes, name)
        if not 0 <= value <= _MAX_NBYTES:
            raise EstimateError(f"{name}={value} must be from 0 to {_MAX_NBYTES} bytes")


def _busy(cost: StepCost, setting: Setting) -> dict[str, float]:
    """The work of a step on each thing that does one at a time; the device first, which wins where they are equal."""
    workers = setting.build_workers
    loop = cost.launch + cost.retire + (0 if workers else cost.build)
    busy: dict[str, float] = {"device": cost.device + cost.d2h, "copy stream": cost.copy, "event loop": loop}
    if workers:
        busy["build workers"] = cost.build / workers
    return busy


def _period_ns(cost: StepCost, setting: Setting) -> float:
    """Time from one step's end to the next in the steady state."""
    around = math.lcm(setting.slots, max(setting.build_workers, 1))  # the pattern repeats with the rings
    window = around * max(1, 64 // around) if around <= _MAX_COUNT else _MAX_COUNT
    under_way = setting.slots + setting.queue_depth + setting.build_workers
    fill, drain = 4 * under_way, under_way + 1
    # Ends on the device, since the loop sees them late, by a build more or less, and not equally late at both ends.
    ended = simulate([cost] * (fill + window + drain), setting).device_end
    period = (ended[fill + window - 1] - ended[fill - 1]) / window
    # A window may begin or end within a burst of launches, which a finite number of steps does not average out.
    return max(period, *_busy(cost, setting).values())


def _least_slots(cost: StepCost, setting: Setting, overlapped_ns: float) -> int:
    for slots in range(1, min(setting.slots, 8)):
        if _period_ns(cost, replace(setting, slots=slots)) <= overlapped_ns * 1.01:
            return slots
    return setting.slots
