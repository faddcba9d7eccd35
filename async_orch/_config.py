"""The options of an orchestrator, checked before anything is opened."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict, cast, get_args

from async_orch._layout import SlotSpec
from async_orch.exceptions import ConfigurationError

__all__ = ["BuildIn", "Mode", "OrchestratorConfig", "OrchestratorOptions", "StepLog", "check_seconds", "resolve_config"]

Mode = Literal["pipelined", "ring", "naive"]
BuildIn = Literal["inline", "thread", "process"]
HookIn = Literal["inline", "thread"]
Policy = Literal["fail_step", "discard_dependents", "fail_pipeline"]
Grow = Literal["never", "high_water"]
Upload = Literal["full", "delta"]
Annotate = Literal["nvtx", "mstx"]
StepLog = Any
"""A path, a structlog logger, a callable that takes each record, or None."""

MODE_VARIABLE = "ASYNC_ORCH_MODE"

MAX_COUNT = {
    "slots": 4096,
    "slots of a slot class": 4096,
    "queue_depth": 4096,
    "build_workers": 256,
    "max_inflight": 1_000_000,
}
"""Far beyond what helps: more is a slip of the keyboard, and opening would take minutes before it failed."""


class OrchestratorOptions(TypedDict, total=False):
    """`OrchestratorConfig`'s fields as keyword arguments."""

    slots: int
    queue_depth: int
    max_inflight: int | None
    mode: Mode
    build_in: BuildIn
    build_workers: int
    launch_in: HookIn
    collect_in: HookIn
    policy: Policy
    grow: Grow
    upload: Upload
    slot_classes: Sequence[tuple[SlotSpec, int]]
    build_timeout_s: float | None
    collect_timeout_s: float | None
    max_quarantined: int
    strict_alloc: bool
    step_log: StepLog
    observers: Sequence[Callable[[Any], object]]
    drain_timeout_s: float
    fence_timeout_s: float
    blocked_warning_s: float
    annotate: Annotate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OrchestratorConfig:
    """How an orchestrator runs.

    Attributes
    ----------
    slots:
        Slots in the ring (>= 1). Two already overlap; a slot is held through copy, kernels and the wake-up
        after them, so three keep a fast device busy.
    queue_depth:
        Steps that may wait before each stage (>= 1).
    max_inflight:
        Steps accepted and not settled; None gives ``slots + queue_depth``. Serving loops set 2.
    mode:
        ``"pipelined"``; ``"ring"``: one step at a time; ``"naive"``: also a slot allocated and freed each step.
        The environment variable ``ASYNC_ORCH_MODE`` overrides it, so that a user can bisect.
    build_in, build_workers:
        Where ``build`` runs: ``"inline"`` on the loop's thread, or on ``build_workers`` worker threads or (Linux)
        processes. A process gets a copy of the program as it was before ``open``; see `StepProgram.build`.
    launch_in, collect_in:
        Where ``launch`` (with ``open``, ``feed`` and ``close``: one thread per device) and ``collect`` run.
    policy:
        What a failed step does to others. ``"fail_step"``: nothing, except that steps which need its output as feed
        fail. ``"discard_dependents"``: every step that comes ``after`` it, and after those, fails with
        `DependencyFailed`. ``"fail_pipeline"``: all steps fail.
    grow:
        ``"high_water"`` lets a slot grow when a step's `StepProgram.sizes` asks for more than it has.
    upload:
        ``"delta"`` copies only what differs from the image that the slot holds already. Costs a copy of each slot's
        image in host memory; has no effect in mode naive. See `StepProgram.writes_image` for what it asks of programs.
    slot_classes:
        Pairs of a `SlotSpec` and a number of slots, from small to large, in place of ``slots``: for steps of very
        different sizes. Each step gets the smallest class that it fits in.
    build_timeout_s, collect_timeout_s:
        Longest time of one ``build`` or ``collect`` off the loop; past it the step fails and its buffer is
        quarantined, or its worker process killed and replaced. None: no limit.
    max_quarantined:
        How many quarantined buffers are replaced before the pipeline fails.
    strict_alloc:
        Raise `HotPathAllocation` when a program allocates on the step path. Has no effect in mode naive.
    step_log:
        Where each step's record goes: a path (JSON lines), a structlog logger, or a callable.
    observers:
        Called with each record on the writer's thread.
    drain_timeout_s:
        Bound on leaving ``async with``.
    fence_timeout_s:
        Longest time from a launch (or the fence before it on that stream, whichever is later) to its fence;
        past it the device counts as lost.
    blocked_warning_s:
        An inline hook that holds the loop longer logs one ``loop.blocked`` warning.
    annotate:
        ``"nvtx"`` or ``"mstx"``: a range for each stage of each step on the timeline of Nsight Systems or MindStudio,
        with the step's id. Steps then take the stages' queues, so it costs time; None costs nothing.
    """

    slots: int = 3
    queue_depth: int = 2
    max_inflight: int | None = None
    mode: Mode = "pipelined"
    build_in: BuildIn = "inline"
    build_workers: int = 1
    launch_in: HookIn = "inline"
    collect_in: HookIn = "inline"
    policy: Policy = "fail_step"
    grow: Grow = "never"
    upload: Upload = "full"
    slot_classes: Sequence[tuple[SlotSpec, int]] = ()
    build_timeout_s: float | None = None
    collect_timeout_s: float | None = None
    max_quarantined: int = 2
    strict_alloc: bool = True
    step_log: StepLog = None
    observers: Sequence[Callable[[Any], object]] = ()
    drain_timeout_s: float = 30.0
    fence_timeout_s: float = 60.0
    blocked_warning_s: float = 0.002
    annotate: Annotate | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "queue_depth", "build_workers"):
            _count(name, getattr(self, name))
        if self.max_inflight is not None:
            _count("max_inflight", self.max_inflight)
        choices = {
            "mode": Mode,
            "build_in": BuildIn,
            "launch_in": HookIn,
            "collect_in": HookIn,
            "policy": Policy,
            "grow": Grow,
            "upload": Upload,
        }
        for name, kind in choices.items():
            value = getattr(self, name)
            if value not in get_args(kind):
                raise ConfigurationError(f"{name}={value!r} must be one of {', '.join(get_args(kind))}")
        if self.annotate is not None and self.annotate not in get_args(Annotate):
            raise ConfigurationError(
                f"annotate={self.annotate!r} must be None or one of {', '.join(get_args(Annotate))}"
            )
        for name in ("drain_timeout_s", "fence_timeout_s", "blocked_warning_s"):
            check_seconds(name, getattr(self, name))
        if isinstance(self.max_quarantined, bool) or not isinstance(self.max_quarantined, int):
            raise ConfigurationError(f"max_quarantined must be an int, got {self.max_quarantined!r}")
        if self.max_quarantined < 0:
            raise ConfigurationError(f"max_quarantined={self.max_quarantined} must be >= 0")
        for hook in ("build", "collect"):
            limit = getattr(self, f"{hook}_timeout_s")
            if limit is not None:
                check_seconds(f"{hook}_timeout_s", limit)
                if getattr(self, f"{hook}_in") == "inline":
                    places = "'thread' or 'process'" if hook == "build" else "'thread'"
                    raise ConfigurationError(
                        f"{hook}_timeout_s={limit} needs {hook}_in={places}: an inline hook cannot be interrupted"
                    )
        self._check_slot_classes()

    def _check_slot_classes(self) -> None:
        classes: object = self.slot_classes
        if isinstance(classes, str) or not isinstance(classes, Sequence):
            raise ConfigurationError(f"slot_classes must be a sequence of (SlotSpec, slots) pairs, got {classes!r}")
        previous: SlotSpec | None = None
        for entry in self.slot_classes:
            if not isinstance(entry, tuple) or len(entry) != 2 or not isinstance(entry[0], SlotSpec):
                raise ConfigurationError(f"slot_classes must hold (SlotSpec, slots) pairs, got {entry!r}")
            spec, count = entry
            _count("slots of a slot class", count)
            if previous is not None and (
                spec.image_nbytes < previous.image_nbytes or spec.workspace_nbytes < previous.workspace_nbytes
            ):
                raise ConfigurationError(
                    f"slot_classes must go from small to large: image {spec.image_nbytes} B, workspace "
                    f"{spec.workspace_nbytes} B comes after {previous.image_nbytes} B, {previous.workspace_nbytes} B"
                )
            previous = spec

    @property
    def slots_total(self) -> int:
        """Slots of all classes."""
        return sum(count for _, count in self.slot_classes) if self.slot_classes else self.slots

    @property
    def inflight_limit(self) -> int:
        """``max_inflight`` with its default filled in."""
        return self.slots_total + self.queue_depth if self.max_inflight is None else self.max_inflight

    @property
    def staging_count(self) -> int:
        """Staging buffers: one for each build worker, each place in the queue behind, and one being copied."""
        return self.build_workers + self.queue_depth + 1


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no finite, positive number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{name} must be a number of seconds, got {value!r}")
    if not value > 0 or math.isinf(value):
        raise ConfigurationError(f"{name}={value!r} must be finite and > 0 seconds")


