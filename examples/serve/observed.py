"""What the server measures of itself: metrics under the names of vLLM, and recent figures for the live page."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from examples.serve.generation import Generation
from examples.serve.scheduler import Scheduler

__all__ = ["Observed"]

RECENT = 2048
"""Requests and tokens that the live page's percentiles look back on."""

WINDOW_S = 5.0
"""Tokens a second are counted over this long."""

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_SLOW = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class SchedulerGauges(Collector):
    """Gauges that are read when somebody scrapes."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler = scheduler
        self._model = model

    def collect(self) -> list[GaugeMetricFamily]:
        scheduler = self._scheduler
        # `available` is not asked here: it looks at fences, which is for the loop's thread only.
        used = sum(len(sequence.blocks) for sequence in list(scheduler.running))
        return [
            self._gauge("vllm:num_requests_running", "Requests that the steps carry", len(scheduler.running)),
            self._gauge("vllm:num_requests_waiting", "Requests that wait for a row and blocks", len(scheduler.waiting)),
            self._gauge("vllm:kv_cache_usage_perc", "Share of the cache's blocks in use, 0 to 1",
                        used / scheduler.blocks.total),
        ]  # fmt: skip

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family


class Observed:
    """Counts requests and tokens; on the loop's thread."""

    def __init__(self, registry: CollectorRegistry, scheduler: Scheduler, model: str) -> None:
        self.registry = registry
        registry.register(SchedulerGauges(scheduler, model))

        def counter(name: str, text: str, *more: str) -> Counter:
            return Counter(name, text, ["model_name", *more], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Any:
            return Histogram(name, text, ["model_name"], buckets=buckets, registry=registry).labels(model)

        self._model = model
        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens put into the cache").labels(model)
        self._tokens = counter("vllm:generation_tokens", "Tokens generated").labels(model)
        self._success = counter("vllm:request_success", "Requests that got their answer", "finished_reason")
        self._first = histogram("vllm:time_to_first_token_seconds", "From arrival to the first token", _FAST)
        self._between = histogram("vllm:inter_token_latency_seconds", "Between two tokens of a request", _FAST)
        self._whole = histogram("vllm:e2e_request_latency_seconds", "From arrival to the end", _SLOW)
        self._queue = histogram("vllm:request_queue_time_seconds", "From arrival to admission", _SLOW)
        for reason in ("stop", "length", "abort"):
            self._success.labels(model, reason)
        self.first_s: deque[float] = deque(maxlen=RECENT)
        self.between_s: deque[float] = deque(maxlen=RECENT)
        self._token_times: deque[float] = deque(maxlen=65_536)
        self.tokens_total = 0

    def token(self, generation: Generation) -> None:
        """A request got a token. Call it before ``last_token_s`` is set anew."""
        now = time.monotonic()
        if generation.first_token_s is None:
            generation.first_token_s = now
            self.first_s.append(now - generation.arrived_s)
            self._first.observe(now - generation.arrived_s)
            self._prompt_tokens.inc(len(generation.asked.prompt))
            if generation.admitted_s is not None:
                self._queue.observe(generation.admitted_s - generation.arrived_s)
        elif generation.last_token_s is not None:
            self.between_s.append(now - generation.last_token_s)
            self._between.observe(now - generation.last_token_s)
        generation.last_token_s = now
        self.tokens_total += 1
        self._token_times.append(now)
        self._tokens.inc()

    def ended(self, generation: Generation) -> None:
        """A request is over: answered, given up by its client, or failed, which is no success."""
        if generation.ended in ("stop", "length", "abort"):
            self._success.labels(self._model, generation.ended).inc()
        self._whole.observe(time.monotonic() - generation.arrived_s)

    def tokens_per_s(self) -> float:
        """Over the last `WINDOW_S` seconds."""
        since = time.monotonic() - WINDOW_S
        while self._token_times and self._token_times[0] < since:
            self._token_times.popleft()
        return len(self._token_times) / WINDOW_S
