"""An orchestrator's metrics as a collector of prometheus_client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import REGISTRY, CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from async_orch._step_totals import StepTotals, TotalsSnapshot
from async_orch.exceptions import OrchestratorClosed

if TYPE_CHECKING:
    from async_orch._orchestrator import Orchestrator
    from async_orch._statistics import Statistics

__all__ = ["REGISTRY", "OrchestratorCollector"]


class OrchestratorCollector(Collector):
    """Computes the samples when it is scraped, from the sums of `StepTotals` and ``orch.statistics()``."""

    def __init__(self, orchestrator: Orchestrator[Any, Any], totals: StepTotals) -> None:
        self._orchestrator = orchestrator
        self._totals = totals

    def describe(self) -> Iterator[Metric]:
        """The names, so that a registry refuses a second orchestrator instead of mixing the two."""
        yield from _of_records(StepTotals().snapshot())
        yield from _of_statistics(None)

    def collect(self) -> Iterator[Metric]:
        """All samples; before the orchestrator is open only what is counted from zero."""
        yield from _of_records(self._totals.snapshot())
        try:
            statistics = self._orchestrator.statistics()
        except OrchestratorClosed:
            return
        yield from _of_statistics(statistics)


def _of_records(totals: TotalsSnapshot) -> Iterator[Metric]:
    durations = HistogramMetricFamily(
        "async_orch_step_duration_seconds",
        "From a step's acceptance to its result; completed steps",
        labels=["program"],
    )
    for program, (buckets, sum_s) in totals.durations.items():
        durations.add_metric([program], buckets, sum_s)
    yield durations
    stages = HistogramMetricFamily(
        "async_orch_stage_duration_seconds", "Time of a step in each stage; completed steps", labels=["stage"]
    )
    for stage, (buckets, sum_s) in totals.stages.items():
        stages.add_metric([stage], buckets, sum_s)
    yield stages
    steps = CounterMetricFamily("async_orch_steps", "Steps that are over, by how they ended", labels=["outcome"])
    for outcome, count in totals.steps.items():
        steps.add_metric([outcome], count)
    yield steps
    yield CounterMetricFamily(
        "async_orch_device_idle_seconds", "Time the device waited between two steps, counted when the second is over",
        value=totals.idle_s,
    )  # fmt: skip
    yield CounterMetricFamily(
        "async_orch_device_starved_seconds", "The part of the idle time in which no step had been submitted",
        value=totals.starved_s,
    )  # fmt: skip


def _of_statistics(now: Statistics | None) -> Iterator[Metric]:
    queues = GaugeMetricFamily("async_orch_queue_length", "Steps waiting before each stage", labels=["stage"])
    slots = GaugeMetricFamily("async_orch_slots", "Slots of device memory, by state", labels=["state"])
    in_flight = GaugeMetricFamily("async_orch_steps_in_flight", "Steps accepted and not settled")
    on_device = GaugeMetricFamily("async_orch_steps_on_device", "Steps launched and not settled")
    allocations = CounterMetricFamily("async_orch_step_path_allocations", "Device allocations on the step path")
    dropped = CounterMetricFamily("async_orch_records_dropped", "Records that the step log could not take")
    if now is not None:
        for stage, length in now.queue_lengths.items():
            queues.add_metric([stage], length)
        free = now.slots_total - now.slots_leased - now.slots_quarantined
        states = {"free": free, "leased": now.slots_leased, "quarantined": now.slots_quarantined}
        for state, count in states.items():
            slots.add_metric([state], count)
        in_flight.add_metric([], now.in_flight)
        on_device.add_metric([], now.on_device)
        allocations.add_metric([], now.step_path_allocs)
        dropped.add_metric([], now.records_dropped)
    yield from (queues, slots, in_flight, on_device, allocations, dropped)
