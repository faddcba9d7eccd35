"""A second witness of promise 1: the counter of the device's own allocator, compared around each launch.

A program whose kernels come from a library may allocate device memory without asking us. Where the backend can read how
many allocations the device has seen, the launch hook is wrapped when the program is opened; elsewhere nothing is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from async_orch.exceptions import HotPathAllocation

if TYPE_CHECKING:
    from async_orch._device import Device
    from async_orch._pipeline import Pipeline
    from async_orch._program import ProgramRuntime
    from async_orch._slot import Slot
    from async_orch.abc import Stream

__all__ = ["watch_allocations"]


def watch_allocations(runtime: ProgramRuntime, counter: Callable[[], int], pipeline: Pipeline, device: Device) -> None:
    """Let ``counter`` be read before and after each launch of the program.

    What came between is counted in the step's record and in ``step_path_allocs``; with ``strict_alloc`` the step fails
    with `HotPathAllocation`, and its slot comes back behind a fence after all that was enqueued.
    """
    launch = runtime.launch
    name = type(runtime.program).__name__

    def watched(step: Any, slot: Slot, stream: Stream) -> int | None:
        before = counter()
        used = launch(step, slot, stream)
        made = counter() - before
        if made:
            device.step_path_allocs += made
            for live in tuple(pipeline.live.values()):
                if live.slot is slot:
                    live.alloc_count += made
            if device.strict:
                raise HotPathAllocation(
                    f"launch of {name} made the device allocate memory {made} times; run the model once in open(), so "
                    "that its memory is there, or pass strict_alloc=False to have such allocations counted instead"
                )
        return used

    runtime.launch = watched
