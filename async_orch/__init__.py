"""Build, copy and launch accelerator steps ahead of the device, in memory that was allocated once.

What the package names is loaded when it is first asked for: a command that only reads a log imports no engine, and a
process that uses the engine pays for it once, at its first ``from async_orch import Orchestrator``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from async_orch._config import OrchestratorConfig
    from async_orch._device import Device
    from async_orch._engine_program import EngineProgram
    from async_orch._handle import StepHandle, StepResult
    from async_orch._layout import Layout, SlotSpec
    from async_orch._orchestrator import Orchestrator
    from async_orch._program import Built, StepProgram
    from async_orch._registry import available_backends, open_backend
    from async_orch._reopening import Reopened
    from async_orch._ring import Lease
    from async_orch._slot import Slot
    from async_orch._slot_ring import SlotRing
    from async_orch._statistics import Statistics
    from async_orch._timings import StepTimings
    from async_orch.exceptions import OrchError

__all__ = [
    "Orchestrator",
    "OrchestratorConfig",
    "StepProgram",
    "EngineProgram",
    "SlotSpec",
    "Layout",
    "Built",
    "Device",
    "StepHandle",
    "StepResult",
    "StepTimings",
    "Slot",
    "SlotRing",
    "Lease",
    "Statistics",
    "Reopened",
    "open_backend",
    "available_backends",
    "OrchError",
]

_HOME = {
    "Orchestrator": "_orchestrator",
    "OrchestratorConfig": "_config",
    "StepProgram": "_program",
    "EngineProgram": "_engine_program",
    "SlotSpec": "_layout",
    "Layout": "_layout",
    "Built": "_program",
    "Device": "_device",
    "StepHandle": "_handle",
    "StepResult": "_handle",
    "StepTimings": "_timings",
    "Slot": "_slot",
    "SlotRing": "_slot_ring",
    "Lease": "_ring",
    "Statistics": "_statistics",
    "Reopened": "_reopening",
    "open_backend": "_registry",
    "available_backends": "_registry",
    "OrchError": "exceptions",
}
_MODULES = ("abc", "analysis", "exceptions", "graph", "logs", "metrics", "testing")

if not TYPE_CHECKING:  # type checkers see the imports above; a __getattr__ would make them accept any name

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = value  # the next look-up does not come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
