"""Metrics and traces of an orchestrator, for Prometheus and OpenTelemetry.

    orch = Orchestrator(program, backend="host")
    metrics.prometheus(orch)
    async with orch:
        ...

Both are observers of step records: they run on the log writer's thread, add nothing to a step, and count a step when
its record is written, some 20 ms after it settled or at `Orchestrator.drain`. Gauges are read when they are asked for.
The packages they need are not installed with async_orch; each function says which extra brings them.
"""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from async_orch._step_totals import StepTotals
from async_orch.exceptions import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry
    from prometheus_client.registry import Collector

    from async_orch._orchestrator import Orchestrator

__all__ = ["opentelemetry", "prometheus"]


def prometheus(orchestrator: Orchestrator[Any, Any], registry: CollectorRegistry | None = None) -> Collector:
    """Register the orchestrator's metrics with ``registry``, by default prometheus_client's own.

    Call it before the orchestrator is entered. After the end the metrics keep their last values until
    ``registry.unregister`` is called with what this returns.

    ==============================================  =====================================================
    ``async_orch_step_duration_seconds{program}``   histogram: acceptance to result, completed steps
    ``async_orch_stage_duration_seconds{stage}``    histogram: ``build``, ``acquire`` (the wait for a slot),
                                                    ``h2d``, ``launch``, ``device``, ``retire``
    ``async_orch_steps_total{outcome}``             ``completed``, ``failed``, ``cancelled``, ``detached``
    ``async_orch_queue_length{stage}``              steps waiting before each stage
    ``async_orch_slots{state}``                     ``free``, ``leased``, ``quarantined``
    ``async_orch_steps_in_flight``                  accepted and not settled
    ``async_orch_steps_on_device``                  launched and not settled
    ``async_orch_step_path_allocations_total``      anything but 0 breaks the promise of a ring (mode naive aside)
    ``async_orch_device_idle_seconds_total``        its rate is the share of time in which the device waited, as
                                                    far as it is seen: a pause counts once the step behind it is
                                                    over
    ``async_orch_device_starved_seconds_total``     the part of it in which nothing had been submitted
    ``async_orch_records_dropped_total``            steps that the figures above may lack
    ==============================================  =====================================================

    Raises `ImportError` without the extra ``metrics``, `ConfigurationError` if the registry has these names already
    (one orchestrator a registry), and `MisuseError` after the orchestrator was entered.
    """
    try:
        adapter = importlib.import_module("async_orch._prometheus")
    except ModuleNotFoundError as exc:
        raise _needs("metrics.prometheus", "prometheus-client", "metrics", exc) from exc
    target: CollectorRegistry = adapter.REGISTRY if registry is None else registry
    totals = StepTotals()
    collector: Collector = adapter.OrchestratorCollector(orchestrator, totals)
    try:
        target.register(collector)
    except ValueError as exc:
        raise ConfigurationError(
            "this registry has metrics named async_orch_* already; give each orchestrator a CollectorRegistry of its "
            "own, or unregister the collector of the one before"
        ) from exc
    with ExitStack() as undo:
        undo.callback(target.unregister, collector)
        orchestrator.add_observer(totals.add)
        undo.pop_all()
    return collector


def opentelemetry(
    orchestrator: Orchestrator[Any, Any],
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Report each step as a span, and the metrics of `prometheus` as instruments; by default to the global providers.

    Call it before the orchestrator is entered. A span is named ``async_orch.step PROGRAM``, lasts from acceptance to
    the end of the step, and has the fields of its record that are known as attributes ``async_orch.*``. It has no
    parent, since a step may carry many requests. It links to them instead: submit with ``attrs={"traceparent": ...}``,
    the W3C trace context of one request or a list of those of several (``tracestate`` likewise). What is no valid trace
    context is left out. Other attributes become ``async_orch.attrs.*``.

    Instruments: ``async_orch.step.duration``, ``async_orch.stage.duration`` (s), ``async_orch.steps``,
    ``async_orch.device.idle`` and ``.starved`` (s), ``async_orch.queue.length``, ``async_orch.slots``,
    ``async_orch.step_path.allocations``.

    Raises `ImportError` without the extra ``otel`` and `MisuseError` after the orchestrator was entered.
    """
    try:
        adapter = importlib.import_module("async_orch._opentelemetry")
    except ModuleNotFoundError as exc:
        raise _needs("metrics.opentelemetry", "opentelemetry-api", "otel", exc) from exc
    orchestrator.add_observer(adapter.StepSpans(tracer_provider))
    orchestrator.add_observer(adapter.StepInstruments(orchestrator, meter_provider))


def _needs(function: str, package: str, extra: str, cause: ModuleNotFoundError) -> ImportError:
    return ImportError(f"{function} needs {package}: pip install 'async-orch[{extra}]'", name=cause.name)
