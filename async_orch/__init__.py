"""Build, copy and launch accelerator steps ahead of the device, in memory that was allocated once."""

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
