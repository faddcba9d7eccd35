"""A model of the pipeline: replays measured stage times through other settings.

It holds what the engine does, one rule each:

- A step is accepted while fewer than ``max_inflight`` are unsettled and fewer than ``queue_depth`` wait for a build.
  The caller always has a next step.
- A build needs one of the staging buffers (a copy's end gives it back) and at most ``queue_depth`` plus one a worker
  (or plus one, inline) steps that are built and wait for a slot. Inline builds, launches, allocations and retirement
  share the event loop's thread; retirement goes first, a build last.
- Slots are granted in order. Copies follow each other on the copy stream, kernels and the output's copy on the compute
  stream, behind their own image's copy.
- A copy and a kernel begin some time after what they wait for: the stream's own time to notice, as measured.
- A slot and a place in flight come back when retire ends. The loop notices an event, and a build
  thread its job, ``wake_ns`` after it.
- In the serial modes a build begins when nothing else is under way.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

__all__ = ["Outcome", "Setting", "StepCost", "simulate"]

Mode = Literal["pipelined", "ring", "naive"]


@dataclass(frozen=True, slots=True)
class Setting:
    """A configuration to predict: options of an orchestrator, and factors on the measured times.

    ``build_workers`` 0 means inline builds. ``max_inflight`` None gives ``slots + queue_depth``. A factor of 0.5 halves
    that time of every step.
    """

    slots: int = 3
    queue_depth: int = 2
    max_inflight: int | None = None
    build_workers: int = 0
    mode: Mode = "pipelined"
    build_x: float = 1.0
    copy_x: float = 1.0
    device_x: float = 1.0


class StepCost(NamedTuple):
    """What a step costs, in ns: on the loop's thread (build, when inline; alloc, launch, retire) and on the device.

    ``copy_delay`` and ``start_delay`` are how long its copy and its kernels begin after nothing holds them any more.
    """

    build: int
    alloc: int
    copy: int
    launch: int
    device: int
    d2h: int
    retire: int
    copy_delay: int = 0
    start_delay: int = 0


@dataclass(slots=True)
class Outcome:
    """A simulated run, times in ns from its start: of each step its acceptance and end, and how busy things were."""

    accepted: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    device_start: list[int] = field(default_factory=list)
    device_end: list[int] = field(default_factory=list)
    loop_busy: int = 0
    build_busy: int = 0
    copy_busy: int = 0
    compute_busy: int = 0


def simulate(costs: Sequence[StepCost], setting: Setting, *, handover_ns: int = 0, wake_ns: int = 0) -> Outcome:
    """Run the steps through the pipeline. `handover_ns` is the loop's own work for each step beside the hooks."""
    return _Pipeline(costs, setting, handover_ns, wake_ns).run()


class _Pipeline:
    def __init__(self, costs: Sequence[StepCost], setting: Setting, handover_ns: int, wake_ns: int) -> None:
        self.costs, self.setting = costs, setting
        self.handover_ns, self.wake_ns = handover_ns, wake_ns
        self.outcome = Outcome([-1] * len(costs), [-1] * len(costs), [-1] * len(costs), [-1] * len(costs))
        workers = setting.build_workers
        self.serial = setting.mode != "pipelined"
        self.depth = setting.queue_depth
        self.inflight_limit = setting.max_inflight or setting.slots + setting.queue_depth
        self.order_limit = self.depth + max(workers, 1)
        self.staging_free = max(workers, 1) + self.depth + 1
        self.slots_free = setting.slots
        self.copy_free = self.compute_free = 0
        self.worker_free = [0] * workers
        self.to_build: deque[int] = deque()
        self.order: deque[tuple[int, int]] = deque()  # (step, when it is built)
        self.launched: deque[tuple[int, int]] = deque()  # (step, when its output is there)
        self.staging_back: list[int] = []
        self.next_step = 0
        self.live = 0
        self.events: list[int] = [0]
        self.now = 0

    def run(self) -> Outcome:
        while self.events:
            self.now = max(self.now, heapq.heappop(self.events))
            while self.events and self.events[0] <= self.now:
                heapq.heappop(self.events)
            self._pump()
        return self.outcome

    def _wake_at(self, moment: int) -> None:
        heapq.heappush(self.events, moment + self.wake_ns)

    def _work(self, duration: int) -> None:
        """The loop's thread is busy."""
        self.now += duration
        self.outcome.loop_busy += duration

    def _pump(self) -> None:
        moved = True
        while moved:
            moved = self._retire()
            moved |= self._grant_and_launch()
            moved |= self._build()
            moved |= self._admit()

    def _retire(self) -> bool:
        moved = False
        while self.launched and self.launched[0][1] <= self.now:
            step, _ = self.launched.popleft()
            self._work(self.costs[step].retire)
            self.slots_free += 1
            self.live -= 1
            self.outcome.ended[step] = self.now
            moved = True
        return moved

    def _grant_and_launch(self) -> bool:
        moved = False
        outcome, setting = self.outcome, self.setting
        while self.order and self.order[0][1] <= self.now and self.slots_free:
            step, _ = self.order.popleft()
            cost = self.costs[step]
            self.slots_free -= 1
            if setting.mode == "naive":
                self._work(cost.alloc)
            copy = round(cost.copy * setting.copy_x)
            copy_end = max(self.now, self.copy_free) + cost.copy_delay + copy
            self.copy_free = copy_end
            outcome.copy_busy += copy
            heapq.heappush(self.staging_back, copy_end)
            self._wake_at(copy_end)
            self._work(self.handover_ns)
            device = round(cost.device * setting.device_x)
            start = max(self.now, copy_end, self.compute_free) + cost.start_delay
            self._work(cost.launch)
            outcome.device_start[step], outcome.device_end[step] = start, start + device
            self.compute_free = start + device + cost.d2h
            outcome.compute_busy += device + cost.d2h
            self.launched.append((step, self.compute_free))
            self._wake_at(self.compute_free)
            moved = True
        return moved

    def _build(self) -> bool:
        while self.staging_back and self.staging_back[0] <= self.now:
            heapq.heappop(self.staging_back)
            self.staging_free += 1
        moved = False
        while self.to_build and len(self.order) < self.order_limit and self.staging_free:
            if self.serial and (self.order or self.launched):
                break
            step = self.to_build.popleft()
            self.staging_free -= 1
            build = round(self.costs[step].build * self.setting.build_x)
            self.outcome.build_busy += build
            if not self.worker_free:
                self._work(build)
                self.order.append((step, self.now))
                return True
            begin = max(heapq.heappop(self.worker_free), self.now + self.wake_ns)
            heapq.heappush(self.worker_free, begin + build)
            self.order.append((step, begin + build))
            self._wake_at(begin + build)
            moved = True
        return moved

    def _admit(self) -> bool:
        moved = False
        while self.next_step < len(self.costs) and self.live < self.inflight_limit and len(self.to_build) < self.depth:
            self.outcome.accepted[self.next_step] = self.now
            self.to_build.append(self.next_step)
            self.next_step += 1
            self.live += 1
            moved = True
        return moved
