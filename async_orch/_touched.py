"""Allocation and first touch, all or nothing."""

from __future__ import annotations

from async_orch.abc import Backend, Buffer

__all__ = ["touched"]


def touched(backend: Backend, buffer: Buffer) -> Buffer:
    """``buffer``, touched; if that fails it is freed."""
    try:
        backend.touch(buffer)
    except BaseException:
        buffer.free()
        raise
    return buffer
