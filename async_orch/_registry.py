"""Finds backends by name through entry points, so that third parties take the same path as ours."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from async_orch.abc import Backend
from async_orch.exceptions import BackendUnavailable, OrchError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["available_backends", "claimed_support", "one_line", "open_backend"]

GROUP = "async_orch.backends"
_ENTRY = re.compile(r"[\w.]+\s*:\s*[\w.]+\s*(\[.*\])?\s*")

Opener = Callable[..., object]


def _found() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to import

    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        same = found.setdefault(point.name, [])
        # An installation may show up twice on the path (editable and not): that is one backend. The same entry from
        # two distributions is not: their files lie over each other, and nobody can tell whose code would run.
        if all((point.value, _package(point)) != (other.value, _package(other)) for other in same):
            same.append(point)
    return found


def _package(point: EntryPoint) -> str:
    return re.sub(r"[-_.]+", "-", point.dist.name).lower() if point.dist else "unknown"


def available_backends() -> list[str]:
    """Names of the installed backends, sorted. Installed does not mean that the device works here."""
    return sorted(_found())


def open_backend(name: str, **options: Any) -> Backend:
    """Open a backend by ``name[:device or profile]``, e.g. ``"host"``, ``"sim:instant"``, ``"torch:npu:0"``.

    Keyword options go to the backend. Who opens it closes it: an `Orchestrator` given an opened backend leaves
    it open. Raises `BackendUnavailable` with what is installed, or what to install; also where importing or opening
    it raises anything but an error of ours or `KeyboardInterrupt`, `SystemExit` included.
    """
    if not isinstance(name, str) or not name:
        raise BackendUnavailable(f"a backend is named by a non-empty string such as 'host', got {name!r}")
    kind, colon, target = name.partition(":")
    found = _found()
    points = found.get(kind, [])
    if not points:
        raise BackendUnavailable(f"no backend {kind!r}; installed: {', '.join(sorted(found)) or 'none'}")
    if len(points) > 1:
        where = " and ".join(f"{p.value} ({p.dist.name if p.dist else 'unknown'})" for p in points)
        raise BackendUnavailable(f"two packages provide a backend {kind!r}: {where}; uninstall one")
    if colon and not target:
        raise BackendUnavailable(
            f"backend {name!r} names nothing after the colon; use {kind!r} for its default, or name a device or profile"
        )
    if _ENTRY.fullmatch(points[0].value) is None:
        raise BackendUnavailable(
            f"backend {kind!r}: its entry point {points[0].value!r} (of {_package(points[0])}) is not MODULE:FUNCTION"
        )
    # Foreign code may also exit (a driver's module that calls sys.exit, say); only the user's interrupt is let through.
    try:
        opener: Opener = points[0].load()
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        raise BackendUnavailable(f"backend {kind!r} cannot be imported: {one_line(exc)}") from exc
    try:
        backend = opener(target or None, **options)
    except KeyboardInterrupt:
        raise
    except OrchError as exc:
        if len(exc.args) == 1 and isinstance(exc.args[0], str) and "\n" in exc.args[0]:
            exc.args = (" ".join(exc.args[0].split()),)
        raise
    except BaseException as exc:
        raise BackendUnavailable(f"backend {name!r} could not be opened: {one_line(exc)}") from exc
    if not isinstance(backend, Backend):
        given = type(backend).__name__
        raise BackendUnavailable(f"backend {kind!r}: its opener {points[0].value} gave {given}, not a Backend")
    return backend


def claimed_support(name: str) -> str | None:
    """How far the claim of support for a backend goes, without opening it; None where nothing is said.

    It is the text ``SUPPORT`` of the module that has the backend's opener, in the words of `DeviceInfo.support`.
    """
    points = _found().get(name.partition(":")[0], [])
    if len(points) != 1:
        return None
    try:
        said = getattr(sys.modules.get(points[0].load().__module__), "SUPPORT", None)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - foreign code, which `open_backend` has told about already
        return None
    return said if isinstance(said, str) else None


def one_line(exc: BaseException) -> str:
    """What a foreign exception says, in one line; its type where it says nothing, or where that is what matters."""
    kind = type(exc).__name__
    try:
        text = " ".join(str(exc).split())
    except Exception:  # noqa: BLE001 - a foreign exception may fail to say what is wrong, too
        return kind
    if not isinstance(exc, Exception):
        return f"it raised {kind}({text})"
    return text or kind
