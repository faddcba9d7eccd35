"""Software devices that share memory with the host, for tests of what is not copied there."""

from __future__ import annotations

from typing import Any

from async_orch_backends._software_backend import SoftwareBackend

from async_orch.abc import Buffer

__all__ = ["share_memory"]


def share_memory(backend: Any) -> Any:
    """``backend``, from now on with `alloc_mapped`."""

    def alloc_mapped(nbytes: int, *, name: str = "") -> tuple[Buffer, Buffer]:
        memory = backend.alloc(nbytes, name=name)
        return memory, backend._keep(memory.array, name, is_host=True)

    if not isinstance(backend, SoftwareBackend):
        raise TypeError(f"share_memory() takes a host or sim backend, not {type(backend).__name__}")
    backend.alloc_mapped = alloc_mapped  # type: ignore[method-assign]
    return backend
