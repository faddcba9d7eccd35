"""For tests of what is not copied where device and host share memory."""

from __future__ import annotations

from typing import Any

from anyio import wait_all_tasks_blocked
from async_orch_backends._software_backend import SoftwareBackend

from async_orch import Orchestrator
from async_orch.abc import Buffer
from async_orch.testing import ManualBackend
from tests.uploads import Mirror

__all__ = ["NBYTES", "copies", "image", "outputs", "share_memory", "shared"]

NBYTES = 32


def shared(nbytes: int = NBYTES, *, grows: bool = False) -> Mirror:
    """A program whose steps say what their kernels read."""
    return Mirror(nbytes, grows=grows, image_at="shared")


def image(number: int, nbytes: int = NBYTES) -> bytes:
    """The image of a step: its number, all over."""
    return bytes([number % 251 + 1]) * nbytes


def copies(backend: ManualBackend) -> int:
    """How many copies were ever enqueued for images."""
    return backend.copy.enqueued.count("copy")


async def outputs(orch: Orchestrator[Any, Any], backend: ManualBackend, steps: list[Any]) -> list[Any]:
    """Run steps one after the other, on a device that does all that it can."""
    found = []
    for step in steps:
        handle = await orch.submit(step)
        backend.run()
        await wait_all_tasks_blocked()
        found.append((await handle).output)
    return found


def share_memory(backend: Any) -> Any:
    """``backend``, a software device, from now on with `alloc_mapped`."""

    def alloc_mapped(nbytes: int, *, name: str = "") -> tuple[Buffer, Buffer]:
        memory = backend.alloc(nbytes, name=name)
        return memory, backend._keep(memory.array, name, is_host=True)

    if not isinstance(backend, SoftwareBackend):
        raise TypeError(f"share_memory() takes a host or sim backend, not {type(backend).__name__}")
    backend.alloc_mapped = alloc_mapped  # type: ignore[method-assign]
    return backend
