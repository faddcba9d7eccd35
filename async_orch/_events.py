"""Rare events, through structlog, and only where the application has configured it.

An unconfigured structlog prints every event to standard output; a library must stay silent then.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

__all__ = ["emit", "enabled"]

Level = Literal["debug", "info", "warning", "error"]


def enabled() -> bool:
    """Whether `emit` does anything: for events that are dear to make."""
    if "structlog" not in sys.modules:
        return False  # nobody can have configured it, and importing it takes longer than importing the engine
    import structlog  # noqa: PLC0415 - see above

    return structlog.is_configured()


def emit(level: Level, event: str, **fields: Any) -> None:
    """Log ``event`` to the structlog logger ``async_orch``; does nothing while structlog is not configured."""
    if enabled():
        import structlog  # noqa: PLC0415 - only once the application has imported it

        logger: Any = structlog.get_logger("async_orch")
        getattr(logger, level)(event, **fields)
