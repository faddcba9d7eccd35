"""The figures of a group of steps: their names, units and labels, in the order in which they are shown."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

__all__ = ["FIGURES", "LINE_FIGURES", "SPECS", "Spec", "Unit"]

Unit = Literal["ns", "B", "MB/s"]


class Spec(NamedTuple):
    """A figure: its name, the label in tables, its unit, and the part of the table that it stands in."""

    name: str
    label: str
    unit: Unit
    part: Literal["line", "memory", "stage", "wait", "whole"]


SPECS: Final = (
    Spec("orch_ns", "orch", "ns", "line"),
    Spec("h2d_ns", "H2D", "ns", "line"),
    Spec("graph_ns", "  graph", "ns", "line"),
    Spec("sm_ns", "  sm", "ns", "line"),
    Spec("alloc_nbytes", "alloc", "B", "line"),
    Spec("copy_nbytes", "copy", "B", "line"),
    Spec("bw", "bw", "MB/s", "line"),
    Spec("sm_bw", "sm_bw", "MB/s", "line"),
    Spec("alloc_ns", "alloc time", "ns", "memory"),
    Spec("copy_ns", "copy time", "ns", "memory"),
    Spec("staging_copy_ns", "staging copy", "ns", "memory"),
    Spec("delta_ns", "delta", "ns", "memory"),
    Spec("d2d_ns", "d2d", "ns", "stage"),
    Spec("feed_ns", "feed", "ns", "stage"),
    Spec("launch_ns", "launch", "ns", "stage"),
    Spec("device_ns", "device", "ns", "stage"),
    Spec("d2h_ns", "d2h", "ns", "stage"),
    Spec("retire_ns", "retire", "ns", "stage"),
    Spec("submit_wait_ns", "wait: accept", "ns", "wait"),
    Spec("build_wait_ns", "wait: build", "ns", "wait"),
    Spec("acquire_wait_ns", "wait: slot", "ns", "wait"),
    Spec("copy_wait_ns", "wait: copy", "ns", "wait"),
    Spec("feed_wait_ns", "wait: feed", "ns", "wait"),
    Spec("launch_wait_ns", "wait: launch", "ns", "wait"),
    Spec("device_wait_ns", "wait: device", "ns", "wait"),
    Spec("retire_wait_ns", "wait: retire", "ns", "wait"),
    Spec("bubble_ns", "bubble", "ns", "whole"),
    Spec("starved_ns", "starved", "ns", "whole"),
    Spec("total_ns", "accept to end", "ns", "whole"),
    Spec("step_ns", "step to step", "ns", "whole"),
)

FIGURES: Final = tuple(spec.name for spec in SPECS)
"""Names of the figures of a group.

Those of a ``host-orch:`` line come first, see `async_orch.logs.HostOrch`; ``bw`` is always computed from the others.
The rest only step records have: ``alloc_ns``, ``copy_ns`` (the copy alone, so ``h2d_ns`` is their sum), the times of
`async_orch.logs.StepRecord`, and these:

``submit_wait_ns``
    from the call of ``submit`` to the acceptance
``build_wait_ns``
    from the acceptance to the start of the build
``copy_wait_ns``, ``launch_wait_ns``
    from getting a slot to the start of the copy, and to the launch
``device_wait_ns``
    from the time that the kernels could have started (launched, and their image copied) to their start
``retire_wait_ns``
    from the output's arrival to the start of retire
``step_ns``
    from the end of the step before to the end of this one
"""

LINE_FIGURES: Final = tuple(spec.name for spec in SPECS if spec.part == "line")
