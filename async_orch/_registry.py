"""Finds backends by name through entry points, so that third parties take the same path as ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from async_orch.abc import Backend
from async_orch.exceptions import BackendUnavailable, OrchError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["available_backends", "open_backend"]

GROUP = "async_orch.backends"

Opener = Callable[..., object]


def _found() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        same = found.setdefault(point.name, [])
        if all(point.value != other.value for other in same):
            same.append(point)
    return found


def available_backends() -> list[str]:
    """Names of the installed backends, sorted. Installed does not mean that the device works here."""
    return sorted(_found())


def open_backend(name: str, **options: Any) -> Backend:
    """Open a backend by ``name[:device or profile]``, e.g. ``"host"``, ``"sim:instant"``, ``"torch:npu:0"``.

    Keyword options go to the backend. Who opens it closes it: an `Orchestrator` given an opened backend leaves
    it open. Raises `BackendUnavailable` with what is installed, or what to install.
    """
    if not isinstance(name, str) or not name:
        raise BackendUnavailable(f"a backend is named by a non-empty string such as 'host', got {name!r}")
    kind, _, target = name.partition(":")
    found = _found()
    points = found.get(kind, [])
    if not points:
        raise BackendUnavailable(f"no backend {kind!r}; installed: {', '.join(sorted(found)) or 'none'}")
    if len(points) > 1:
        where = " and ".join(f"{p.value} ({p.dist.name if p.dist else 'unknown'})" for p in points)
        raise BackendUnavailable(f"two packages provide a backend {kind!r}: {where}; uninstall one")
    try:
        opener: Opener = points[0].load()
    except Exception as exc:
        raise BackendUnavailable(f"backend {kind!r} cannot be imported: {_one_line(exc)}") from exc
    try:
        backend = opener(target or None, **options)
    except OrchError:
        raise
    except Exception as exc:
        raise BackendUnavailable(f"backend {name!r} could not be opened: {_one_line(exc)}") from exc
    if not isinstance(backend, Backend):
        given = type(backend).__name__
        raise BackendUnavailable(f"backend {kind!r}: its opener {points[0].value} gave {given}, not a Backend")
    return backend


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