def _count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{name} must be an int, got {value!r}")
    if value < 1:
        raise ConfigurationError(f"{name}={value} must be >= 1")
    if value > MAX_COUNT[name]:
        raise ConfigurationError(f"{name}={value} must be <= {MAX_COUNT[name]}")


def resolve_config(
    config: OrchestratorConfig | None, options: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> OrchestratorConfig:
    """Merge ``config``, keyword ``options`` and the environment; names a misspelt option's nearest match."""
    names = [field.name for field in fields(OrchestratorConfig)]
    for name in options:
        if name not in names:
            import difflib  # noqa: PLC0415 - slow to import, and needed for a slip only

            near = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; options are {', '.join(names)}"
            raise TypeError(f"Orchestrator has no option {name!r}{hint}")
    if config is not None and not isinstance(config, OrchestratorConfig):
        raise TypeError(f"config must be an OrchestratorConfig, got {type(config).__name__}")
    if options.get("slot_classes") and "slots" in options:
        raise ConfigurationError(
            f"slots={options['slots']!r} beside slot_classes: each class has its own number of slots; leave slots out"
        )
    merged = OrchestratorConfig(**options) if config is None else replace(config, **options)
    override = environ.get(MODE_VARIABLE)
    if override:
        if override not in ("pipelined", "ring", "naive"):
            raise ConfigurationError(
                f"{MODE_VARIABLE}={override!r} in the environment must be one of {', '.join(get_args(Mode))}"
            )
        merged = replace(merged, mode=cast(Mode, override))
    return merged
