"""Allocation and first touch, all or nothing; and giving memory back where nobody can do anything about a failure."""

from __future__ import annotations

from contextlib import ExitStack

from async_orch._events import emit
from async_orch.abc import Backend, Buffer
from async_orch.exceptions import OrchError

__all__ = ["give_back", "touch_all", "touched"]


def touched(backend: Backend, buffer: Buffer) -> Buffer:
    """``buffer``, touched; if that fails it is freed."""
    touch_all(backend, buffer)
    return buffer


def touch_all(backend: Backend, *buffers: Buffer) -> None:
    """Touch them; if that fails for one, all are freed."""
    with ExitStack() as undo:
        for buffer in buffers:
            undo.callback(give_back, buffer)
        for buffer in buffers:
            backend.touch(buffer)
        undo.pop_all()


def give_back(buffer: Buffer) -> None:
    """Free a buffer. A driver that refuses (it may, once the device is lost) is reported and keeps nobody else's."""
    try:
        buffer.free()
    except OrchError as exc:
        emit("warning", "memory.not_freed", buffer=buffer.name, nbytes=buffer.nbytes, error=str(exc))
