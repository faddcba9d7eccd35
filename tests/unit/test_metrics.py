"""Metrics for Prometheus: what a scrape shows, from which thread it may come, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from async_orch import Orchestrator, Statistics, metrics
from async_orch.exceptions import ConfigurationError, MisuseError
from async_orch.testing import ManualBackend
from tests.programs import Hooked, Square


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """One sample of a scrape."""
    return registry.get_sample_value(name, labels)


async def test_a_scrape_counts_steps_durations_and_slots() -> None:
    """Outcomes, one duration of each completed step in each stage, free slots and no allocation."""
    registry = CollectorRegistry()
    orch: Orchestrator[int, int] = Orchestrator(Hooked(build={3}), "sim:instant", slots=3)
    metrics.prometheus(orch, registry)
    async with orch:
        for i in range(8):
            (await orch.submit(i)).exception()
        await orch.drain()
        assert value(registry, "async_orch_steps_total", outcome="completed") == 7
        assert value(registry, "async_orch_steps_total", outcome="failed") == 1
        assert value(registry, "async_orch_steps_total", outcome="detached") == 0
        assert value(registry, "async_orch_step_duration_seconds_count", program="default") == 7
        for stage in ("build", "acquire", "h2d", "launch", "device", "retire"):
            assert value(registry, "async_orch_stage_duration_seconds_count", stage=stage) == 7, stage
        assert value(registry, "async_orch_slots", state="free") == 3
        assert value(registry, "async_orch_queue_length", stage="build") == 0
        assert value(registry, "async_orch_step_path_allocations_total") == 0
        assert value(registry, "async_orch_records_dropped_total") == 0
    assert value(registry, "async_orch_steps_total", outcome="completed") == 7, "the last values stay"


async def test_idle_time_is_that_between_steps_and_the_callers_share_is_told_apart() -> None:
    """The manual device's clock says how long it waited; all of it before the second submit is starvation."""
    registry, backend = CollectorRegistry(), ManualBackend()
    orch: Orchestrator[int, int] = Orchestrator(Square(), backend)
    metrics.prometheus(orch, registry)
    async with orch:
        results = []
        for i in range(2):
            handle = await orch.submit(i)
            backend.copy.run()
            backend.compute.run()
            results.append(await handle)
        await orch.drain()
        bubble_ns, starved_ns = results[1].timings.bubble_ns, results[1].timings.starved_ns
        assert bubble_ns is not None
        assert starved_ns is not None
        assert value(registry, "async_orch_device_idle_seconds_total") == pytest.approx(bubble_ns / 1e9)
        assert value(registry, "async_orch_device_starved_seconds_total") == pytest.approx(starved_ns / 1e9)
        assert bubble_ns > 0


async def test_leased_slots_show_while_a_step_is_on_the_device() -> None:
    """Gauges are read at the scrape: a step in flight, its slot leased, its place before retire."""
    registry, backend = CollectorRegistry(), ManualBackend()
    orch: Orchestrator[int, int] = Orchestrator(Square(), backend, slots=2)
    metrics.prometheus(orch, registry)
    assert value(registry, "async_orch_slots", state="free") is None, "not open yet: nobody knows"
    async with orch:
        await orch.submit(1)
        backend.copy.run()
        assert value(registry, "async_orch_slots", state="leased") == 1
        assert value(registry, "async_orch_steps_in_flight") == 1
        assert value(registry, "async_orch_steps_on_device") == 1
        assert value(registry, "async_orch_queue_length", stage="retire") == 1
        backend.compute.run()


async def test_the_text_of_a_scrape_is_valid_and_buckets_add_up() -> None:
    """What a Prometheus server parses: each histogram ends with +Inf, which is its count."""
    registry = CollectorRegistry()
    orch: Orchestrator[int, int] = Orchestrator(Square(), "host")
    metrics.prometheus(orch, registry)
    async with orch:
        async for _ in orch.map(range(20)):
            pass
        await orch.drain()
        families = {f.name: f for f in text_string_to_metric_families(generate_latest(registry).decode())}
    samples = families["async_orch_step_duration_seconds"].samples
    buckets = [s.value for s in samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 20
    assert next(s.value for s in samples if s.name.endswith("_sum")) > 0


async def test_another_thread_may_scrape_and_changes_nothing() -> None:
    """A metrics server scrapes from its own thread: it reads counts, and leaves the fences to the loop."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        await orch.submit(3)
        seen: list[Statistics] = []

        def look() -> None:
            backend.copy.run()
            seen.append(orch.statistics())

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert seen[0].staging_leased == 1, "the copy is done, but only the loop gives the buffer back"
        assert orch.statistics().staging_leased == 0
        backend.compute.run()


def test_one_orchestrator_a_registry() -> None:
    """A second one is refused, rather than mixed with the first; after unregister it is welcome."""
    registry = CollectorRegistry()
    collector = metrics.prometheus(Orchestrator(Square()), registry)
    with pytest.raises(ConfigurationError, match="CollectorRegistry of its own"):
        metrics.prometheus(Orchestrator(Square()), registry)
    registry.unregister(collector)
    metrics.prometheus(Orchestrator(Square()), registry)


async def test_observers_come_before_opening() -> None:
    """An orchestrator that is open has its log writer already; the registry keeps nothing of the refused one."""
    registry = CollectorRegistry()
    async with Orchestrator(Square()) as orch:
        with pytest.raises(MisuseError, match="before the orchestrator is entered"):
            metrics.prometheus(orch, registry)
        with pytest.raises(MisuseError, match="before the orchestrator is entered"):
            orch.add_observer(print)
    assert list(registry.collect()) == []


async def test_added_observers_come_after_those_of_the_options() -> None:
    """Both get every record."""
    seen: list[tuple[str, Any]] = []
    orch: Orchestrator[int, int] = Orchestrator(Square(), observers=[lambda r: seen.append(("option", r.seq))])
    orch.add_observer(lambda r: seen.append(("added", r.seq)))
    async with orch:
        await orch.run(1)
    assert seen == [("option", 0), ("added", 0)]


@pytest.mark.parametrize(
    ("package", "call", "extra"),
    [("prometheus_client", "prometheus", "metrics"), ("opentelemetry", "opentelemetry", "otel")],
)
def test_a_missing_package_names_the_line_that_installs_it(package: str, call: str, extra: str) -> None:
    """The module imports without its extras; the function says what is missing."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from async_orch import metrics\n"
        f"try: metrics.{call}(None)\n"
        "except ImportError as exc: print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"pip install 'async-orch[{extra}]'" in done.stdout


async def test_the_reference_names_every_metric() -> None:
    """The document and a scrape agree on the names."""
    text = (Path(__file__).parents[2] / "docs" / "reference-metrics.md").read_text("utf-8")
    registry = CollectorRegistry()
    orch: Orchestrator[int, int] = Orchestrator(Square())
    metrics.prometheus(orch, registry)
    async with orch:
        scraped = {f"{m.name}_total" if m.type == "counter" else m.name for m in registry.collect()}
    assert set(re.findall(r"`(async_orch_\w+)", text)) == scraped
